"""Keys: who may speak to a server, for which owner, and with which rights.

A key is 256 random bits. Only its hash is stored: SHA-256 suffices for what nobody can guess, and looking it up by that takes
the same way for a key that was never given as for one that is over.
"""

import hashlib
import hmac
import secrets
from typing import Any

import msgspec
from sqlalchemy import bindparam, func, insert, select, update

from sessionstore.database import Database
from sessionstore.errors import KeyExists, KeyNotFound
from sessionstore.items import Lane
from sessionstore.limits import Limits
from sessionstore.schema import VALID, keys
from sessionstore.transaction import Transaction

PREFIX = "ssk_"
"""By which programs that look for secrets in code find a key."""
RANDOM_BYTES = 32

k, b = keys.c, bindparam
_COLUMNS = (k.name, k.owner, k.read_only, k.admin, k.created_at, k.expires_at, k.revoked_at)
INSERT = insert(keys).values({column.name: b(column.name) for column in keys.c if column.name != "revoked_at"})
FIND = select(k.hash, *_COLUMNS).where(k.hash == b("hash"))
NAMED = select(*_COLUMNS).where(k.name == b("name"), VALID)
ALL = select(*_COLUMNS).order_by(k.created_at, k.name)
REVOKE = update(keys).where(k.name == b("called"), VALID).values(revoked_at=b("now"))
COUNT = select(func.count()).select_from(select(k.hash).limit(1).subquery())


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a key: everything but itself. Times are milliseconds UTC.

    `read_only`: it changes nothing. `admin`: it may end others' turns by force, and sees the metrics.
    """

    name: str
    owner: str
    read_only: bool
    admin: bool
    created_at: int
    expires_at: int | None
    revoked_at: int | None

    def over(self, now: int) -> bool:
        """Whether it is good for nothing any more."""
        return self.revoked_at is not None or (self.expires_at is not None and self.expires_at <= now)


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that was just made, and `secret`, which is told once and stored nowhere."""

    key: Key
    secret: str

    def __repr__(self) -> str:
        # Reprs end up in logs.
        return f"NewKey({self.key.name!r})"


class Keys:
    """The keys of a database. Thread-safe."""

    def __init__(self, database: Database, limits: Limits) -> None:
        self._database, self._limits = database, limits

    def create(
        self, name: str, owner: str, *, read_only: bool = False, admin: bool = False, expires_after_ms: int | None = None
    ) -> NewKey:
        """A new key that acts for one owner. Raises `KeyExists` while another one of that name is not revoked."""
        self._limits.id(name, "$.name")
        self._limits.owner(owner)
        self._limits.moment(expires_after_ms, "$.expires_after_ms")
        secret = PREFIX + secrets.token_urlsafe(RANDOM_BYTES)

        def change(transaction: Transaction) -> Key:
            now = transaction.now()
            if transaction.row(NAMED, name=name) is not None:
                raise KeyExists(name=name)
            expires_at = None if expires_after_ms is None else now + expires_after_ms
            self._limits.moment(expires_at, "$.expires_after_ms")
            transaction.run(
                INSERT, hash=hash_of(secret), name=name, owner=owner, read_only=int(read_only), admin=int(admin),
                created_at=now, expires_at=expires_at,
            )  # fmt: skip
            return _key(transaction.row(NAMED, name=name))

        try:
            return NewKey(key=self._database.write(change, Lane.ALONE), secret=secret)
        except self._database.contradictions:
            # On a server somebody may have come in between.
            raise KeyExists(name=name) from None

    def list(self) -> list[Key]:
        """All that ever were, the oldest first: also those that are over."""
        return self._database.read(lambda transaction: [_key(row) for row in transaction.rows(ALL)])

    def revoke(self, name: str) -> Key:
        """Make a key good for nothing, for ever. Servers that know it forget it within a second. Raises `KeyNotFound`."""

        def change(transaction: Transaction) -> Key:
            now, row = transaction.now(), transaction.row(NAMED, name=name)
            if row is None:
                raise KeyNotFound(name=name)
            transaction.run(REVOKE, called=name, now=now)
            return msgspec.structs.replace(_key(row), revoked_at=now)

        return self._database.write(change, Lane.ALONE)

    def find(self, secret: str) -> Key | None:
        """The key that this is, unless it is none, or is over."""
        return self.find_hash(hash_of(secret))

    def find_hash(self, wanted: str) -> Key | None:
        """The key of that hash, unless there is none, or it is over."""

        def look(transaction: Transaction) -> Key | None:
            row = transaction.row(FIND, hash=wanted)
            if row is None or not hmac.compare_digest(row[0], wanted):
                return None
            key = _key(row[1:])
            return None if key.over(transaction.now()) else key

        return self._database.read(look)

    def any(self) -> bool:
        """Whether there ever was one: from then on nobody is served without."""
        return self._database.read(lambda transaction: bool(transaction.row(COUNT)[0]))


def hash_of(secret: str) -> str:
    """What is stored of a key."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _key(row: Any) -> Key:
    name, owner, read_only, admin, created_at, expires_at, revoked_at = row
    return Key(
        name=name, owner=owner, read_only=bool(read_only), admin=bool(admin), created_at=created_at, expires_at=expires_at,
        revoked_at=revoked_at,
    )  # fmt: skip
