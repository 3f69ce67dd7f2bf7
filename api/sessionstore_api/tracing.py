"""Spans of ours belong to the trace that the caller says (W3C `traceparent`), where OpenTelemetry is installed."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from starlette.types import Scope

try:
    from opentelemetry import context, propagate
except ImportError:
    propagate = None  # type: ignore[assignment]

NOTHING: AbstractContextManager[None] = nullcontext()


def continued(scope: Scope) -> AbstractContextManager[None]:
    """Meanwhile spans are the caller's, if he has a trace."""
    if propagate is None or not any(name == b"traceparent" for name, _ in scope["headers"]):
        return NOTHING
    return _attached({name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]})


@contextmanager
def _attached(headers: dict[str, Any]) -> Iterator[None]:
    token = context.attach(propagate.extract(headers))
    try:
        yield
    finally:
        context.detach(token)
