"""Our own sides: the store, and the same transaction by hand."""

import asyncio
import json
import sqlite3
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.worker import TEXT, Side, Taken
from sessionstore import AsyncStore, Draft, Save, Store, errors, statements
from sessionstore.drafts import new_id
from sessionstore.store import system_clock


class Library(Side):
    """The store, called by threads."""

    def __init__(self, folder: Path, synchronous: str) -> None:
        super().__init__(folder, synchronous)
        self.url = f"sqlite:///{folder / 'bench.db'}"
        # Patience for what is measured with eight processes on one file.
        self.store = Store.open(
            self.url,
            migrate_first=True,
            synchronous=synchronous,
            busy_timeout_ms=60_000,  # type: ignore[arg-type]
        )
        self._known: set[str] = set()

    def _ensure(self, session: str) -> None:
        if session not in self._known:
            self.store.create(session)
            self._known.add(session)

    def append(self, session: str, text: str) -> Any:
        self._ensure(session)
        return self.store.append(session, [Draft(role="user", content=text)])

    def last(self, session: str, count: int) -> Any:
        return [message.content for message in self.store.messages(session, order="desc", limit=count).items]

    def whole(self, session: str) -> Any:
        return [message.content for message in self.store.messages(session, limit=1000).items]

    def fill(self, session: str, count: int) -> None:
        self._ensure(session)
        for begin in range(0, count, 1000):
            self.store.append(session, [Draft(role="user", content=TEXT)] * min(1000, count - begin))

    def durability(self) -> str:
        found = self.store.database.settings()
        return f"{found['journal_mode'].upper()}, {found['synchronous'].upper()}"

    def stored(self) -> int:
        connection = sqlite3.connect(self.folder / "bench.db")
        count = connection.execute("SELECT count(*) FROM messages").fetchone()[0]
        connection.close()
        return int(count)


class Awaited(Library):
    """The store, awaited by tasks."""

    awaited = True

    def __init__(self, folder: Path, synchronous: str) -> None:
        super().__init__(folder, synchronous)
        self.awaitable = AsyncStore(self.store)

    async def append(self, session: str, text: str) -> Any:
        self._ensure(session)
        return await self.awaitable.append(session, [Draft(role="user", content=text)])

    async def last(self, session: str, count: int) -> Any:
        page = await self.awaitable.messages(session, order="desc", limit=count)
        return [message.content for message in page.items]

    async def whole(self, session: str) -> Any:
        return [message.content for message in (await self.awaitable.messages(session, limit=1000)).items]

    async def generating(self, conversations: int, seconds: float, every: float) -> dict[str, Any]:
        """Conversations that generate in a server that sends off, every 5 ms, what has become due to be saved.

        Each save renews its lease. How late an answer is counts from the moment at which the save was due.
        """
        turn = uuid.uuid4().hex
        for n in range(conversations):
            self._ensure(f"g{n}")
            await self.awaitable.acquire(f"g{n}", "bench", token=turn + str(n), if_busy="interrupt")
        taken, begin, sent = Taken(), time.perf_counter() + 0.05, 0
        calls = set[asyncio.Task[None]]()
        while (now := time.perf_counter() - begin) < seconds:
            # Save number k is due at k * every / conversations.
            due = range(sent, max(sent, int(now * conversations / every)))
            sent = due.stop
            for first in range(due.start, due.stop, 64):
                call = asyncio.create_task(self._save(due[first - due.start :][:64], conversations, every, begin, turn, taken))
                calls.add(call)
                call.add_done_callback(calls.discard)
            await asyncio.sleep(0.005)
        await asyncio.gather(*calls)
        result = taken.result()
        for n in range(conversations):
            await self.awaitable.release(f"g{n}", token=turn + str(n))
        return result

    async def _save(self, numbers: range, count: int, every: float, begin: float, turn: str, taken: Taken) -> None:
        saves = []
        for k in numbers:
            draft = Draft(id="reply", role="assistant", content=TEXT[: 500 + k // count % 500], status="partial")
            saves.append(Save(conversation_id=f"g{k % count}", token=turn + str(k % count), message=draft))
        results = await self.awaitable.save_all(saves)
        now = time.perf_counter() - begin
        taken.times += [now - k * every / count for k in numbers]
        taken.errors += [repr(result) for result in results if isinstance(result, errors.SessionStoreError)]


class Raw(Side):
    """The statements of the store's own append, run by hand on one sqlite3 connection.

    Same file, same indexes, same durability. No validation, no digest, no typed answer, and nobody else may use the connection.
    """

    def __init__(self, folder: Path, synchronous: str) -> None:
        super().__init__(folder, synchronous)
        path = folder / "bench.db"
        with Store.open(f"sqlite:///{path}", migrate_first=True) as store:
            known = store.database.statements
            self._life, self._put, self._advance = (
                known[statement][0] for statement in (statements.LIFE, statements.PUT_MESSAGE, statements.ADVANCE)
            )
        self._store = Store.open(f"sqlite:///{path}")
        self._connection = sqlite3.connect(path, isolation_level=None, timeout=60, check_same_thread=False)
        for pragma in (f"synchronous={synchronous}", "foreign_keys=ON", "secure_delete=ON", "temp_store=MEMORY"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute("PRAGMA wal_autocheckpoint=1000")
        self._known: set[str] = set()

    def append(self, session: str, text: str) -> Any:
        if session not in self._known:
            with suppress(errors.ConversationExists):
                self._store.create(session)
            self._known.add(session)
        content, execute = json.dumps(text), self._connection.execute
        execute("BEGIN IMMEDIATE")
        now = system_clock()
        row = execute(self._life, {"owner": "", "id": session}).fetchone()
        if row[7] is not None and row[10] > now:
            raise RuntimeError("generating")
        version, position = row[2] + 1, row[3]
        message = {
            "conversation_pk": row[0], "id": new_id(), "position": position, "role": "user", "content": content,
            "metadata": "{}", "status": "complete", "mode": None, "summary_through": None, "generation": None,
            "created_version": version, "version": version, "created_at": now, "updated_at": now, "digest": "0" * 64,
        }  # fmt: skip
        execute(self._put, message)
        execute(
            self._advance,
            {"at": row[0], "version": version, "now": now, "next_position": position + 1, "message_count": row[4] + 1,
             "queued_count": row[5], "lease_expires_at": row[10]},
        )  # fmt: skip
        execute("COMMIT")

    def durability(self) -> str:
        return f"WAL, {self.synchronous.upper()}"

    def stored(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM messages").fetchone()[0])
