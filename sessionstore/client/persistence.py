"""How long, and how often, a call is tried that got no answer."""

import random
import time

import httpx2

from sessionstore.client.decoding import seconds
from sessionstore.client.exchange import Exchange
from sessionstore.errors import (
    Closed,
    OutcomeUnknown,
    PreconditionFailed,
    SessionStoreError,
    Unavailable,
    UnexpectedAnswer,
    Unreachable,
)

FIRST_DELAY, LONGEST_DELAY = 0.05, 2.0
# What a server that is not ours says in front of one that is not there.
GATEWAY = (502, 503, 504)
NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)


class Persistence:
    """One call's patience, from now on. What got no answer at all is tried once more in any case, if there is any patience."""

    def __init__(self, exchange: Exchange, patience: float) -> None:
        self._exchange, self._patience, self._end = exchange, patience, time.monotonic() + patience
        self._tries = 0

    def after_silence(self, failure: httpx2.RequestError) -> float:
        """How long to wait before the next try. Raises `Unreachable` or `OutcomeUnknown` when there is no point in one."""
        if not isinstance(failure, NOT_SENT):
            self._maybe_done()
        first = not self._tries and self._patience > 0
        return self._delay(Unreachable(reason=str(failure) or type(failure).__name__), None, certain=first)

    def after_refusal(self, error: SessionStoreError, retry_after: str | None) -> float:
        """How long to wait before the next try. Raises the error when it is no matter of time."""
        gateway = isinstance(error, UnexpectedAnswer) and error.status in GATEWAY
        if isinstance(error, PreconditionFailed) and self._exchange.again and not error.same:
            # It was our own first try that changed the state, or somebody else.
            raise OutcomeUnknown from error
        if not gateway and not isinstance(error, Unavailable):
            raise error
        if gateway or isinstance(error, OutcomeUnknown):
            self._maybe_done()
        if isinstance(error, Closed):
            # The server is, and may start again; `Closed` itself is said of this client.
            error = Unreachable(reason="it is stopping")
        return self._delay(error, retry_after)

    def after(self, failure: Exception) -> float:
        """Either, for a stream."""
        if isinstance(failure, httpx2.RequestError):
            return self.after_silence(failure)
        if isinstance(failure, SessionStoreError):
            return self.after_refusal(failure, None)
        raise failure

    def _maybe_done(self) -> None:
        self._exchange.again = self._exchange.again or not self._exchange.reads

    def _delay(self, error: SessionStoreError, retry_after: str | None, *, certain: bool = False) -> float:
        delay: float = min(LONGEST_DELAY, FIRST_DELAY * 2.0**self._tries) * random.uniform(0.5, 1.0)  # noqa: S311  # jitter
        self._tries = min(self._tries + 1, MANY)
        delay = max(delay, seconds(retry_after))
        if self._exchange.again and self._exchange.once:
            raise OutcomeUnknown
        if time.monotonic() + delay > self._end and not certain:
            raise OutcomeUnknown if self._exchange.again else error
        return delay


MANY = 20
