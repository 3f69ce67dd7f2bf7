"""Other people's session stores, as they come, in an environment of their own (.venv-peers).

Each does what its own documentation shows for one more message. None of them checks a lease, and most check nothing at all.
"""

import asyncio
import sqlite3
import sqlite3.dbapi2
import threading
import uuid
from pathlib import Path
from typing import Any

from benchmarks.worker import TEXT, Side

_connect = sqlite3.connect
_settings: list[str] = []


def _listening(*args: Any, **kwargs: Any) -> sqlite3.Connection:
    """Note which settings a library makes."""
    connection = _connect(*args, **kwargs)

    def heard(statement: str) -> None:
        if statement.lower().startswith("pragma synchronous"):
            _settings.append(statement)

    connection.set_trace_callback(heard)
    return connection


class Peer(Side):
    """A library with a file."""

    def __init__(self, folder: Path, synchronous: str) -> None:
        super().__init__(folder, synchronous)
        self.path = str(folder / "peer.db")
        sqlite3.connect = sqlite3.dbapi2.connect = _listening  # type: ignore[assignment,misc]
        self.sessions: dict[str, Any] = {}
        self.lock = threading.Lock()

    def durability(self) -> str:
        connection = _connect(self.path)
        journal = connection.execute("PRAGMA journal_mode").fetchone()[0]
        connection.close()
        synchronous = _settings[-1].partition("=")[2].strip() if _settings else "full"
        return f"{journal.upper()}, {synchronous.upper()}"

    def stored(self) -> int:
        return -1

    async def fill_slowly(self, session: str, count: int) -> None:
        """Through its own front door."""
        for _ in range(count):
            done = self.append(session, TEXT)
            if self.awaited:
                await done

    def fill(self, session: str, count: int) -> None:
        if self.awaited:
            # The jobs' own loop runs nothing now.
            asyncio.get_event_loop_policy().get_event_loop().run_until_complete(self.fill_slowly(session, count))
        else:
            for _ in range(count):
                self.append(session, TEXT)


class OpenAISQLite(Peer):
    """openai-agents, SQLiteSession."""

    awaited = True

    def _session(self, session: str) -> Any:
        from agents import SQLiteSession

        if session not in self.sessions:
            self.sessions[session] = SQLiteSession(session, self.path)
        return self.sessions[session]

    async def append(self, session: str, text: str) -> Any:
        await self._session(session).add_items([{"role": "user", "content": text}])

    async def last(self, session: str, count: int) -> Any:
        return await self._session(session).get_items(limit=count)

    async def whole(self, session: str) -> Any:
        return await self._session(session).get_items()


class OpenAISQLAlchemy(OpenAISQLite):
    """openai-agents, SQLAlchemySession."""

    def __init__(self, folder: Path, synchronous: str) -> None:
        super().__init__(folder, synchronous)
        from sqlalchemy.ext.asyncio import create_async_engine

        self._engine = create_async_engine(f"sqlite+aiosqlite:///{self.path}")

    def _session(self, session: str) -> Any:
        from agents.extensions.memory import SQLAlchemySession

        if session not in self.sessions:
            self.sessions[session] = SQLAlchemySession(session, engine=self._engine, create_tables=True)
        return self.sessions[session]


class ADKDatabase(Peer):
    """google-adk, DatabaseSessionService."""

    awaited = True

    def __init__(self, folder: Path, synchronous: str) -> None:
        super().__init__(folder, synchronous)
        self._service = self._made()
        self._turns: dict[str, asyncio.Lock] = {}

    def _made(self) -> Any:
        from google.adk.sessions import DatabaseSessionService

        return DatabaseSessionService(f"sqlite+aiosqlite:///{self.path}")

    async def append(self, session: str, text: str) -> Any:
        from google.adk.events.event import Event
        from google.genai import types

        # One turn at a time for each session object, as its runner does.
        async with self._turns.setdefault(session, asyncio.Lock()):
            if session not in self.sessions:
                self.sessions[session] = await self._service.create_session(app_name="app", user_id="user", session_id=session)
            content = types.Content(role="user", parts=[types.Part(text=text)])
            await self._service.append_event(self.sessions[session], Event(author="user", invocation_id="i", content=content))

    async def last(self, session: str, count: int) -> Any:
        from google.adk.sessions.base_session_service import GetSessionConfig

        config = GetSessionConfig(num_recent_events=count)
        return (await self._service.get_session(app_name="app", user_id="user", session_id=session, config=config)).events

    async def whole(self, session: str) -> Any:
        return (await self._service.get_session(app_name="app", user_id="user", session_id=session)).events


class ADKSQLite(ADKDatabase):
    """google-adk, SqliteSessionService."""

    def _made(self) -> Any:
        from google.adk.sessions.sqlite_session_service import SqliteSessionService

        return SqliteSessionService(self.path)


class LangChain(Peer):
    """langchain-community, SQLChatMessageHistory."""

    def __init__(self, folder: Path, synchronous: str) -> None:
        super().__init__(folder, synchronous)
        from sqlalchemy import create_engine

        self._engine = create_engine(f"sqlite:///{self.path}")
        self._session("first")

    def _session(self, session: str) -> Any:
        from langchain_community.chat_message_histories import SQLChatMessageHistory

        with self.lock:
            if session not in self.sessions:
                self.sessions[session] = SQLChatMessageHistory(session_id=session, connection=self._engine)
            return self.sessions[session]

    def append(self, session: str, text: str) -> Any:
        from langchain_core.messages import HumanMessage

        self._session(session).add_message(HumanMessage(content=text))

    def last(self, session: str, count: int) -> Any:
        # It cannot load a part.
        return self._session(session).messages[-count:]

    def whole(self, session: str) -> Any:
        return self._session(session).messages


class LangGraph(Peer):
    """langgraph-checkpoint-sqlite, SqliteSaver.put: the state is one message, so it grows with nothing."""

    def __init__(self, folder: Path, synchronous: str) -> None:
        super().__init__(folder, synchronous)
        from langgraph.checkpoint.sqlite import SqliteSaver

        self._saver = SqliteSaver(sqlite3.connect(self.path, check_same_thread=False))
        self._saver.setup()

    def _put(self, session: str, messages: list[Any]) -> None:
        from langgraph.checkpoint.base import empty_checkpoint
        from langgraph.checkpoint.base.id import uuid6

        checkpoint = {**empty_checkpoint(), "id": str(uuid6()), "channel_values": {"messages": messages}}
        config: Any = {"configurable": {"thread_id": session, "checkpoint_ns": ""}}
        self._saver.put(config, checkpoint, {"source": "loop", "step": 1}, {})  # type: ignore[arg-type,typeddict-item]

    def append(self, session: str, text: str) -> Any:
        self._put(session, [{"role": "user", "content": text}])

    def fill(self, session: str, count: int) -> None:
        self._put(session, [{"role": "user", "content": TEXT}] * count)

    def last(self, session: str, count: int) -> Any:
        return self.whole(session)[-count:]

    def whole(self, session: str) -> Any:
        found: Any = self._saver.get_tuple({"configurable": {"thread_id": session, "checkpoint_ns": ""}})
        return found.checkpoint["channel_values"]["messages"]


class Agno(Peer):
    """agno, SqliteDb: a run of one message."""

    def __init__(self, folder: Path, synchronous: str) -> None:
        super().__init__(folder, synchronous)
        from agno.db.sqlite import SqliteDb

        self._db = SqliteDb(db_file=self.path)
        self.append("first", TEXT)

    def append(self, session: str, text: str) -> Any:
        from agno.models.message import Message
        from agno.run.agent import RunOutput
        from agno.run.base import RunStatus

        index = self._next(session)
        message = Message(role="user", content=text)
        run = RunOutput(
            status=RunStatus.completed,
            run_id=uuid.uuid4().hex,
            agent_id="a",
            session_id=session,
            content="",
            messages=[message],
        )
        self._db.upsert_run(run, session_id=session, user_id="user", run_index=index)

    def _next(self, session: str) -> int:
        from agno.session import AgentSession

        with self.lock:
            if session not in self.sessions:
                self._db.upsert_session(AgentSession(session_id=session, agent_id="a", user_id="user"))
                self.sessions[session] = 0
            self.sessions[session] += 1
            return int(self.sessions[session]) - 1

    def last(self, session: str, count: int) -> Any:
        return self._db.get_session(session, runs_limit=count).runs  # type: ignore[union-attr]

    def whole(self, session: str) -> Any:
        return self._db.get_session(session).runs  # type: ignore[call-arg,union-attr]


ALL = {
    "openai-agents SQLiteSession": "OpenAISQLite",
    "openai-agents SQLAlchemySession": "OpenAISQLAlchemy",
    "google-adk DatabaseSessionService": "ADKDatabase",
    "google-adk SqliteSessionService": "ADKSQLite",
    "langchain SQLChatMessageHistory": "LangChain",
    "langgraph SqliteSaver.put": "LangGraph",
    "agno SqliteDb": "Agno",
}
