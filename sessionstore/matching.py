"""Which texts have the words that somebody looks for, and where: judged by one tokenizer, SQLite's, whatever the engine."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from sessionstore.engine import sqlite3

TOKENIZER = "unicode61 remove_diacritics 2"
COLUMNS = f"scope, text, tokenize = '{TOKENIZER}'"
SNIPPET_WORDS = 24
SNIPPET = f"CAST(snippet(search, 1, char(2), char(3), '…', {SNIPPET_WORDS}) AS BLOB)"
MARKS = "\x02", "\x03"
_HITS = f"SELECT rowid, {SNIPPET} FROM search WHERE search MATCH ? ORDER BY rowid DESC"


class Hit(NamedTuple):
    """A message that was found, and its snippet with `MARKS` around each word that was looked for."""

    message_pk: int
    snippet: str


def question(words: Sequence[str], scope: Sequence[str]) -> str:
    """The words as a question in which none of them is syntax: each in quotes, all of them in one text of that scope."""
    quoted = ['"' + word.replace('"', '""') + '"' for word in words]
    return f"scope : ({' AND '.join(scope)}) AND text : ({' AND '.join(quoted)})"


def looked_through(rows: Sequence[Any], match: str) -> list[Hit]:
    """Which of those rows (key, scope, text) answer the question, by an index that nobody else sees; the last first."""
    if not rows:
        return []
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.execute(f"CREATE VIRTUAL TABLE search USING fts5({COLUMNS})")
        connection.executemany("INSERT INTO search (rowid, scope, text) VALUES (?, ?, CAST(? AS TEXT))", rows)
        return [Hit(pk, snippet.decode(errors="replace")) for pk, snippet in connection.execute(_HITS, (match,))]
    finally:
        connection.close()
