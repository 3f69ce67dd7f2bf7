"""What statements say in the words of each database. Beside `engines` it alone knows that there are two."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Boolean, Executable, Float, Table, and_, bindparam
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from sessionstore.limits import MOST_USED


class Upsert:
    """INSERT … ON CONFLICT DO UPDATE, in the words of each database. `rising`: what is there is never replaced by less."""

    def __init__(self, table: Table, key: Sequence[str], update: Sequence[str], *, rising: bool = False) -> None:
        self._table, self._key, self._rising = table, list(key), rising
        self.variants: Mapping[str, Executable] = {
            name: self._variant(insert, update)
            for name, insert in (("sqlite", sqlite.insert), ("postgresql", postgresql.insert))
        }

    def _variant(self, insert: Any, update: Sequence[str]) -> Any:
        wanted = (column for column in self._table.c if not column.primary_key or column.name in self._key)
        values: dict[str, Any] = {column.name: bindparam(column.name) for column in wanted}
        statement = insert(self._table).values(values)
        return statement.on_conflict_do_update(
            index_elements=self._key,
            set_={name: statement.excluded[name] for name in update},
            where=and_(*(statement.excluded[name] > self._table.c[name] for name in update)) if self._rising else None,
        )


Statement = Executable | Upsert


class json_has(FunctionElement[Any]):  # noqa: N801  # a function of SQL
    """Whether a JSON object has a key, with that value if one is given: a string as it is, anything else as its JSON text."""

    type = Boolean()
    inherit_cache = True


class json_number(FunctionElement[Any]):  # noqa: N801
    """The number at a key of a JSON object, and NULL where there is none, or none that can have been used."""

    type = Float()
    inherit_cache = True


@compiles(json_has, "sqlite")
def _sqlite_has(element: json_has, compiler: SQLCompiler, **options: Any) -> str:
    column, key, *value = (compiler.process(clause, **options) for clause in element.clauses)
    # A key may have any character, and a path could not spell them all.
    # Numbers as they are spelled: as values they would lose digits. A key with a quote in it has no path in this SQLite.
    number = f"coalesce({column} -> entry.fullkey, CAST(entry.value AS TEXT))"
    text = "CASE entry.type WHEN 'text' THEN entry.value WHEN 'true' THEN 'true' WHEN 'false' THEN 'false'"
    text += f" WHEN 'null' THEN 'null' WHEN 'integer' THEN {number} WHEN 'real' THEN {number} ELSE entry.value END"
    wanted = f" AND {text} = {value[0]}" if value else ""
    return f"EXISTS (SELECT 1 FROM json_each({column}) AS entry WHERE entry.key = {key}{wanted})"


@compiles(json_number, "sqlite")
def _sqlite_number(element: json_number, compiler: SQLCompiler, **options: Any) -> str:
    column, name = (compiler.process(clause, **options) for clause in element.clauses)
    path = f"'$.' || {name}"
    value = f"json_extract({column}, {path})"
    return (
        f"CASE WHEN json_type({column}, {path}) IN ('integer', 'real') AND {value} BETWEEN 0 AND {MOST_USED} THEN {value} END"
    )
