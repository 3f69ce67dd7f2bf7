"""What is always true of the tables, as SQL that finds where it is not. Plain enough for an operator's own SQL prompt.

Each query answers a row for each fault: the conversation's key (NULL where it is nobody's), and what was found there.
`sessionstore check` runs them all in one snapshot; `sessionstore check --sql` prints them.
"""

from typing import NamedTuple


class Invariant(NamedTuple):
    """Something that is always true, and the query that finds where it is not."""

    name: str
    about: str
    sql: str


_ALIVE = "m.status NOT IN ('deleted', 'queued')"
_OF = "FROM messages m WHERE m.conversation_pk = c.pk"
_OPEN_TURN = "g.ended_at IS NULL AND g.number <> coalesce(c.generation, 0)"


def invariants(valid: str) -> tuple[Invariant, ...]:
    """What is always true whatever the engine; `valid` is its function that says whether a text is JSON."""
    return (
        Invariant(
            "counts",
            "A conversation counts its messages and its queued inputs.",
            f"""
            SELECT pk, 'counts ' || message_count || ' and ' || queued_count || ', has ' || alive || ' and ' || queued FROM (
                SELECT c.pk, c.message_count, c.queued_count, (SELECT count(*) {_OF} AND {_ALIVE}) AS alive,
                       (SELECT count(*) {_OF} AND m.status = 'queued') AS queued
                FROM conversations c WHERE c.deleted_at IS NULL) counted
            WHERE message_count <> alive OR queued_count <> queued""",
        ),
        Invariant(
            "positions",
            "The next position is behind all that are taken.",
            """
            SELECT c.pk, 'next position ' || c.next_position || ', taken ' || max(m.position)
            FROM conversations c JOIN messages m ON m.conversation_pk = c.pk WHERE c.deleted_at IS NULL
            GROUP BY c.pk, c.next_position HAVING max(m.position) >= c.next_position""",
        ),
        Invariant(
            "versions",
            "No message is newer than its conversation.",
            """
            SELECT c.pk, 'version ' || c.version || ', a message has ' || max(m.version)
            FROM conversations c JOIN messages m ON m.conversation_pk = c.pk WHERE c.deleted_at IS NULL
            GROUP BY c.pk, c.version HAVING max(m.version) > c.version""",
        ),
        Invariant(
            "changes",
            "No two conversations share a change, which is the order of lists.",
            """
            SELECT c.pk, 'change ' || c.change || ' is another one''s too' FROM conversations c
            WHERE EXISTS (SELECT 1 FROM conversations o WHERE o.change = c.change AND o.pk < c.pk)""",
        ),
        Invariant(
            "leases",
            "A lease is that of a turn of its conversation that goes on, and of the same token.",
            """
            SELECT c.pk, 'generation ' || c.generation || ' has no such turn' FROM conversations c
            WHERE c.generation IS NOT NULL AND NOT EXISTS (
                SELECT 1 FROM generations g WHERE g.number = c.generation AND g.conversation_pk = c.pk
                AND g.ended_at IS NULL AND g.token_hash = c.lease_token)""",
        ),
        Invariant(
            "turns",
            "Every turn has ended but the one that holds the lease.",
            f"""
            SELECT c.pk, 'turn ' || g.number || ' goes on without a lease'
            FROM generations g JOIN conversations c ON c.pk = g.conversation_pk WHERE {_OPEN_TURN}""",
        ),
        Invariant(
            "partials",
            "Only while somebody holds the lease is a message still growing.",
            """
            SELECT c.pk, 'message ' || m.id || ' grows without a lease'
            FROM messages m JOIN conversations c ON c.pk = m.conversation_pk
            WHERE m.status = 'partial' AND c.generation IS NULL AND c.deleted_at IS NULL""",
        ),
        Invariant(
            "fences",
            "A message was written under a turn of its own conversation, or under none.",
            """
            SELECT m.conversation_pk, 'message ' || m.id || ' is of turn ' || m.generation FROM messages m
            WHERE m.generation IS NOT NULL AND NOT EXISTS (
                SELECT 1 FROM generations g WHERE g.number = m.generation AND g.conversation_pk = m.conversation_pk)""",
        ),
        Invariant(
            "summaries",
            "A summary stands behind all that it covers.",
            """
            SELECT m.conversation_pk, 'summary ' || m.id || ' at ' || m.position || ' covers ' || m.summary_through
            FROM messages m WHERE m.summary_through >= m.position""",
        ),
        Invariant(
            "references",
            "Messages and turns are those of a conversation, and a parent is one.",
            """
            SELECT CAST(NULL AS INTEGER), 'message ' || m.pk || ' is nobody''s' FROM messages m
            WHERE NOT EXISTS (SELECT 1 FROM conversations c WHERE c.pk = m.conversation_pk)
            UNION ALL SELECT CAST(NULL AS INTEGER), 'turn ' || g.number || ' is nobody''s' FROM generations g
            WHERE NOT EXISTS (SELECT 1 FROM conversations c WHERE c.pk = g.conversation_pk)
            UNION ALL SELECT c.pk, 'parent ' || c.parent_pk || ' is not there' FROM conversations c
            WHERE c.parent_pk IS NOT NULL AND NOT EXISTS (SELECT 1 FROM conversations p WHERE p.pk = c.parent_pk)""",
        ),
        Invariant(
            "json",
            "Contents, metadata and usage are JSON.",
            f"""
            SELECT m.conversation_pk, 'message ' || m.id || ' is no JSON' FROM messages m
            WHERE NOT {valid}(coalesce(m.content, '0')) OR NOT {valid}(coalesce(m.metadata, '0'))
            UNION ALL SELECT c.pk, 'its metadata is no JSON' FROM conversations c WHERE NOT {valid}(c.metadata)
            UNION ALL SELECT g.conversation_pk, 'turn ' || g.number || ' has usage that is no JSON' FROM generations g
            WHERE NOT {valid}(coalesce(g.usage, '0'))""",
        ),
    )


LEFTOVERS = Invariant(
    "leftovers",
    "Of what was deleted nothing is left. (What was interrupted while it deleted leaves this for `purge`.)",
    """
    SELECT c.pk, count(*) || ' messages are left' FROM conversations c JOIN messages m ON m.conversation_pk = c.pk
    WHERE c.deleted_at IS NOT NULL AND c.arriving_at IS NULL GROUP BY c.pk""",
)
