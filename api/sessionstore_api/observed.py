"""What is seen of each request: its id, how it ended, how long it took. Never what was said in it."""

import logging
import re
import time
from collections import Counter, defaultdict
from random import getrandbits
from typing import Any

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sessionstore.measures import SECONDS, Histogram
from sessionstore_api import tracing

log: Any = structlog.get_logger("sessionstore_api.requests")
_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_TRACE = re.compile(rb"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
INTERNAL = "internal-error"
ELSEWHERE = "other"
"""The route of what is none."""


class Tally:
    """How requests ended, by method, route and status, and how long they took."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, int]] = Counter()
        self.problems: Counter[str] = Counter()
        self.seconds: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(SECONDS))
        self.under_way = 0

    def refused(self, code: str, status: int) -> None:
        """Count what was refused before there was a request."""
        self.requests[ELSEWHERE, ELSEWHERE, status] += 1
        self.problems[code] += 1


class Observed:
    """Middleware around everything. A request is logged when it is over, a stream of events as well."""

    def __init__(self, app: ASGIApp, tally: Tally) -> None:
        self._app, self._tally = app, tally

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and see what becomes of it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, ended = time.perf_counter(), Ended(scope)
        header = (b"x-request-id", ended.request_id.encode())

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start":
                ended.status = message["status"]
                message["headers"] = [*message["headers"], header]
            await send(message)

        self._tally.under_way += 1
        try:
            with tracing.continued(scope):
                await self._app(scope, receive, note)
        except Exception:
            # It is answered, and logged, outside of here.
            ended.state["code"] = INTERNAL
            raise
        finally:
            self._tally.under_way -= 1
            self._note(ended, time.perf_counter() - began)

    def _note(self, ended: "Ended", seconds: float) -> None:
        state, scope = ended.state, ended.scope
        route, code = state.get("route", ELSEWHERE), state.get("code")
        # What nobody knows is not counted by name: names are for whoever sends them to choose.
        method = scope["method"] if route != ELSEWHERE else ELSEWHERE
        self._tally.requests[method, route, ended.status] += 1
        if code is not None:
            self._tally.problems[code] += 1
        if not state.get("stream"):
            self._tally.seconds[route].observe(seconds)
        # Under another server than `serve` the log is that one's.
        if not (structlog.is_configured() and log.is_enabled_for(logging.INFO)):
            return
        said = {"method": method, "route": route, "status": ended.status, "ms": round(seconds * 1_000, 2)}
        told = {"code": code, "key": state.get("key"), "request_id": ended.request_id, "trace_id": ended.trace_id}
        log.info("request", **said, **{name: value for name, value in told.items() if value is not None})


class Ended:
    """A request that will have been."""

    __slots__ = ("request_id", "scope", "state", "status", "trace_id")

    def __init__(self, scope: Scope) -> None:
        self.scope, self.state = scope, scope.setdefault("state", {})
        # Who gets no answer at all, since his connection was closed, or since we made a mistake.
        self.status = 500
        self.request_id, self.trace_id = "", None
        for name, value in scope["headers"]:
            if name == b"x-request-id" and _ID.fullmatch(value):
                self.request_id = value.decode()
            elif name == b"traceparent" and (found := _TRACE.fullmatch(value)):
                self.trace_id = found[1].decode()
        self.request_id = self.state["request_id"] = self.request_id or f"{getrandbits(128):032x}"
