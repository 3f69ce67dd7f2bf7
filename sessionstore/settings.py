"""Settings come from the environment, each under `SESSIONSTORE_` and its name in capitals. docs/settings.md has the table."""

import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import platformdirs

from sessionstore.errors import InvalidInput
from sessionstore.limits import Limits

PREFIX = "SESSIONSTORE_"
RANGES = {
    "port": (0, 65_535),
    "busy_timeout_ms": (0, 3_600_000),
    "max_waiting": (1, 1_000_000),
    "shutdown_seconds": (0, 86_400),
    "receive_seconds": (1, 86_400),
    "head_bytes": (1_024, 2**20),
    "requests_per_key": (1, 1_000_000),
    "streams_per_key": (1, 1_000_000),
}


def default_database_url() -> str:
    """A file in the user's own data directory."""
    return f"sqlite:///{Path(platformdirs.user_data_dir('sessionstore', appauthor=False)) / 'sessionstore.db'}"


def _setting(about: str, default: Any = MISSING, factory: Any = MISSING) -> Any:
    return field(default=default, default_factory=factory, metadata={"about": about})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything that can be set from outside, besides the limits."""

    database_url: str = _setting(
        "Where the database is: sqlite:///path/to/file.db, or postgresql://user@host/database", factory=default_database_url
    )
    host: str = _setting("The address that `serve` listens on; another one than this machine's own needs keys", "127.0.0.1")
    port: int = _setting("The port that `serve` listens on; 0 takes a free one", 8080)
    synchronous: str = _setting("full: acknowledged means durable; normal: the last commits may go with the power", "full")
    busy_timeout_ms: int = _setting("How long a call waits for the database before it answers busy", 5_000)
    max_waiting: int = _setting("How many calls may wait for the writer before the next one is answered busy", 1_024)
    shutdown_seconds: int = _setting("How long `serve` waits for running calls when it is told to stop", 30)
    allowed_hosts: str = _setting("Names of this server beside localhost and its address, with commas in between; * is any", "")
    allowed_origins: str = _setting(
        "Pages that may call it from a browser, like https://chat.example, with commas in between", ""
    )
    receive_seconds: int = _setting("How long a request may take to arrive", 30)
    head_bytes: int = _setting("How long the line and the headers of a request may be together", 64 * 1024)
    requests_per_key: int = _setting("How many requests of one key a server process works on at once, until they are read", 64)
    streams_per_key: int = _setting("How many event streams of one key a server process keeps open", 1_000)
    log_level: str = _setting("What is logged: debug, info (each request), warning, error", "info")
    log_format: str = _setting("json, text, or auto: text where a person looks on", "auto")
    http_parser: str = _setting("httptools, or h11, which is slower and all Python", "httptools")
    limits: Limits = field(default_factory=Limits)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the environment. Raises `InvalidInput` that names the variable."""
        own = {f.name: value for f in fields(cls) if f.name != "limits" and (value := _read(f, environment)) is not None}
        limits = {f.name: value for f in fields(Limits) if (value := _read(f, environment)) is not None}
        try:
            return cls(**own, limits=Limits(**limits))
        except InvalidInput as error:
            raise InvalidInput(reason=error.reason, path=variable(error.path)) from None

    def __post_init__(self) -> None:
        """Refuse what cannot be. Raises `InvalidInput` that names the setting."""
        for name, (least, most) in RANGES.items():
            if not least <= getattr(self, name) <= most:
                raise InvalidInput(reason=f"Expected {least} to {most}", path=name)
        if self.synchronous not in ("full", "normal"):
            raise InvalidInput(reason="Expected full or normal", path="synchronous")
        if self.http_parser not in ("httptools", "h11"):
            raise InvalidInput(reason="Expected httptools or h11", path="http_parser")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise InvalidInput(reason="Expected debug, info, warning or error", path="log_level")
        if self.log_format not in ("json", "text", "auto"):
            raise InvalidInput(reason="Expected json, text or auto", path="log_format")
        if any(not _ORIGIN.fullmatch(origin) for origin in self.origins):
            raise InvalidInput(reason="Expected origins like https://chat.example:8443", path="allowed_origins")

    @property
    def hosts(self) -> tuple[str, ...]:
        """The names of this server, one by one."""
        return _listed(self.allowed_hosts)

    @property
    def origins(self) -> tuple[str, ...]:
        """The origins that may call it, one by one."""
        return _listed(self.allowed_origins.lower())

    def store_options(self) -> dict[str, Any]:
        """What `Store.open` takes of it."""
        return {
            "synchronous": self.synchronous,
            "busy_timeout_ms": self.busy_timeout_ms,
            "max_waiting": self.max_waiting,
            "limits": self.limits,
        }


# Never all of them: a page that may call with a key is a page that has the key.
_ORIGIN = re.compile(r"https?://[a-z0-9.\[\]:-]+", re.IGNORECASE)


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + name.upper()


def _read(setting: Field[Any], environment: Mapping[str, str]) -> Any:
    text = environment.get(variable(setting.name))
    if text is None or setting.type not in (int, "int"):
        return text
    if not (text.isascii() and text.isdigit()):
        raise InvalidInput(reason="Expected a whole number", path=variable(setting.name))
    return int(text[:20])
