"""A turn while it goes on: what `generate` hands out."""

import copy
import logging
import secrets
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from sessionstore.drafts import Draft
from sessionstore.errors import Closed, LeaseLost, OutcomeUnknown, PreconditionFailed, SessionStoreError, Unavailable
from sessionstore.keeper import GONE, Keeper, running_time
from sessionstore.model import Acquired, Answer, Conversation, Finished, FinishOutcome, Lease, Message, Tag
from sessionstore.ongoing import Ongoing

log = logging.getLogger(__name__)
Alarm = Callable[[], None]
# How long the end of a turn is tried when the database has no time.
LEAVING_SECONDS = 10.0
LEAVING_PAUSE = 0.1


class Keepable(Protocol):
    """What the thread that keeps a lease needs of a store, blocking."""

    final: tuple[type[SessionStoreError], ...]
    """Errors after which this store answers no more."""

    turns: Ongoing
    """The turns that are kept, and given back when it is closed."""

    def renew(self, id: str, *, token: str | None, ttl_ms: int | None = None) -> Answer[Any]:
        """A sign of life."""

    def release(self, id: str, *, token: str | None) -> Answer[Any]:
        """Give the lease back."""

    def heed(self, id: str, generation: int, alarm: Alarm) -> Callable[[], None]:
        """Call `alarm` when something may have happened to the lease. Answers what ends that."""


class TurnState:
    """What is known of a turn that goes on, whichever way the store is called."""

    def __init__(self, keepable: Keepable, id: str, holder: str, token: str | None, ttl_ms: int, **asked: Any) -> None:
        self._keepable, self.id, self._ttl_ms = keepable, id, ttl_ms
        self.token = secrets.token_urlsafe(32) if token is None else token
        self._asked = {"holder": holder, "token": self.token, "ttl_ms": ttl_ms, **asked}
        self._acquired: Acquired | None = None
        self._lease: Lease | None = None
        self._gone: SessionStoreError | None = None
        self._gone_meanwhile: SessionStoreError | None = None
        self._finished = self._finishing = self._interrupted = False
        self._known: dict[str, Tag] = {}
        self._keeper = Keeper(self._renew, self._lose, ttl_ms, keepable.final)
        self._unheed: Callable[[], None] | None = None

    @property
    def generation(self) -> int:
        """The number of this turn, which rises for ever: a fence for what else you write to."""
        return self._begun.generation

    @property
    def conversation(self) -> Conversation:
        """The conversation as it was when the turn began."""
        return self._begun.conversation

    @property
    def messages(self) -> list[Message]:
        """The messages that the turn was begun with."""
        return self._begun.messages

    @property
    def interrupted(self) -> bool:
        """Whether somebody has asked for the turn to stop, or it is over already."""
        return self._interrupted or self._gone is not None

    @property
    def lost(self) -> SessionStoreError | None:
        """Why the turn is over, when somebody else has ended it."""
        return self._gone

    @abstractmethod
    def _stop(self) -> None:
        """Wake up who waits for the turn to be stopped. From any thread."""

    @property
    def _begun(self) -> Acquired:
        if self._acquired is None:
            raise RuntimeError("the turn has not begun: use `with`")
        return self._acquired

    def _begin(self, answer: Answer[Acquired], sent: float) -> None:
        self._acquired = answer.value
        self._note(answer.lease)
        try:
            self._keeper.start(sent)
            self._unheed = self._keepable.heed(self.id, self.generation, self._keeper.hurry)
            self._keepable.turns.add(self)
        except BaseException:
            self._keeper.stop()
            self._abandon()
            raise
        if answer.replayed:
            # An acquire that is repeated leaves the time to live as it was.
            self._keeper.hurry()

    def _give_up(self) -> None:
        """Nobody will know of this turn: do not let others wait for its lease to run out."""
        with suppress(SessionStoreError):
            self._keepable.release(self.id, token=self.token)

    def _abandon(self) -> None:
        self._give_up()

    def give_back(self) -> bool:
        """See `ongoing.Kept`."""
        self._keeper.stop()
        try:
            self._keepable.release(self.id, token=self.token)
        except Unavailable:
            return False
        except SessionStoreError:
            # Somebody else has ended it already, or this is called inside a change.
            return True
        return True

    def end(self, error: Closed) -> None:
        """See `ongoing.Kept`."""
        self._leave()
        self._lose(error)

    def _leave(self) -> None:
        self._keepable.turns.discard(self)
        self._keeper.stop()
        if self._unheed is not None:
            self._unheed()

    @contextmanager
    def _ending(self) -> Iterator[None]:
        # A renewal that comes after the end is refused, and that is no loss.
        self._finishing = True
        try:
            yield
            self._finished = True
        except GONE as error:
            self._gone_meanwhile = error
            raise
        finally:
            self._finishing = False
            if self._finished:
                self._leave()
            elif self._gone_meanwhile is not None:
                self._lose(self._gone_meanwhile)

    def _check(self) -> None:
        """Raise why there is nothing left to write to."""
        if self._gone is not None:
            raise copy.copy(self._gone)
        if self._finished:
            raise LeaseLost(conversation_id=self.id, generation=self.generation)

    def _renew(self) -> None:
        self._note(self._keepable.renew(self.id, token=self.token, ttl_ms=self._ttl_ms).lease)

    def _heard(self, answer: Answer[Any], sent: float) -> None:
        self._keeper.extended(sent)
        self._note(answer.lease)

    def _note(self, lease: Lease | None) -> None:
        if lease is None:
            return
        self._lease = lease
        if lease.interrupt_requested and not self._interrupted:
            self._interrupted = True
            self._stop()

    def _lose(self, error: SessionStoreError) -> None:
        if self._finishing:
            self._gone_meanwhile = error
        elif not self._finished:
            self._gone = self._gone or error
            self._stop()

    def _outcome_after(self, error: BaseException | None) -> FinishOutcome:
        if error is None:
            return "interrupted" if self._interrupted else "completed"
        return "failed" if isinstance(error, Exception) else "interrupted"


def rest(seconds: float) -> None:
    """Between two tries."""
    time.sleep(seconds)


def growing(id: str, content: Any, role: str, status: Literal["partial", "complete"], metadata: Any) -> Draft:
    """A reply as it is now."""
    return Draft(id=id, role=role, content=content, status=status, metadata=metadata)


class LiveTurn(TurnState):
    """A turn that goes on. Its calls may come from any thread, but the saves of one message one after the other."""

    def __init__(self, store: Any, keepable: Keepable, id: str, holder: str, **asked: Any) -> None:
        super().__init__(keepable, id, holder, **asked)
        self._store = store
        self.stopped = threading.Event()
        """Set as soon as it is known that the turn is to stop, or was ended by somebody else."""

    def save(
        self,
        id: str,
        content: Any,
        *,
        role: str = "assistant",
        status: Literal["partial", "complete"] = "partial",
        metadata: dict[str, Any] | None = None,
    ) -> Message:
        """Store a reply as it is now; again and again while it grows. It is complete when you say so, or the turn completes."""
        draft = growing(id, content, role, status, metadata)
        # Forgotten until the answer is there: a save whose answer never came may have been done.
        known = self._known.pop(id, None)
        try:
            saved = self._call("put", draft, if_match=known, only_create=known is None).message
        except PreconditionFailed as refused:
            stored = self._store.message(self.id, id)
            if refused.same and stored.version == refused.version:
                saved = stored
            elif known is None:
                saved = self._call("put", draft, if_match=stored.tag).message
            else:
                raise
        self._known[id] = saved.tag
        return saved  # type: ignore[no-any-return]

    def append(self, messages: Sequence[Draft]) -> list[Message]:
        """Store messages at the end: what a tool said, say."""
        return self._call("append", messages)  # type: ignore[no-any-return]

    def inputs(self) -> list[Message]:
        """What was queued for this turn meanwhile, put into the transcript now. Costs nothing while nothing waits."""
        self._check()
        if self._lease is not None and not self._lease.queued_inputs:
            return []
        return self._call("claim_inputs")  # type: ignore[no-any-return]

    def finish(
        self,
        messages: Sequence[Draft] = (),
        *,
        outcome: FinishOutcome = "completed",
        usage: dict[str, Any] | None = None,
        unless_inputs: bool = False,
    ) -> Finished:
        """Store the last messages and end the turn, both or neither. Raises `InputsPending` with `unless_inputs`.

        What was still growing is complete when the turn is `completed`, and `interrupted` otherwise.
        """
        how = {"outcome": outcome, "usage": usage, "unless_inputs": unless_inputs, "complete": outcome == "completed"}
        with self._ending():
            finished: Finished = self._call("finish", messages, **how)
        return finished

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        self._check()
        sent = running_time()
        try:
            answer = getattr(self._store, name)(self.id, *args, token=self.token, **options)
        except GONE as error:
            self._lose(error)
            raise
        except SessionStoreError as error:
            self._note(error.lease)
            raise
        self._heard(answer, sent)
        return answer.value

    def _stop(self) -> None:
        self.stopped.set()

    def __enter__(self) -> Self:
        with self._keepable.turns.entering():
            self._enter()
        return self

    def _enter(self) -> None:
        sent = running_time()
        try:
            answer = self._store.acquire(self.id, **self._asked)
        except BaseException as error:
            # Where nobody knows whether it was done, it shall not have been.
            if isinstance(error, OutcomeUnknown) or not isinstance(error, Exception):
                self._give_up()
            raise
        self._begin(answer, sent)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if not self._finished and (error is None or self._gone is None):
                self._finish_patiently(self._outcome_after(error))
        except SessionStoreError:
            if error is None:
                raise
            log.warning("a turn could not be ended; its lease runs out by itself")
        finally:
            self._leave()

    def _finish_patiently(self, outcome: FinishOutcome) -> None:
        """End the turn, also when the database has no time just now: until then the lease is kept."""
        end = time.monotonic() + LEAVING_SECONDS
        while True:
            try:
                self.finish(outcome=outcome)
                return
            except Unavailable as error:
                if isinstance(error, self._keepable.final) or time.monotonic() > end:
                    raise
            rest(LEAVING_PAUSE)
