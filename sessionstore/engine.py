"""Which SQLite this process uses: one for all that is ours, chosen from the environment, once, before anything is opened.

`SESSIONSTORE_SQLITE=pysqlite3` takes the one of the `pysqlite3` wheel (`pip install 'sessionstore[engine]'`), which is newer
than that of many systems, and mended (see `dialect.engine_fault`). Two in one process would cancel each other's locks on a file
that both have open (SQLite, "How to corrupt", §2.2.1); so a program that opens the same file by itself uses this one as well.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING

SETTING = "SESSIONSTORE_SQLITE"
ENGINES = {"sqlite3": "sqlite3", "pysqlite3": "pysqlite3.dbapi2"}

if TYPE_CHECKING:
    import sqlite3
else:
    _chosen = os.environ.get(SETTING, "sqlite3")
    if _chosen not in ENGINES:
        raise ImportError(f"{SETTING} is {_chosen!r}; expected {' or '.join(ENGINES)}")
    sqlite3 = import_module(ENGINES[_chosen])

__all__ = ["sqlite3"]
