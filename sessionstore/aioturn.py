"""A turn while it goes on, for asyncio programs: what `AsyncStore.generate` hands out."""

import asyncio
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self

from sessionstore import liveturn
from sessionstore.drafts import Draft
from sessionstore.errors import OutcomeUnknown, PreconditionFailed, SessionStoreError, Unavailable
from sessionstore.keeper import GONE, running_time
from sessionstore.liveturn import Keepable, TurnState, growing, log
from sessionstore.model import Acquired, Answer, Finished, FinishOutcome, Message


class AsyncLiveTurn(TurnState):
    """A turn that goes on. Its lease is kept in a thread, so a loop that stands still loses nothing."""

    def __init__(self, store: Any, keepable: Keepable, id: str, holder: str, **asked: Any) -> None:
        super().__init__(keepable, id, holder, **asked)
        self._store = store
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leaving: asyncio.Task[None] | None = None
        self.stopped = asyncio.Event()
        """Set as soon as it is known that the turn is to stop, or was ended by somebody else."""

    async def save(
        self,
        id: str,
        content: Any,
        *,
        role: str = "assistant",
        status: Literal["partial", "complete"] = "partial",
        metadata: dict[str, Any] | None = None,
    ) -> Message:
        """See `LiveTurn.save`."""
        draft = growing(id, content, role, status, metadata)
        # Forgotten until the answer is there: a save that was cancelled may have been done.
        known = self._known.pop(id, None)
        try:
            saved = (await self._call("put", draft, if_match=known, only_create=known is None)).message
        except PreconditionFailed as refused:
            stored = await self._store.message(self.id, id)
            if refused.same and stored.version == refused.version:
                saved = stored
            elif known is None:
                saved = (await self._call("put", draft, if_match=stored.tag)).message
            else:
                raise
        self._known[id] = saved.tag
        return saved  # type: ignore[no-any-return]

    async def append(self, messages: Sequence[Draft]) -> list[Message]:
        """See `LiveTurn.append`."""
        return await self._call("append", messages)  # type: ignore[no-any-return]

    async def inputs(self) -> list[Message]:
        """See `LiveTurn.inputs`."""
        self._check()
        if self._lease is not None and not self._lease.queued_inputs:
            return []
        return await self._call("claim_inputs")  # type: ignore[no-any-return]

    async def finish(
        self,
        messages: Sequence[Draft] = (),
        *,
        outcome: FinishOutcome = "completed",
        usage: dict[str, Any] | None = None,
        unless_inputs: bool = False,
    ) -> Finished:
        """See `LiveTurn.finish`."""
        how = {"outcome": outcome, "usage": usage, "unless_inputs": unless_inputs, "complete": outcome == "completed"}
        with self._ending():
            finished: Finished = await self._call("finish", messages, **how)
        return finished

    async def _call(self, name: str, *args: Any, **options: Any) -> Any:
        self._check()
        sent = running_time()
        try:
            answer = await getattr(self._store, name)(self.id, *args, token=self.token, **options)
        except GONE as error:
            self._lose(error)
            raise
        except SessionStoreError as error:
            self._note(error.lease)
            raise
        self._heard(answer, sent)
        return answer.value

    def _stop(self) -> None:
        if self._loop is None:
            return
        # A closed loop waits for nothing.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.stopped.set)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        with self._keepable.turns.entering():
            await self._enter()
        return self

    async def _enter(self) -> None:
        sent = running_time()
        entering: asyncio.Task[Answer[Acquired]] = asyncio.ensure_future(self._store.acquire(self.id, **self._asked))
        try:
            answer = await asyncio.shield(entering)
        except asyncio.CancelledError:
            # Once it is known what became of it.
            entering.add_done_callback(self._abandon_entered)
            raise
        except OutcomeUnknown:
            # Where nobody knows whether it was done, it shall not have been.
            self._abandon()
            raise
        self._begin(answer, sent)

    def _abandon_entered(self, entered: asyncio.Task[Answer[Acquired]]) -> None:
        if entered.cancelled() or entered.exception() is None:
            self._abandon()

    def _abandon(self) -> None:
        with suppress(RuntimeError):
            threading.Thread(target=self._give_up, name="sessionstore-release", daemon=True).start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._finished or (error is not None and self._gone is not None):
            self._leave()
            return
        # Also when we are cancelled now: what is begun goes on to its end.
        self._leaving = asyncio.ensure_future(self._finish_patiently(self._outcome_after(error)))
        try:
            await asyncio.shield(self._leaving)
        except SessionStoreError:
            if error is None:
                raise
            log.warning("a turn could not be ended; its lease runs out by itself")

    async def _finish_patiently(self, outcome: FinishOutcome) -> None:
        """See `LiveTurn`."""
        end = time.monotonic() + liveturn.LEAVING_SECONDS
        try:
            while True:
                try:
                    await self.finish(outcome=outcome)
                    return
                except Unavailable as error:
                    if isinstance(error, self._keepable.final) or time.monotonic() > end:
                        raise
                await asyncio.sleep(liveturn.LEAVING_PAUSE)
        finally:
            self._leave()
