"""What is accepted: lengths, counts and alphabets, each with the check that names the path to the fault."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sessionstore import jsontext
from sessionstore.errors import InvalidInput, TooLarge
from sessionstore.room import Room

_TOKEN = re.compile(r"[\x21-\x7e]+")
_ROLE = re.compile(r"[a-z_]+")
# Cc control, Cs lone surrogates: neither survives every system that an id or a title passes through.
_REFUSED_CATEGORIES = ("Cc", "Cs")
LARGEST_NUMBER = 2**62
DAY_MS = 86_400_000
# SQLite refuses a search pattern of more than 50,000 bytes, Python an integer of more than 4,300 digits.
RANGES = {
    "id_length": (1, 1_000),
    "title_length": (1, 10_000),
    "holder_length": (1, 10_000),
    "phase_length": (0, 10_000),
    "role_length": (1, 1_000),
    "token_length": (22, 10_000),
    "json_depth": (1, 500),
    "integer_digits": (1, 3_999),
    "messages_per_call": (1, 100_000),
    "page": (1, 100_000),
    "page_bytes": (1, 2**30),
    "queued_inputs": (1, 100_000),
    "conversations_per_owner": (1, 1_000_000_000),
    "inputs_per_owner": (1, 100_000),
    "body_bytes": (1, 2**30),
    "message_bytes": (1, 2**30),
    "metadata_bytes": (2, 2**30),
    "ttl_min_ms": (1, 30 * DAY_MS),
    "ttl_max_ms": (1, 30 * DAY_MS),
    "ttl_default_ms": (1, 30 * DAY_MS),
}
PAGE_SIZE = 50
LAST_MOMENT = 253_402_300_799_999
"""The end of the year 9999 in milliseconds: calendars have no later one."""
USED = ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "cost")
"""What is added up of what turns have used: the keys of a `usage` that mean something to us."""
MOST_USED = 10**12
"""What one turn may have used of anything: a million such turns can still be added up in 64 bits."""


@lru_cache(maxsize=64)
def _known_role(text: str) -> bool:
    # There are few, and each message has one.
    return _ROLE.fullmatch(text) is not None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one store. Each is a setting; the defaults are PROTOCOL.md's."""

    id_length: int = 200
    title_length: int = 1_000
    holder_length: int = 200
    phase_length: int = 100
    role_length: int = 40
    token_length: int = 200
    json_depth: int = 100
    integer_digits: int = 1_000
    messages_per_call: int = 1_000
    page: int = 1_000
    page_bytes: int = 32 * 1024 * 1024
    queued_inputs: int = 100
    conversations_per_owner: int = 1_000_000
    inputs_per_owner: int = 10_000
    body_bytes: int = 16 * 1024 * 1024
    message_bytes: int = 16 * 1024 * 1024
    metadata_bytes: int = 64 * 1024
    ttl_min_ms: int = 1_000
    ttl_max_ms: int = 3_600_000
    ttl_default_ms: int = 30_000

    def __post_init__(self) -> None:
        """Refuse a limit that no call could keep, or that the database or the interpreter could not."""
        for name, (least, most) in RANGES.items():
            if not least <= getattr(self, name) <= most:
                raise InvalidInput(reason=f"Expected {least} to {most}", path=name)
        if self.ttl_min_ms > self.ttl_max_ms:
            raise InvalidInput(reason="The shortest time to live is longer than the longest", path="ttl_min_ms")

    def ttl_or_default(self, value: int | None) -> int:
        """How long a lease lives, checked; without a word, as long as the setting says, within its limits."""
        return self.ttl(value) or min(max(self.ttl_default_ms, self.ttl_min_ms), self.ttl_max_ms)

    def id(self, value: Any, path: str = "$.id") -> str:
        """A conversation's or message's id: it must survive a URL path, a log line and a file name."""
        text = self._text(value, path, self.id_length)
        if not text or text in {".", ".."} or "/" in text or "\\" in text or text != text.strip():
            raise InvalidInput(
                reason="An id is not empty, not '.' or '..', and has no '/', '\\' or outer white space", path=path
            )
        return text

    def owner(self, value: Any, path: str = "$.owner") -> str:
        """Whose conversations: a name like an id, or nothing where nobody speaks of owners."""
        if value == "":
            return ""
        if self.id(value, path) == "*":
            raise InvalidInput(reason="* is everybody, and no owner", path=path)
        return str(value)

    def ids(self, values: Any, path: str = "$.ids") -> list[str] | None:
        """The ids of messages, each once, or none."""
        if values is None:
            return None
        if not isinstance(values, list | tuple) or not 1 <= len(values) <= self.messages_per_call:
            raise InvalidInput(reason=f"Expected 1 to {self.messages_per_call} ids", path=path)
        checked = [self.id(value, f"{path}[{index}]") for index, value in enumerate(values)]
        if len(set(checked)) < len(checked):
            raise InvalidInput(reason="An id stands twice in one call", path=path)
        return checked

    def title(self, value: Any, path: str = "$.title") -> str | None:
        """A conversation's title, or none."""
        return None if value is None else self._text(value, path, self.title_length)

    def searched(self, value: Any, path: str = "$.q") -> str:
        """Words to look for."""
        return self._text(value, path, self.title_length, shortest=1)

    def usage(self, value: Any, path: str = "$.usage") -> str:
        """What a turn has used: any JSON object, in which what is added up are numbers."""
        text = self.json_object(value, path)
        for name in USED:
            number = 0 if value.get(name) is None else value[name]
            if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= MOST_USED:
                raise InvalidInput(reason=f"Expected a number from 0 to {MOST_USED}", path=f"{path}.{name}")
        return text

    def holder(self, value: Any, path: str = "$.holder") -> str:
        """Who is generating: a name for people."""
        return self._text(value, path, self.holder_length, shortest=1)

    def phase(self, value: Any, path: str = "$.phase") -> str:
        """What a turn is doing: a free word."""
        return self._text(value, path, self.phase_length)

    def role(self, value: Any, path: str = "$.role") -> str:
        """Who says a message."""
        if type(value) is str and len(value) <= self.role_length and _known_role(value):
            return value
        text = self._text(value, path, self.role_length, shortest=1)
        if not _ROLE.fullmatch(text):
            raise InvalidInput(reason="A role has only the letters a to z and _", path=path)
        return text

    def token(self, value: Any, path: str = "$.token") -> str:
        """A lease token: long enough that nobody guesses it (22 characters of base 64 are 128 bits)."""
        text = self._text(value, path, self.token_length, shortest=22)
        if not _TOKEN.fullmatch(text):
            raise InvalidInput(reason="A token has only visible ASCII characters", path=path)
        return text

    def ttl(self, value: int | None, path: str = "$.ttl_ms") -> int | None:
        """How long a lease lives without a word from its holder."""
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not self.ttl_min_ms <= value <= self.ttl_max_ms:
            raise InvalidInput(reason=f"A time to live is {self.ttl_min_ms} to {self.ttl_max_ms} milliseconds", path=path)
        return value

    def number(self, value: int | None, path: str, *, least: int = 0) -> int | None:
        """A position, version or count that every database can hold."""
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST_NUMBER:
            raise InvalidInput(reason=f"Expected an integer of at least {least}", path=path)
        return value

    def moment(self, value: int | None, path: str) -> int | None:
        """A time in milliseconds UTC since 1970."""
        if value is not None and self.required_number(value, path) > LAST_MOMENT:
            raise InvalidInput(reason="There is no such time", path=path)
        return value

    def required_number(self, value: Any, path: str, *, least: int = 0) -> int:
        """A number that may not be left out."""
        if value is None:
            raise InvalidInput(reason="Expected an integer", path=path)
        return self.number(value, path, least=least) or 0

    def one_of(self, value: Any, allowed: Sequence[str], path: str) -> None:
        """A word from a list."""
        if value not in allowed:
            raise InvalidInput(reason=f"Expected one of: {', '.join(allowed)}", path=path)

    def page_size(self, value: int | None, path: str = "$.limit") -> int:
        """How many rows a page has: 50 unless somebody says."""
        if value is None:
            return min(PAGE_SIZE, self.page)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= self.page:
            raise InvalidInput(reason=f"A page has 1 to {self.page} rows", path=path)
        return value

    def room(self, rows: int | None) -> Room:
        """How many rows a page of messages has, and how many bytes of them."""
        return Room(self.page_size(rows), self.page_bytes)

    def count(self, values: Any, path: str = "$.messages", *, least: int = 0) -> None:
        """How many messages one call carries."""
        if not isinstance(values, list | tuple):
            raise InvalidInput(reason="Expected a list of messages", path=path)
        if not least <= len(values) <= self.messages_per_call:
            raise InvalidInput(reason=f"A call carries {least} to {self.messages_per_call} messages", path=path)

    def json(self, value: Any, path: str) -> str:
        """The text of a message's content: any JSON value, checked."""
        return self._json(value, path, self.message_bytes)

    def _json(self, value: Any, path: str, most: int) -> str:
        if type(value) is not str:
            jsontext.check(value, path, depth=self.json_depth, digits=self.integer_digits)
        text = jsontext.encode(value)
        # No character takes more than four.
        if len(text) > most // 4 and len(text.encode()) > most:
            raise TooLarge(reason=f"This has at most {most} bytes as JSON", path=path)
        return text

    def json_object(self, value: Any, path: str) -> str:
        """The text of metadata, or of what was used: a JSON object, checked."""
        if not isinstance(value, dict):
            raise InvalidInput(reason="Expected an object", path=path)
        return self._json(value, path, self.metadata_bytes)

    def _text(self, value: Any, path: str, longest: int, *, shortest: int = 0) -> str:
        if not isinstance(value, str):
            raise InvalidInput(reason="Expected a string", path=path)
        if not shortest <= len(value) <= longest:
            raise InvalidInput(reason=f"The length is {shortest} to {longest} characters", path=path)
        if not value.isprintable() and any(unicodedata.category(c) in _REFUSED_CATEGORIES for c in value):
            raise InvalidInput(reason="Control characters and lone surrogates are refused", path=path)
        return value
