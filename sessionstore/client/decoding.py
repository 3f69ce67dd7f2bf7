"""Reading what a server sends: JSON that says half a character as well, times, numbers."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from sessionstore.errors import UnexpectedAnswer

T = TypeVar("T")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LONGEST_NUMBER = 10


def decode(body: bytes, kind: type[T]) -> T:
    """The body as a value of that kind. Raises `UnexpectedAnswer`."""
    try:
        try:
            return msgspec.json.decode(body, type=kind)
        except msgspec.ValidationError:
            raise
        except msgspec.MsgspecError:
            return msgspec.json.decode(_without_lone_surrogates(body), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnexpectedAnswer(reason=f"its answer has another shape ({type(error).__name__})") from None


# JSON may spell half a character, which msgspec refuses even where it only passes it on. Such escapes are put in other words
# on their way through it: U+F8FF belongs to nobody, and nobody here spells it as an escape.
_ESCAPE = re.compile(rb"\\(u[dD][89abAB]..\\u[dD][c-fC-F]..|u....|.)", re.DOTALL)
_HALF = re.compile(rb"u([dD][89a-fA-F]..)")
_STAND_IN = re.compile(r"\\uF8FF([0-9a-fA-F]{4})")


def _without_lone_surrogates(body: bytes) -> bytes:
    def stand_in(escape: re.Match[bytes]) -> bytes:
        half = _HALF.fullmatch(escape[1])
        return escape[0] if half is None else b"\\uF8FF" + half[1]

    return _ESCAPE.sub(stand_in, body)


def text_in(raw: Raw) -> str:
    """A JSON text as it came."""
    text = bytes(raw).decode()
    return _STAND_IN.sub(r"\\u\1", text) if "\\uF8FF" in text else text


def text_of(raw: Raw) -> str | None:
    """A JSON text as it came; None for null."""
    text = text_in(raw)
    return None if text == "null" else text


def moment(text: Any) -> int:
    """Milliseconds UTC. Raises `UnexpectedAnswer`."""
    try:
        return (datetime.fromisoformat(text) - EPOCH) // timedelta(milliseconds=1)
    except (ValueError, TypeError):
        raise UnexpectedAnswer(reason="a time in it is none") from None


def time_of(milliseconds: int | None) -> str | None:
    """A time as it is sent."""
    if milliseconds is None:
        return None
    return (EPOCH + timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds(text: str | None) -> int:
    """What a Retry-After says, where it says it in seconds."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < LONGEST_NUMBER else 0
