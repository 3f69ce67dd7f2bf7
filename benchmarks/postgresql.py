"""The store on PostgreSQL: beside the same statements by hand in psycopg, and beside a file on the same disk."""

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.numeric import Int8Dumper

from benchmarks.figures import Figure, ratio
from benchmarks.ours import Library
from benchmarks.sides import Process, in_turn, median
from benchmarks.sides import ratio as compare
from benchmarks.worker import Side
from sessionstore import Store, statements
from sessionstore.drafts import new_id
from tests.servers import DURABLE, Server

URL = "BENCH_POSTGRESQL"
SESSIONS = [f"many-{n}" for n in range(200)]


class OnServer(Library):
    """The store, called by threads."""

    def __init__(self, folder: Path, synchronous: str) -> None:
        Side.__init__(self, folder, synchronous)
        self.store = Store.open(os.environ[URL], migrate_first=True, busy_timeout_ms=60_000)
        self._known: set[str] = set()


class ByHand(Side):
    """The statements of an append without a check: what the store says to the server, said by psycopg. One connection each."""

    def __init__(self, folder: Path, synchronous: str) -> None:
        super().__init__(folder, synchronous)
        self._store = Store.open(os.environ[URL], migrate_first=True)
        known = self._store.database.statements  # type: ignore[attr-defined]
        self._look, self._put, self._advance = (
            known[one] for one in (statements.LIFE, statements.PUT_MESSAGE, statements.ADVANCE)
        )
        self._connections: dict[int, Any] = {}
        self._known: set[str] = set()

    def _cursor(self) -> Any:
        import threading

        thread = threading.get_ident()
        if thread not in self._connections:
            connection = psycopg.connect(os.environ[URL], autocommit=True)
            connection.prepare_threshold = 2
            connection.adapters.register_dumper(int, Int8Dumper)
            self._connections[thread] = connection.cursor()
        return self._connections[thread]

    def append(self, session: str, text: str) -> Any:
        if session not in self._known:
            self._store.create(session)
            self._known.add(session)
        cursor = self._cursor()
        cursor.execute("BEGIN")
        cursor.execute(self._look[0], {"owner": "", "id": session})
        pk, _, version, position, count, queued, *_, now, _ = cursor.fetchone()
        cursor.execute(
            self._put[0],
            {
                **self._put[1], "conversation_pk": pk, "id": new_id(), "position": position, "role": "user",
                "content": f'"{text}"', "metadata": "{}", "status": "complete", "mode": None, "summary_through": None,
                "generation": None, "created_version": version + 1, "version": version + 1, "created_at": now,
                "updated_at": now, "digest": "d" * 64,
            },
        )  # fmt: skip
        cursor.execute(
            self._advance[0],
            {
                **self._advance[1], "at": pk, "version": version + 1, "now": now, "next_position": position + 1,
                "message_count": count + 1, "queued_count": queued, "lease_expires_at": None,
            },
        )  # fmt: skip
        cursor.execute("COMMIT")


def appends(rounds: int) -> list[Figure]:
    """One caller, sixteen over 200 conversations, and sixteen on one."""
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="bench-") as directory:
        # A folder on a real disk, where the server is as well: both pay the same fsync.
        server = stack.enter_context(Server(DURABLE))
        sides = {}
        for name, side in (("store", "postgresql.OnServer"), ("by hand", "postgresql.ByHand"), ("file", "ours.Library")):
            server.execute(f'CREATE DATABASE "{name}"')
            environment = {**os.environ, URL: server.url(name.replace(" ", "%20"))}
            sides[name] = Process(side, Path(directory) / name.replace(" ", "-"), environment)
            stack.callback(sides[name].close)
            sides[name].do("warm", sessions=["one", *SESSIONS])
        one = in_turn(sides, rounds, "one", seconds=0.7)
        many = in_turn(sides, rounds, "many", seconds=1.0)
        hot = in_turn({"store": sides["store"]}, rounds, "many", seconds=1.0, sessions=1)
    return [
        ratio("postgresql", "PostgreSQL: one caller, append with all checks, of psycopg by hand",
              compare(one, "store", "by hand"), 0.8, rates(one)),
        ratio("postgresql", "… 16 threads over 200 conversations, the same",
              compare(many, "store", "by hand"), 0.8, rates(many)),
        ratio("postgresql", "… one caller, of a file on the same disk", compare(one, "store", "file"), 0.2),
        ratio("postgresql", "… 16 threads over 200 conversations, of a file", compare(many, "store", "file"), 0.2),
        Figure("postgresql", "… 16 threads, p99", median(many["store"], "p99") * 1e3, 40, "less", "ms"),
        Figure("postgresql", "… one conversation with 16 rivals, p99", median(hot["store"], "p99") * 1e3, 40, "less", "ms",
               note=f"{median(hot['store'], 'rate'):,.0f}/s"),
        Figure("postgresql", "… errors of those", sum(r["errors"] for r in (*hot["store"], *many["store"])), 0, "less"),
    ]  # fmt: skip


def rates(found: dict[str, list[dict[str, Any]]]) -> str:
    return ", ".join(f"{name} {median(results, 'rate'):,.0f}/s" for name, results in found.items())
