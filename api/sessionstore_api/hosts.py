"""Whom a browser may speak for: by which name the server is called, and which pages may call it.

A web page can point its own name at 127.0.0.1 (DNS rebinding), and any page can send a form to localhost (CSRF). Only the Host
header tells the one, Origin and Sec-Fetch-Site tell the other; programs that are no browsers send neither.
"""

import ipaddress
import re
from collections.abc import Collection
from functools import lru_cache
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from sessionstore.errors import Malformed, SessionStoreError
from sessionstore_api.problems import HostRefused, OriginRefused, refuse

LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
OWN_PAGES = (b"same-origin", b"none")
LINKED = "/docs"
"""A page that says the same to everybody: one may come to it by a link from anywhere."""
_HOST = re.compile(r"(\[[0-9a-fA-F:.]{2,45}\]|[^\s:/@\[\]]{1,255})(:[0-9]{1,5})?")


class Hosts:
    """Middleware in front of everything."""

    def __init__(self, app: ASGIApp, names: Collection[str], origins: Collection[str]) -> None:
        self._app, self._names, self._origins = app, LOCAL | {name.lower() for name in names}, frozenset(origins)
        self._known = lru_cache(maxsize=256)(self._judge_host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on."""
        fault = self._fault(scope) if scope["type"] == "http" else None
        if fault is None:
            await self._app(scope, receive, send)
        else:
            scope["state"]["code"] = fault.code
            await refuse(fault)(scope, receive, send)

    def _fault(self, scope: Scope) -> SessionStoreError | None:
        hosts, origins, sites, modes = [], [], [], []
        for name, value in scope["headers"]:
            if name == b"host":
                hosts.append(value)
            elif name == b"origin":
                origins.append(value)
            elif name == b"sec-fetch-site":
                sites.append(value)
            elif name == b"sec-fetch-mode":
                modes.append(value)
        if len(hosts) != 1 or len(origins) > 1:
            return Malformed(reason="Expected one Host header, and one Origin at most", path="Host")
        here = (scope.get("server") or ("",))[0] or ""
        fault = self._known(hosts[0], here)
        if fault is None and (origins or sites):
            linked = scope["path"] == LINKED and scope["method"] == "GET" and modes == [b"navigate"]
            fault = None if linked else self._judge_page(hosts[0], origins, sites)
        return fault

    def _judge_host(self, host: bytes, here: str) -> SessionStoreError | None:
        found = _HOST.fullmatch(host.decode("latin-1"))
        if found is None:
            return Malformed(reason="This is no host", path="Host")
        name = found[1].lower().rstrip(".")
        # An address is no name that somebody could point elsewhere.
        if name in self._names or "*" in self._names or _same_address(name, here):
            return None
        return HostRefused()

    def _judge_page(self, host: bytes, origins: list[bytes], sites: list[bytes]) -> SessionStoreError | None:
        origin = origins[0].decode("latin-1") if origins else ""
        if origin in self._origins:
            return None
        if origin and not _is_ours(origin, host.decode("latin-1")):
            return OriginRefused()
        return None if all(site in OWN_PAGES for site in sites) else OriginRefused()


def _same_address(name: str, here: str) -> bool:
    try:
        return ipaddress.ip_address(name.strip("[]")) == ipaddress.ip_address(here)
    except ValueError:
        return False


def _is_ours(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()
