"""Keeps a lease alive while its holder works: in a thread of its own, which no busy event loop and no slow model holds up."""

import logging
import random
import threading
import time
from collections.abc import Callable

from sessionstore.errors import ConversationDeleted, ConversationNotFound, LeaseLost, SessionStoreError

log = logging.getLogger(__name__)
GONE = (LeaseLost, ConversationDeleted, ConversationNotFound)
# Sleeping does not count time in suspend, so a sleeper has to look at the clock that does.
LONGEST_SLEEP = 1.0
# This clock runs on while the machine is suspended; leases do as well.
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def running_time() -> float:
    """Seconds since the machine was started, suspended or not."""
    return time.clock_gettime(CLOCK)


class Keeper:
    """Renews at a third of the time to live, a little sooner or later, counted from before the last sign of life was sent.

    `renew` sends one; `lost` is told the error that says that there is nothing left to keep: `GONE`, or one of `final`. Both
    are called in the thread.
    """

    def __init__(
        self,
        renew: Callable[[], object],
        lost: Callable[[SessionStoreError], None],
        ttl_ms: int,
        final: tuple[type[SessionStoreError], ...] = (),
    ) -> None:
        self._renew, self._lost, self._ttl, self._final = renew, lost, ttl_ms / 1000, (*GONE, *final)
        self._waking, self._hurry, self._over = threading.Condition(), False, False
        self._due = 0.0
        self._thread = threading.Thread(target=self._keep, name="sessionstore-keeper", daemon=True)

    def start(self, sent: float) -> None:
        """Begin; the lease was asked for at that running time."""
        self.extended(sent)
        self._thread.start()

    def extended(self, sent: float) -> None:
        """The holder has sent a sign of life himself, at that running time."""
        self._due = sent + self._ttl / 3 * random.uniform(0.8, 1.0)  # noqa: S311  # jitter

    def hurry(self) -> None:
        """Something may have happened to the lease: ask now."""
        with self._waking:
            self._hurry = True
            self._waking.notify()

    def stop(self) -> None:
        """Renew no more. What is being sent is not waited for: it is refused, or does no harm."""
        with self._waking:
            self._over = True
            self._waking.notify()

    def _keep(self) -> None:
        while self._sleep():
            sent = running_time()
            try:
                self._renew()
            except Exception as error:
                if isinstance(error, SessionStoreError) and isinstance(error, self._final):
                    self._lost(error)
                    return
                # The lease may yet be kept, or revived as long as nobody has come.
                log.warning("a lease could not be renewed", exc_info=None if isinstance(error, SessionStoreError) else error)
                self._due = sent + min(1.0, self._ttl / 10)
            else:
                self.extended(sent)

    def _sleep(self) -> bool:
        """Until it is time. False when it never will be."""
        with self._waking:
            while not self._over and not self._hurry and (left := self._due - running_time()) > 0:
                self._waking.wait(min(left, LONGEST_SLEEP))
            self._hurry = False
            return not self._over
