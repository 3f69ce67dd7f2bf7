"""Who wants to know of changes is told when there may be some: one watcher for each store, however many want to know.

This process's own commits ring a bell; for other processes' the database is asked every 25 ms. That an expired lease is expired
no transaction says, so leases are looked at as well.
"""

import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from sessionstore import queries
from sessionstore.database import Database, Pulse
from sessionstore.errors import Busy, SessionStoreError
from sessionstore.transaction import Transaction

log = logging.getLogger(__name__)
POLL_SECONDS = 0.025
LEASES_SECONDS = 0.25
# Between two looks, so that a flood of commits costs a part of a core at most.
REST_SECONDS = 0.002
TROUBLE_SECONDS = 0.5
STOPPING_SECONDS = 5.0
NEWS_PER_LOOK = 1_000


class Topic(NamedTuple):
    """What somebody wants to know of: a conversation, or, without an id, all of an owner's."""

    owner: str
    id: str | None


class News(NamedTuple):
    """What is known of a conversation that has changed, without reading it."""

    owner: str
    id: str
    change: int
    generation: int | None
    interrupt_requested_at: int | None
    queued_inputs: int


Tell = Callable[[News | None], None]
"""Is called in the watcher's thread, does little and raises nothing. Without news: look for yourself."""


class Watch:
    """Tells whoever subscribed. Its thread runs as long as anybody does. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._subscribers: dict[Topic, list[Tell]] = {}
        self._changing, self._bell, self._stopping = threading.RLock(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def subscribe(self, topic: Topic, tell: Tell) -> None:
        """Have `tell` called after each change. What changes from now on is told: subscribe first, and read then.

        Raises `Busy` when no thread is to be had.
        """
        starting = None
        with self._changing:
            self._subscribers.setdefault(topic, []).append(tell)
            if self._thread is None and not self._stopping.is_set():
                starting = self._thread = threading.Thread(target=self._serve, name="sessionstore-watch", daemon=True)
        if starting is not None:
            try:
                starting.start()
            except RuntimeError:
                self._thread = None
                self.unsubscribe(topic, tell)
                raise Busy from None

    def unsubscribe(self, topic: Topic, tell: Tell) -> None:
        """Call it no more."""
        with self._changing:
            telling = self._subscribers.get(topic, [])
            if tell in telling:
                telling.remove(tell)
            if not telling:
                self._subscribers.pop(topic, None)

    def stop(self) -> None:
        """End the thread; after some seconds it is left to itself. Also from a signal handler."""
        self._stopping.set()
        self._bell.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread() and thread.ident is not None:
            thread.join(STOPPING_SECONDS)

    def tell_everybody(self) -> None:
        """Have all of them look for themselves."""
        for topic in list(self._subscribers):
            self._tell(topic, None)

    def _serve(self) -> None:
        self._database.on_commit(self._bell.set)
        while self._wanted():
            try:
                with self._database.pulse() as pulse:
                    self._follow(pulse)
            except Exception as error:
                # Their own look will tell them what is wrong.
                log.warning("the watcher stumbled", exc_info=None if isinstance(error, SessionStoreError) else error)
                self.tell_everybody()
                self._stopping.wait(TROUBLE_SECONDS)
        # Why nobody watches any more, their own look will tell them as well.
        self.tell_everybody()

    def _wanted(self) -> bool:
        with self._changing:
            if self._has_work():
                return True
            self._thread = None
            return False

    def _has_work(self) -> bool:
        return bool(self._subscribers) and not self._stopping.is_set() and self._database.refusal is None

    def _follow(self, pulse: Pulse) -> None:
        pulse.beats()
        seen = self._newest(pulse)
        expired: set[Any] = set()
        # Between their subscribing and this moment something may have happened.
        self.tell_everybody()
        look_at_leases = 0.0
        while self._has_work():
            if pulse.beats() or self._bell.is_set():
                self._bell.clear()
                seen = self._look(pulse, seen)
                time.sleep(REST_SECONDS)
            if time.monotonic() >= look_at_leases:
                expired = self._look_at_leases(pulse, expired)
                look_at_leases = time.monotonic() + LEASES_SECONDS
            self._bell.wait(POLL_SECONDS)

    def _newest(self, pulse: Pulse) -> int:
        return pulse.read(lambda transaction: int(transaction.row(queries.NEWEST_CHANGE)[0]))

    def _look(self, pulse: Pulse, seen: int) -> int:
        """Tell what came after that change. Answers up to which one everything is told; what is newer is told again."""
        settled, after = None, seen
        while True:
            newest, rows = pulse.read(partial(_news, after=after))
            # In front of what later pages show somebody may have come in meanwhile.
            settled = newest if settled is None else settled
            if newest < seen:
                # An older state was brought back.
                self.tell_everybody()
            news = {Topic(row[0], row[1]): News(*row) for row in rows}
            for topic, one in news.items():
                self._tell(topic, one)
            for owner in {topic.owner for topic in news}:
                self._tell(Topic(owner, None), None)
            if len(rows) < NEWS_PER_LOOK:
                return settled
            after = rows[-1][2]

    def _look_at_leases(self, pulse: Pulse, before: set[Any]) -> set[Any]:
        """Tell whose lease has run out since the look before, or no longer has, and answer all that have."""
        expired = set(pulse.read(_expired))
        for owner, conversation_id, *_ in expired ^ before:
            self._tell(Topic(owner, conversation_id), None)
            self._tell(Topic(owner, None), None)
        return expired

    def _tell(self, topic: Topic, news: News | None) -> None:
        for tell in tuple(self._subscribers.get(topic, ())):
            tell(news)


def _expired(transaction: Transaction) -> list[Any]:
    return transaction.rows(queries.EXPIRED, now=transaction.now())


def _news(transaction: Transaction, after: int) -> tuple[int, list[Any]]:
    newest = int(transaction.row(queries.NEWEST_CHANGE)[0])
    return newest, transaction.rows(queries.NEWS, after=after, count=NEWS_PER_LOOK)
