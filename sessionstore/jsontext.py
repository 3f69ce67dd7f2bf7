"""JSON text in and out, exactly: what was given comes back, or is refused with the path to the fault.

The standard library's decoder is used and not a faster one, because it alone shows duplicate keys (RFC 8259 §4 leaves them
open, databases and programs then read different values) and keeps integers of any size and lone surrogates (case M18).
"""

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from sessionstore.errors import InvalidInput, Malformed

Json = Any
"""Any JSON value: None, bool, int, float, str, list or dict with str keys."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_CONTAINERS = (dict, list, tuple)


def decode(text: str | bytes) -> Json:
    """The value of a JSON text from outside. Raises `Malformed` for bad UTF-8, bad JSON, NaN, and keys that stand twice."""
    raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    with contextlib.suppress(msgspec.MsgspecError, RecursionError):
        value = msgspec.json.decode(raw)
        if _as_many_quotes(raw, value):
            return value
    return _decode_strictly(text)


def _as_many_quotes(raw: bytes, value: Json) -> bool:
    """Whether no key can have been lost: the quick decoder is exact, but keeps the last of two equal keys.

    Then fewer quotes come out than went in. Only a quote that was written as \\u0022 comes out as one more.
    """
    return b"\\u0022" not in raw and msgspec.json.encode(value).count(b'"') == raw.count(b'"')


def _decode_strictly(text: str | bytes) -> Json:
    """The value, or what is wrong and where."""
    try:
        return _decoder.decode(text if isinstance(text, str) else text.decode())
    except UnicodeDecodeError:
        raise Malformed(reason="The text is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise Malformed(reason=f"This is not JSON: {error.msg}, line {error.lineno} column {error.colno}") from None
    except RecursionError:
        raise InvalidInput(reason="The JSON is nested too deeply") from None


def load(text: str) -> Json:
    """The value of a JSON text that the store wrote itself."""
    if text[0] == '"' and "\\" not in text:
        return text[1:-1]
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError:
        # Lone surrogates, and integers of very many digits.
        return _reader.decode(text)


def encode(value: Json) -> str:
    """Compact JSON text of a checked value, keys in their order. Lone surrogates stay escaped, so that it is valid UTF-8."""
    if type(value) is str:
        # Most contents are one text, and this encoder is five times as fast; lone surrogates it does not know.
        try:
            return msgspec.json.encode(value).decode()
        except UnicodeEncodeError:
            return _escape_surrogates(_encoder.encode(value))
    return _escape_surrogates(_encoder.encode(value))


def digest(*parts: Json) -> str:
    """SHA-256, hexadecimal, over the canonical JSON of `parts`, one a line: keys sorted, 1 and 1.0 differ."""
    return digest_of(*map(canonical, parts))


def digest_of(*texts: str) -> str:
    """The digest of texts that are canonical already."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def canonical(value: Json, encoded: str | None = None) -> str:
    """The one text that a JSON value has in digests; `encoded` is what `encode` made of it, if that is known."""
    # Keys are what is to be sorted: most contents are one text, and most metadata is empty.
    if type(value) is str:
        return encode(value) if encoded is None else encoded
    return _escape_surrogates(_canonical.encode(value)) if value != {} else "{}"


def same(text: str | None, other: str) -> bool:
    """Whether two stored texts are the same JSON: the order of keys says nothing."""
    if text == other or text is None or len(text) != len(other):
        return text == other
    return digest(load(text)) == digest(load(other))


def merge_patch(target: Json, patch: Json) -> Json:
    """`target` after a JSON merge patch (RFC 7396): null removes a key, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


def check(value: Json, path: str, *, depth: int, digits: int) -> None:
    """Refuse what JSON cannot carry, or what lies deeper than `depth` or has more than `digits` digits, with its path."""
    fault = _fault(value, depth, digits)
    if fault is not None:
        reason, steps = fault
        raise InvalidInput(reason=reason, path=path + "".join(reversed(steps)))


def _fault(value: Json, depth: int, digits: int) -> tuple[str, list[str]] | None:
    """What is wrong, and the steps that lead to it, the last one first."""
    if isinstance(value, _CONTAINERS) and depth <= 0:
        return "The JSON is nested too deeply", []
    if isinstance(value, dict):
        return _fault_inside(value.items(), depth, digits, ".{}")
    if isinstance(value, list | tuple):
        return _fault_inside(enumerate(value), depth, digits, "[{}]")
    reason = _scalar_fault(value, digits)
    return None if reason is None else (reason, [])


def _fault_inside(inside: Iterable[tuple[Any, Json]], depth: int, digits: int, step: str) -> tuple[str, list[str]] | None:
    for key, inner in inside:
        if step == ".{}" and not isinstance(key, str):
            return "A JSON object has only strings as keys", []
        fault = None if isinstance(inner, str) else _fault(inner, depth - 1, digits)
        if fault is not None:
            fault[1].append(step.format(_printable(str(key))))
            return fault
    return None


def _scalar_fault(value: Json, digits: int) -> str | None:
    if value is None or isinstance(value, str | bool):
        return None
    if isinstance(value, int):
        # Only an integer that is longer than any machine's is compared with a power of ten.
        return f"An integer has at most {digits} digits" if value.bit_length() > 63 and abs(value) >= 10**digits else None
    if isinstance(value, float):
        return None if math.isfinite(value) else "A number is too large for an IEEE double, or is none"
    return f"{type(value).__name__} is no JSON value"


def _printable(key: str) -> str:
    return _SURROGATE.sub("\ufffd", key)[:100]


def _escape_surrogates(text: str) -> str:
    # Only inside strings can a surrogate stand, so the escape means the same character.
    if text.isascii():
        return text
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    whole = dict(pairs)
    if len(whole) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise Malformed(reason=f"The key {_printable(twice)!r} stands twice in one object")
    return whole


def _no_constant(name: str) -> Json:
    raise Malformed(reason=f"{name} is not JSON")


def _big_int(digits: str) -> int | float:
    # Beyond the interpreter's limit (4,300 digits) int() raises; infinity is refused by `check`, with its path.
    return int(digits) if len(digits) < 4000 else math.inf


_decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant, parse_int=_big_int)
_reader = json.JSONDecoder(parse_int=_big_int)
_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_canonical = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False, sort_keys=True)
