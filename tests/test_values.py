"""What goes in comes out, exactly, or is refused with the path to the fault (case M18)."""

import json
import math
import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionstore import Limits, Store, errors, jsontext
from sessionstore.drafts import Draft, prepare, prepare_all
from sessionstore.errors import SessionStoreError
from sessionstore.model import Tag, lease_expired
from tests.conftest import user

LIMITS = Limits()
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text())
# A high surrogate before a low one is, in JSON, the one character that the two spell; no JSON text can say otherwise.
PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
SURROGATES = st.text(st.characters(categories=["Cs", "L", "Cc"])).filter(lambda text: not PAIR.search(text))
JSON = st.recursive(SCALARS | SURROGATES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)


@given(JSON)
def test_any_json_survives_the_text(value: Any) -> None:
    text = jsontext.encode(value)
    text.encode()
    assert _exact(jsontext.load(text)) == _exact(value)
    assert _exact(jsontext.decode(text.encode())) == _exact(value)


@given(JSON, JSON)
def test_a_digest_is_equal_exactly_when_the_values_are(one: Any, other: Any) -> None:
    assert (jsontext.digest(one) == jsontext.digest(other)) == (_exact(one, ordered=False) == _exact(other, ordered=False))


def _exact(value: Any, *, ordered: bool = True) -> Any:
    """The value with its types, and for floats their sign, so that 1, 1.0, True and -0.0 are told apart."""
    if isinstance(value, dict):
        pairs = [(key, _exact(inner, ordered=ordered)) for key, inner in value.items()]
        return ("object", pairs if ordered else sorted(pairs, key=lambda pair: pair[0]))
    if isinstance(value, list):
        return [_exact(inner, ordered=ordered) for inner in value]
    if isinstance(value, float):
        return ("float", value, math.copysign(1, value))
    return (type(value).__name__, value)


EXACT = [
    "emoji 🌱, عربى, 日本語, grüße",
    "nul \x00 inside",
    "lone \ud800 surrogate",
    "\U0001f331",
    2**63,
    -(2**63) - 1,
    10**999,
    1.0,
    1,
    -0.0,
    1e308,
    5e-324,
    0.1 + 0.2,
    None,
    True,
    "",
    [],
    {},
    {"b": 1, "a": 2, "": {"\ud83d": [None]}},
    {"unknown": {"fields": ["stay", {"as": "they are"}]}},
]


@pytest.mark.parametrize("content", EXACT, ids=ascii)
def test_content_and_metadata_come_back_exactly(plain: Store, content: Any) -> None:
    plain.create("c", messages=[user(content, "m", metadata={"m": content})])
    stored = plain.message("c", "m")
    assert _exact(stored.content) == _exact(content)
    assert _exact(stored.metadata) == _exact({"m": content})
    assert plain.append("c", [user(content, "m", metadata={"m": content})]).replayed


def test_a_long_text_comes_back(plain: Store) -> None:
    text = "ab\u20ac" * 3_000_000
    plain.create("c", messages=[user(text, "m")])
    assert plain.message("c", "m").content == text


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


REFUSED: list[tuple[Any, str]] = [
    (math.nan, "$.content"),
    (math.inf, "$.content"),
    ([1, {"a": -math.inf}], "$.content[1].a"),
    (10**1000, "$.content"),
    ({"a": {1: 2}}, "$.content.a"),
    ({"a": b"bytes"}, "$.content.a"),
    ({"a": [object()]}, "$.content.a[0]"),
    ({1, 2}, "$.content"),
    (_nested(101), "$.content" + "[0]" * 100),
]


@pytest.mark.parametrize(("content", "where"), REFUSED, ids=[f"{number}" for number, _ in enumerate(REFUSED)])
def test_what_json_cannot_carry_is_refused_with_its_path(content: Any, where: str) -> None:
    with pytest.raises(errors.InvalidInput) as refused:
        prepare(user(content), LIMITS)
    assert refused.value.path == where


def test_the_deepest_allowed_nesting_is_stored(plain: Store) -> None:
    plain.create("c", messages=[user(_nested(100), "m")])
    assert plain.message("c", "m").content == _nested(100)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"nan",
        b"NaN",
        b"[Infinity]",
        b'{"a":1,"a":2}',
        b'"\xff"',
        b"{} {}",
        b"'a'",
        b"[1,]",
        b'"\x00"',
        b"\xef\xbb\xbf{}",
    ],
)
def test_text_that_is_not_json_is_malformed(text: bytes) -> None:
    with pytest.raises(errors.Malformed):
        jsontext.decode(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":1}',
        '{"a":{"b":"","b":""}}',
        '[{"a":1,"\\u0061":2}]',
        # A quote that is written as an escape comes out as one more: it must not make up for the lost key.
        '{"a":1,"a":"\\u0022\\u0022"}',
        '{"a":1,"a":1,"b":"\\u0022\\u0022"}',
    ],
)
def test_a_key_that_stands_twice_is_refused_however_it_hides(text: str) -> None:
    with pytest.raises(errors.Malformed, match="stands twice"):
        jsontext.decode(text)
    with pytest.raises(errors.Malformed, match="stands twice"):
        jsontext.decode(text.encode())


@given(JSON, st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_the_quick_decoder_reads_what_the_strict_one_does(value: Any, ascii_only: bool, indent: Any) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert _exact(jsontext.decode(text)) == _exact(json.loads(text))


def test_a_bomb_of_brackets_is_refused() -> None:
    with pytest.raises(errors.InvalidInput):
        jsontext.decode(b"[" * 1_000_000)


def test_numbers_that_overflow_are_refused_later_with_their_path() -> None:
    for text in (b"1e400", b"9" * 5000):
        with pytest.raises(errors.InvalidInput):
            prepare(user(jsontext.decode(text)), LIMITS)


BAD_IDS = ["", ".", "..", "a/b", "a\\b", " a", "a ", "a\n", "a\x00b", "\x7f", "\x85", "\ud800", "x" * 201, 1, None, b"x"]


@pytest.mark.parametrize("bad", BAD_IDS, ids=ascii)
def test_bad_ids_are_refused_everywhere(plain: Store, bad: Any) -> None:
    if bad is not None:
        with pytest.raises(errors.InvalidInput):
            plain.create(bad)
        with pytest.raises(errors.InvalidInput):
            prepare(user("x", bad), LIMITS)
        with pytest.raises(errors.InvalidInput):
            plain.fork("c", bad)
    for call in (
        plain.get,
        plain.delete,
        lambda id: plain.append(id, [user("x")]),
        lambda id: plain.message("c", id),
        lambda id: plain.delete_message("c", id),
        lambda id: plain.label_message("c", id, {}),
        lambda id: plain.acquire(id, "w"),
    ):
        with pytest.raises(errors.InvalidInput):
            call(bad)


@pytest.mark.parametrize("good", ["x" * 200, "a b", "ünï", "🌱", "a:b;c?d#e%f&g=h", "...", "-", "0", "emoji \u200d"])
def test_other_ids_are_fine(plain: Store, good: str) -> None:
    plain.create(good, messages=[user("x", good)])
    assert plain.message(good, good).content == "x"


@pytest.mark.parametrize("role", ["", "User", "a" * 41, "a b", "ünï", "a\n", 1])
def test_bad_roles_are_refused(role: Any) -> None:
    with pytest.raises(errors.InvalidInput) as refused:
        prepare_all([Draft(role="user", content="x"), Draft(role=role, content="x")], LIMITS)
    assert refused.value.path == "$.messages[1].role"


def test_words_have_their_limits(plain: Store) -> None:
    plain.create("c")
    for call in (
        lambda: plain.label("c", title="x" * 1001),
        lambda: plain.label("c", title="nul \x00"),
        lambda: plain.label("c", metadata=[]),  # type: ignore[arg-type]
        lambda: plain.acquire("c", ""),
        lambda: plain.acquire("c", "h" * 201),
        lambda: plain.renew("c", token="x" * 22, phase="p" * 101),
        lambda: plain.append("c", []),
        lambda: plain.append("c", [user("x")] * 1001),
        lambda: plain.get("c", incarnation=2**70) and plain.append("c", [user("x")], incarnation=2**70),
        lambda: plain.append("c", [user("x")], incarnation=0),
        lambda: plain.append("c", [user("x", status="interrupted")]),
        lambda: plain.acquire("c", "w", if_busy="shove"),  # type: ignore[arg-type]
        lambda: plain.delete("c", children="adopt"),  # type: ignore[arg-type]
        lambda: plain.messages("c", order="sideways"),  # type: ignore[arg-type]
        lambda: plain.messages("c", after=2**70),
        lambda: plain.finish("c", token="x" * 22, outcome="deleted"),  # type: ignore[arg-type]
    ):
        with pytest.raises((errors.InvalidInput, errors.ConversationDeleted)):
            call()
    assert plain.get("c").version == 1


def test_tags_read_what_they_write() -> None:
    assert Tag.parse(str(Tag(12, 7))) == Tag(12, 7)
    for text in ("", "1", "1-", "-1", "1-2-3", "a-b", "1--2", "٣-٤", "1" * 30 + "-1"):
        assert Tag.parse(text) is None


@pytest.mark.parametrize(
    ("expires_at", "expired"), [(1000, True), (1001, False), (31_000, False), (32_000, False), (32_001, True)]
)
def test_a_lease_expires_by_time_or_by_a_clock_that_stepped_back(expires_at: int, expired: bool) -> None:
    assert lease_expired(1000, expires_at, 30_000) == expired


def _all_errors(kind: type[SessionStoreError] = SessionStoreError) -> list[type[SessionStoreError]]:
    return [child for direct in kind.__subclasses__() for child in (direct, *_all_errors(direct))]


@pytest.mark.parametrize("kind", _all_errors(), ids=lambda kind: kind.__name__)
def test_every_error_has_a_code_a_message_and_survives_pickling(kind: type[SessionStoreError]) -> None:
    error = kind(**dict.fromkeys(kind.__dataclass_fields__, 1))  # type: ignore[attr-defined]
    assert str(error)
    assert "{" not in str(error)
    assert error.code == error.code.lower()
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.fields, str(copy)) == (kind, error.fields, str(error))
    assert kind.__name__ in repr(error)


def test_codes_are_unique() -> None:
    codes = [kind.code for kind in _all_errors()]
    assert len(codes) == len(set(codes))
