"""Who runs a write: the thread that calls, when it is the only one, else a thread of the store's own, for many calls at once.

One commit costs one wait for the disk, whoever shares it. Groups form by themselves: what arrives while one is written is the
next one, and nobody ever waits for a group to grow (DESIGN.md, rule 7).
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from sessionstore.errors import Busy
from sessionstore.items import Item, ThreadItem, answer, fail
from sessionstore.sqlite.lanes import Lanes
from sessionstore.sqlite.writer import Writer

log = logging.getLogger(__name__)
# How long the thread stays awake for the threads that it has just answered.
AWAKE_SECONDS = 0.002


class Groups:
    """Runs calls in the order of their lanes. The thread is started when it is first needed."""

    def __init__(self, writer: Writer, places: int, name: str) -> None:
        self._writer, self._lanes, self._name = writer, Lanes(places), name
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._awake = False

    @property
    def idle(self) -> bool:
        """Whether nobody waits, nor is about to: then a caller may run his call himself."""
        return not self._awake and not len(self._lanes)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._lanes)

    def join(self, item: Item) -> None:
        """Have a call run. Raises `Busy` when too many wait, or when no thread is to be had, and `Closed`."""
        self._lanes.join(item)
        if self._thread is None:
            try:
                self._start()
            except BaseException:
                # It stays in line, and nobody will run it.
                item.begin()
                raise

    def run(self, item: ThreadItem) -> Any:
        """Have a call run, and wait for what becomes of it."""
        self.join(item)
        return item.wait()

    def close(self, seconds: float) -> None:
        """Run what waits, and end the thread; after that time it is left to itself."""
        self._lanes.close()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(seconds)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    raise Busy from None
                self._thread = thread

    def _serve(self) -> None:
        crowd = False
        try:
            while self._lanes.wait(AWAKE_SECONDS if crowd else 0) or self._sleep():
                try:
                    crowd = self._round() > 1
                except Exception:
                    # Whoever took part has been answered; the others are waiting.
                    log.exception("the writer stumbled")
        finally:
            self._awake, self._thread = False, None

    def _sleep(self) -> bool:
        """Until somebody comes. False when nobody will any more."""
        self._awake = False
        came = self._lanes.wait()
        self._awake = True
        return came

    def _round(self) -> int:
        """One transaction. Answers how many calls took part."""
        ran: list[Item] = []
        chores: Sequence[Callable[[], None]] = ()
        try:
            ran = self._transaction()
            chores = self._writer.chores()
            if not chores:
                # The other processes go on while we wake our callers up.
                self._writer.leave()
        finally:
            answer(ran)
        if chores:
            for chore in chores:
                chore()
            self._writer.leave()
        return len(ran)

    def _transaction(self) -> list[Item]:
        try:
            self._writer.wait()
            self._writer.begin()
        except BaseException as error:  # noqa: BLE001  # it is what everybody is told
            return self._refuse(self._writer.known(error))
        items = self._lanes.take()
        left = self._writer.run(items) if items else []
        self._lanes.put_back(left)
        return items[: len(items) - len(left)]

    def _refuse(self, error: BaseException) -> list[Item]:
        """Nobody can write now. While the database is busy, those go on waiting who have the time."""
        now = time.monotonic()
        refused = self._lanes.leave(lambda item: not isinstance(error, Busy) or item.deadline <= now)
        fail(refused, error)
        return refused
