"""The search: the index of words names who may have them, and `matching` has the last word, as on every engine."""

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import text

from sessionstore import jsontext
from sessionstore.matching import Hit, looked_through, question
from sessionstore.postgresql.functions import SEARCHED, UNSAID
from sessionstore.transaction import Transaction

LONGEST_TEXT = 64 * 1024
LOOKED_AT_ONCE = 256
_EVERYWHERE = "CAST(:within AS bigint)"
CANDIDATES = text(f"""
    SELECT m.pk, m.content FROM messages m JOIN conversations c ON c.pk = m.conversation_pk
    WHERE sessionstore_words(m.content) @> sessionstore_words(:words) AND {SEARCHED} AND m.pk < :before
    AND coalesce({_EVERYWHERE}, m.conversation_pk) = m.conversation_pk AND c.owner = :owner AND c.deleted_at IS NULL
    ORDER BY m.pk DESC LIMIT :count""")
# Nobody writes these into a text: a zero would end it, and the marks of a snippet are ours.
_UNSAYABLE = str.maketrans("\x00\x02\x03", "   ")


def search(
    transaction: Transaction, words: Sequence[str], owner: str, within: int | None, before: int, count: int
) -> list[Hit]:
    """The newest messages that have the words, from before that one on."""
    match, found = question(words, ["s"]), list[Hit]()
    asked = {"words": jsontext.encode(" ".join(words)), "owner": owner, "within": within, "count": LOOKED_AT_ONCE}
    while len(found) < count:
        rows = transaction.rows(CANDIDATES, **asked, before=before)
        found += looked_through([(pk, "s", said(content)) for pk, content in rows], match)
        if len(rows) < LOOKED_AT_ONCE:
            break
        before = rows[-1][0]
    return found[:count]


def said(content: str) -> bytes:
    """What is said in a JSON text: its strings, one a line, up to 65,536 characters."""
    lines = "\n".join(_strings(jsontext.load(content)))
    return lines[:LONGEST_TEXT].translate(_UNSAYABLE).encode(errors="replace")


def _strings(value: Any, key: str = "") -> Iterator[str]:
    if isinstance(value, str):
        if key not in UNSAID:
            yield value
    elif isinstance(value, dict):
        for name, member in value.items():
            yield from _strings(member, name)
    elif isinstance(value, list):
        for member in value:
            yield from _strings(member)
