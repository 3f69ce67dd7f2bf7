"""What is always true of a database file, in SQLite's words."""

from sessionstore.invariants import Invariant, invariants
from sessionstore.sqlite import fulltext

_NOTED = "EXISTS (SELECT 1 FROM search_pending p WHERE p.message_pk = {})"

INVARIANTS = (
    *invariants("json_valid"),
    Invariant(
        "search",
        "The search index knows each message, or has a note that it does not.",
        f"""
        SELECT m.conversation_pk, 'message ' || m.id || ' cannot be found' FROM messages m
        WHERE m.pk <= (SELECT through FROM search_state) AND {fulltext.indexed("m")} AND NOT {_NOTED.format("m.pk")}
        AND NOT EXISTS (SELECT 1 FROM search_docsize d WHERE d.id = m.pk)
        UNION ALL SELECT NULL, 'the index knows ' || d.id || ', which is not there' FROM search_docsize d
        WHERE NOT {_NOTED.format("d.id")}
        AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.pk = d.id AND {fulltext.indexed("m")})""",
    ),
)
