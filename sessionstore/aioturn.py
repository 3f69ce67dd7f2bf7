"""A turn while it goes on, for asyncio programs: what `AsyncStore.generate` hands out."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self

from sessionstore.drafts import Draft
from sessionstore.errors import PreconditionFailed, SessionStoreError
from sessionstore.keeper import GONE, running_time
from sessionstore.liveturn import Keepable, TurnState, growing
from sessionstore.model import Finished, FinishOutcome, Message


class AsyncLiveTurn(TurnState):
    """A turn that goes on. Its lease is kept in a thread, so a loop that stands still loses nothing."""

    def __init__(self, store: Any, keepable: Keepable, id: str, holder: str, **asked: Any) -> None:
        super().__init__(keepable, id, holder, **asked)
        self._store = store
        self._loop: asyncio.AbstractEventLoop | None = None
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
        draft, known = growing(id, content, role, status, metadata), self._known.get(id)
        try:
            saved = (await self._call("put", draft, if_match=known, only_create=known is None)).message
        except PreconditionFailed as refused:
            stored = await self._store.message(self.id, id)
            if refused.same:
                saved = stored
            elif known is None:
                saved = (await self._call("put", draft, if_match=stored.tag)).message
            else:
                raise
        return self._saved(draft, saved)

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
        last = self._last(messages, outcome)
        with self._ending():
            finished: Finished = await self._call("finish", last, outcome=outcome, usage=usage, unless_inputs=unless_inputs)
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
        self._loop, sent = asyncio.get_running_loop(), running_time()
        self._begin(await self._store.acquire(self.id, **self._asked), sent)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._finished:
            return
        try:
            if error is None:
                await self.finish(outcome=self._outcome_after(None))
            elif self._gone is None:
                # Also when we are cancelled: what is begun goes on to its end.
                with suppress(SessionStoreError):
                    await asyncio.shield(self.finish(outcome=self._outcome_after(error)))
        finally:
            self._end()
