"""Spans around the door, where OpenTelemetry is installed (`pip install 'sessionstore[otel]'`); without it this costs nothing.

A span is from a call's coming to its answer: all that it waited for its turn, the lock and the disk. It says how that went and
how large it was, and nothing of what was in it.
"""

from collections.abc import Callable
from typing import Any

from sessionstore.door import Carry
from sessionstore.errors import SessionStoreError
from sessionstore.items import Fold, Keys, Lane
from sessionstore.transaction import Transaction

try:
    from opentelemetry import trace
except ImportError:
    trace = None  # type: ignore[assignment]

NAME = "sessionstore.write"


def traced(carry: Carry) -> Carry:
    """The same, in a span."""
    if trace is None:
        return carry
    tracer = trace.get_tracer("sessionstore")

    def carry_in_span(change: Callable[[Transaction], Any], lane: Lane, keys: Keys, size: int, fold: Fold | None) -> Any:
        span = tracer.start_span(NAME, attributes={"sessionstore.lane": lane.name.lower(), "sessionstore.bytes": size})
        try:
            answer = carry(change, lane, keys, size, fold)
        except BaseException as error:
            _end(span, error)
            raise
        if hasattr(answer, "add_done_callback"):
            answer.add_done_callback(lambda done: _end(span, None if done.cancelled() else done.exception()))
        else:
            _end(span, None)
        return answer

    return carry_in_span


def _end(span: Any, error: BaseException | None) -> None:
    if error is not None:
        # Its words may have an id in them.
        kind = error.code if isinstance(error, SessionStoreError) else type(error).__name__
        span.set_attribute("error.type", kind)
        span.set_status(trace.StatusCode.ERROR, kind)
    span.end()
