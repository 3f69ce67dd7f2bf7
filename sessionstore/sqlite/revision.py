"""Whether the schema still is the one that a store was opened for: another process may bring the file to the next one."""

from typing import Any

from sessionstore.errors import SchemaChanged
from sessionstore.sqlite import connections


class Revision:
    """What the schema has to be. Asked in each transaction, after its lock: what is answered then holds until its end."""

    def __init__(self, database: str) -> None:
        self._database, self._expected = database, ""
        self._cookie: int | None = None

    def expect(self, revision: str) -> None:
        """From now on it has to be this one."""
        self._expected = revision

    def check(self, connection: Any) -> None:
        """Raise `SchemaChanged` when it is another one. Costs half a microsecond, unless somebody has changed something."""
        if not self._expected:
            return
        cookie = connections.schema_cookie(connection)
        if cookie == self._cookie:
            return
        found = connections.revision(connection)
        if found != self._expected:
            raise SchemaChanged(database=self._database, revision=found or "nothing")
        self._cookie = cookie
