"""Cursors: where the next page of a list begins, as an opaque text. Server and client are two halves of one release."""

import base64
import binascii
from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

from sessionstore.errors import Malformed
from sessionstore.model import ListOrder, Order, UsageBy, View

C = TypeVar("C", bound="Cursor")
Known = Annotated[int, Meta(ge=0, le=2**62)]


class Cursor(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag=True):
    """A place in a list, and of which kind."""


class ConversationsCursor(Cursor, frozen=True):
    """Where the next page begins, and the newest change as of the first one."""

    before: Known
    order: ListOrder
    change: Known | None


class MovedCursor(Cursor, frozen=True):
    """From which change on the next page of what moved goes, and from when the whole list is, if it is that."""

    change: Known
    horizon: Known | None


class MessagesCursor(Cursor, frozen=True):
    """Where the next page begins, in which life and order."""

    incarnation: Known
    order: Order
    view: View
    position: Known


class InputsCursor(Cursor, frozen=True):
    """Where the next page begins, and in which life."""

    incarnation: Known
    after: Known


class ChangesCursor(Cursor, frozen=True):
    """Where the next page begins."""

    incarnation: Known
    version: Known
    row: Known
    after: Annotated[int, Meta(ge=-1, le=2**62)]
    began: Known


class UsageCursor(Cursor, frozen=True):
    """Behind which day, or which life, the next page begins."""

    by: UsageBy
    after: Known


class FoundCursor(Cursor, frozen=True):
    """In front of which message the next page begins."""

    before: Known


class TurnsCursor(Cursor, frozen=True):
    """Where the next page begins, and in which life."""

    incarnation: Known
    before: Known


def encode_cursor(cursor: Cursor | None) -> str | None:
    """The text of a cursor, or none."""
    return None if cursor is None else base64.urlsafe_b64encode(msgspec.json.encode(cursor)).rstrip(b"=").decode()


def decode_cursor(cursor: str, kind: type[C]) -> C:
    """The cursor. Raises `Malformed` for one that was not made here."""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        return msgspec.json.decode(raw, type=kind)
    except (ValueError, binascii.Error, msgspec.MsgspecError):
        raise Malformed(reason="This is no cursor of this list", path="?cursor") from None
