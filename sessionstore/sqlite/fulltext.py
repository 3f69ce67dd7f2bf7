"""The search index: SQLite's FTS5 over the text in messages.

To index a message inside its own transaction would double what a commit costs. So the index knows messages up to a number
(`search_state`), and triggers note in `search_pending` which of those have changed since, and what it still says of them.
`catch_up` works both off in small pieces after other commits, and a search looks through what is still unknown by itself, so
that it sees all that is committed.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from sessionstore.matching import COLUMNS, SNIPPET, Hit, looked_through, question

PIECE_ROWS, LARGE_PIECE_ROWS = 256, 1024
# A piece ends at so many characters for each of its rows, if they have more.
ROW_CHARACTERS = 256
LONGEST_CONTENT = 256 * 1024
LONGEST_TEXT = 64 * 1024
MERGED_PAGES = 200
EXTERNAL = "content = 'search_texts', content_rowid = 'message_pk'"

# Words that a program put there for programs.
_UNSAID = "'type', 'id', 'role', 'data', 'signature', 'tool_call_id', 'tool_use_id', 'call_id'"


def text_of(content: str) -> str:
    """The SQL of what is said in a JSON text: its strings, one a line.

    A zero would end the text, and the marks of a snippet are not for anybody else to set. JSON spells them all as escapes.
    """
    for unsayable in ("0000", "0002", "0003"):
        content = f"replace({content}, '\\u{unsayable}', '\\u0020')"
    return (
        f"(SELECT substr(group_concat(atom, char(10)), 1, {LONGEST_TEXT}) FROM json_tree({content})"
        f" WHERE type = 'text' AND coalesce(key, '') NOT IN ({_UNSAID}))"
    )


def indexed(row: str) -> str:
    """The SQL of whether a message is in the index: whole, and not too long."""
    return f"{row}.status IN ('complete', 'interrupted') AND length({row}.content) <= {LONGEST_CONTENT}"


# In words of the index itself, so that a common word is looked up in one conversation as quickly as in a small file.
SCOPE = "'o' || hex(c.owner) || ' c' || c.pk"
TEXTS = f"""
    SELECT m.pk AS message_pk, {SCOPE} AS scope, {text_of("m.content")} AS text
    FROM messages m JOIN conversations c ON c.pk = m.conversation_pk WHERE {indexed("m")}"""


def _note(row: str, said: str) -> str:
    # Not INSERT OR IGNORE: the upsert that fires a trigger decides what a conflict in it means, and fails.
    known = f"EXISTS (SELECT 1 FROM search_pending WHERE message_pk = {row}.pk)"
    columns = "message_pk, conversation_pk, said"
    return f"INSERT INTO search_pending ({columns}) SELECT {row}.pk, {row}.conversation_pk, {said} WHERE NOT {known}"


def _known(row: str) -> str:
    return f"{row}.pk <= (SELECT through FROM search_state)"


_NOTE_OLD = _note("old", f"CASE WHEN {indexed('old')} THEN old.content END")
# SQLite gives the number of a last message that was deleted to the next one.
TRIGGERS = {
    "search_added": f"""AFTER INSERT ON messages
        WHEN {_known("new")} AND {indexed("new")} BEGIN {_note("new", "NULL")}; END""",
    "search_changed": f"""AFTER UPDATE OF status, content ON messages
        WHEN {_known("old")} AND ({indexed("old")} OR {indexed("new")})
        AND (old.content IS NOT new.content OR ({indexed("old")}) IS NOT ({indexed("new")}))
        BEGIN {_NOTE_OLD}; END""",
    "search_removed": f"AFTER DELETE ON messages WHEN {_known('old')} AND {indexed('old')} BEGIN {_NOTE_OLD}; END",
}
INDEX = {
    "VIEW search_texts": f"CREATE VIEW search_texts AS {TEXTS}",
    "TABLE search": f"CREATE VIRTUAL TABLE search USING fts5({COLUMNS}, {EXTERNAL})",
    **{f"TRIGGER {name}": f"CREATE TRIGGER {name} {rest}" for name, rest in TRIGGERS.items()},
}
"""What the migrations create, in this order."""

# Keeping it up to date ---------------------------------------------------------------------------------------------------

_NOTED = """
    SELECT p.message_pk, coalesce(length(p.said), 0) + coalesce(length(m.content), 0)
    FROM search_pending p LEFT JOIN messages m ON m.pk = p.message_pk ORDER BY p.message_pk LIMIT ?"""
_FORGET = f"""
    INSERT INTO search (search, rowid, scope, text)
    SELECT 'delete', p.message_pk, {SCOPE}, {text_of("p.said")}
    FROM search_pending p JOIN conversations c ON c.pk = p.conversation_pk WHERE p.said IS NOT NULL AND p.message_pk <= ?"""
_LEARN = f"INSERT INTO search (rowid, scope, text) SELECT m.pk, {SCOPE}, {text_of('m.content')} FROM"
_LEARN_NOTED = f"""
    {_LEARN} search_pending p
    CROSS JOIN messages m ON m.pk = p.message_pk CROSS JOIN conversations c ON c.pk = m.conversation_pk
    WHERE p.message_pk <= ? AND {indexed("m")}"""
_DONE = "DELETE FROM search_pending WHERE message_pk <= ?"
_NEW = """
    SELECT m.pk, coalesce(length(m.content), 0) FROM messages m
    WHERE m.pk > (SELECT through FROM search_state) ORDER BY m.pk LIMIT ?"""
_LEARN_NEW = f"""
    {_LEARN} messages m CROSS JOIN conversations c ON c.pk = m.conversation_pk
    WHERE m.pk > (SELECT through FROM search_state) AND m.pk <= ? AND {indexed("m")}"""
_KNOWN = "UPDATE search_state SET through = ?"
_BEHIND = "SELECT coalesce((SELECT max(pk) FROM messages), 0) - through FROM search_state"
_SAID = "SELECT 1 FROM search_pending WHERE said IS NOT NULL LIMIT 1"
_WAITING = f"""
    SELECT (SELECT count(*) FROM (SELECT 1 FROM search_pending LIMIT {PIECE_ROWS}))
    + (SELECT count(*) FROM (SELECT 1 FROM messages WHERE pk > (SELECT through FROM search_state) LIMIT {PIECE_ROWS}))"""


def is_due(connection: Any) -> bool:
    """Whether a piece of work is waiting, or the text of something that was removed."""
    if keeps_removed(connection):
        return True
    return bool(connection.execute(_WAITING).fetchone()[0] >= PIECE_ROWS)


def keeps_removed(connection: Any) -> bool:
    """Whether the text of something that was removed is still noted."""
    return connection.execute(_SAID).fetchone() is not None


def behind(connection: Any) -> int:
    """How many messages the index does not know, at most."""
    return int(connection.execute(_BEHIND).fetchone()[0])


def catch_up(connection: Any, rows: int = LARGE_PIECE_ROWS) -> bool:
    """Bring the index up to date by one piece, inside the transaction that is open. Answers whether there was one."""
    for work, steps in ((_NOTED, (_FORGET, _LEARN_NOTED, _DONE)), (_NEW, (_LEARN_NEW, _KNOWN))):
        last = _end_of_piece(connection, work, rows)
        if last is not None:
            for step in steps:
                connection.execute(step, (last,))
            return True
    return False


def forget_all(connection: Any) -> None:
    """Begin anew: the index knows nothing, and catches up from the first message on."""
    for statement in ("INSERT INTO search (search) VALUES ('delete-all')", "DELETE FROM search_pending"):
        connection.execute(statement)
    connection.execute(_KNOWN, (0,))


def _end_of_piece(connection: Any, work: str, rows: int) -> int | None:
    """The last message that is in the next piece. A long text is not even measured once the piece is full."""
    last, size = None, 0
    for message_pk, length in connection.execute(work, (rows,)):
        if last is not None and size + length > rows * ROW_CHARACTERS:
            break
        last, size = message_pk, size + length
    return last


def merge(connection: Any, *, begin: bool) -> bool:
    """Rewrite a piece of the index without what was removed from it. Answers whether more is left.

    FTS5 keeps removed words in its older segments until all are merged (https://www.sqlite.org/fts5.html#the_merge_command).
    """
    before = connection.total_changes
    pages = -MERGED_PAGES if begin else MERGED_PAGES
    connection.execute("INSERT INTO search (search, rank) VALUES ('merge', ?)", (pages,))
    return bool(connection.total_changes - before >= 2)  # the merge command's own word for "go on"


# Looking things up -------------------------------------------------------------------------------------------------------


_HITS = f"""
    SELECT search.rowid, {SNIPPET} FROM search
    CROSS JOIN messages m ON m.pk = search.rowid CROSS JOIN conversations c ON c.pk = m.conversation_pk
    WHERE search MATCH :match AND search.rowid < :before AND c.owner = :owner AND c.deleted_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM search_pending p WHERE p.message_pk = search.rowid)
    ORDER BY search.rowid DESC LIMIT :count"""
_SAYS = f"SELECT m.pk, {SCOPE}, CAST({text_of('m.content')} AS BLOB) FROM"
_SHOWN = f"""
    coalesce(:within, m.conversation_pk) = m.conversation_pk
    AND c.owner = :owner AND c.deleted_at IS NULL AND {indexed("m")}"""
# What is new to the index is newer than what it has notes about.
_UNINDEXED = (
    f"""
    {_SAYS} messages m CROSS JOIN conversations c ON c.pk = m.conversation_pk
    WHERE m.pk > (SELECT through FROM search_state) AND m.pk < :before AND {_SHOWN} ORDER BY m.pk DESC LIMIT :count""",
    f"""
    {_SAYS} search_pending p
    CROSS JOIN messages m ON m.pk = p.message_pk CROSS JOIN conversations c ON c.pk = m.conversation_pk
    WHERE p.message_pk < :before AND {_SHOWN} ORDER BY p.message_pk DESC LIMIT :count""",
)


def search(connection: Any, words: Sequence[str], owner: str, within: int | None, before: int, count: int) -> list[Hit]:
    """The newest messages that have the words, from before that one on, whether the index knows them yet or not."""
    scope = [f"o{owner.encode().hex()}", *([] if within is None else [f"c{within}"])]
    match = question(words, scope)
    asked = {"match": match, "owner": owner, "before": before, "count": count}
    hits = [Hit(pk, snippet.decode(errors="replace")) for pk, snippet in connection.execute(_HITS, asked)]
    hits += _unindexed(connection, match, owner, within, before, count)
    return sorted(hits, reverse=True)[:count]


def _unindexed(connection: Any, match: str, owner: str, within: int | None, before: int, count: int) -> Iterator[Hit]:
    """What the index does not know yet, looked through by an index of the same kind that nobody else sees."""
    found, asked = 0, {"owner": owner, "within": within, "count": LARGE_PIECE_ROWS}
    for statement in _UNINDEXED:
        behind, rows = before, list[Any]()
        while found < count and (behind == before or len(rows) == LARGE_PIECE_ROWS):
            rows = connection.execute(statement, {**asked, "before": behind}).fetchall()
            for hit in looked_through(rows, match):
                found += 1
                yield hit
            behind = rows[-1][0] if rows else -1
