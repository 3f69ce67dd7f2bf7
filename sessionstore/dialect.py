"""What statements say in the words of each database. Beside `engines` it alone knows that there are two."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Boolean, Executable, Float, Table, Text, and_, bindparam
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from sessionstore.limits import MOST_USED

INSERTS: Mapping[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
# So many conversations can change in one transaction before two of them share a place; a transaction's number is so far from
# the next one's.
CHANGES_PER_TRANSACTION = 4096


class Variants:
    """A statement that is another one for each database."""

    def __init__(self, **variants: Executable) -> None:
        self.variants: Mapping[str, Executable] = variants


class Upsert(Variants):
    """INSERT … ON CONFLICT DO UPDATE. `rising`: what is there is never replaced by less."""

    def __init__(self, table: Table, key: Sequence[str], update: Sequence[str], *, rising: bool = False) -> None:
        self._table, self._key, self._rising = table, list(key), rising
        super().__init__(**{name: self._variant(insert, update) for name, insert in INSERTS.items()})

    def _variant(self, insert: Any, update: Sequence[str]) -> Any:
        wanted = (column for column in self._table.c if not column.primary_key or column.name in self._key)
        values: dict[str, Any] = {column.name: bindparam(column.name) for column in wanted}
        statement = insert(self._table).values(values)
        return statement.on_conflict_do_update(
            index_elements=self._key,
            set_={name: statement.excluded[name] for name in update},
            where=and_(*(statement.excluded[name] > self._table.c[name] for name in update)) if self._rising else None,
        )


class InsertIfVacant(Variants):
    """INSERT … ON CONFLICT DO NOTHING RETURNING: who comes second is told nothing, after the first has committed."""

    def __init__(self, table: Table, values: Mapping[str, Any], key: Sequence[str], where: Any, returning: Any) -> None:
        super().__init__(
            **{
                name: insert(table)
                .values(values)
                .on_conflict_do_nothing(index_elements=list(key), index_where=where)
                .returning(returning)
                for name, insert in INSERTS.items()
            }
        )


Statement = Executable | Variants


class next_change(FunctionElement[Any]):  # noqa: N801  # a function of SQL
    """The place of a change in the order of lists: behind all that anybody has seen."""

    type = BigInteger()
    inherit_cache = True


class settled(FunctionElement[Any]):  # noqa: N801
    """That change, or the last one before it up to which nobody can come in any more."""

    type = BigInteger()
    inherit_cache = True


class any_case(FunctionElement[Any]):  # noqa: N801
    """A text as it is compared when case does not matter: everybody's letters, not only those of ASCII."""

    type = Text()
    inherit_cache = True


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


# One counter for the whole file. The row with the highest is never pruned.
@compiles(next_change, "sqlite")
def _sqlite_next_change(*_: Any, **__: Any) -> str:
    return "(SELECT coalesce(max(change), 0) + 1 FROM conversations)"


# A counter would make everybody wait for everybody, and a sequence is seen in another order than it was drawn.
_NUMBER = "{}::text::bigint * " + str(CHANGES_PER_TRANSACTION) + " + (SELECT base FROM change_epoch)"


@compiles(next_change, "postgresql")
def _postgresql_next_change(_: next_change, compiler: SQLCompiler, **options: Any) -> str:
    nth = compiler.process(bindparam(NTH_CHANGE, 0, type_=BigInteger()), **options)
    return f"({_NUMBER.format('pg_current_xact_id()')} + {nth})"


NTH_CHANGE = "nth_change"
"""How many conversations the transaction has changed before."""


@compiles(settled, "sqlite")
def _sqlite_settled(element: settled, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(next(iter(element.clauses)), **options)


# Transactions that are still open may have lower numbers. Never more than what was committed: after a crash the numbers of
# those that came to nothing are given again.
@compiles(settled, "postgresql")
def _postgresql_settled(element: settled, compiler: SQLCompiler, **options: Any) -> str:
    change = compiler.process(next(iter(element.clauses)), **options)
    return f"least({change}, {_NUMBER.format('pg_snapshot_xmin(pg_current_snapshot())')} - 1)"


@compiles(any_case, "sqlite")
def _sqlite_any_case(element: any_case, compiler: SQLCompiler, **options: Any) -> str:
    # The readers' own function: SQLite's knows ASCII only.
    return f"lower({compiler.process(next(iter(element.clauses)), **options)})"


@compiles(any_case, "postgresql")
def _postgresql_any_case(element: any_case, compiler: SQLCompiler, **options: Any) -> str:
    return f"sessionstore_lower({compiler.process(next(iter(element.clauses)), **options)})"


@compiles(json_has, "postgresql")
def _postgresql_has(element: json_has, compiler: SQLCompiler, **options: Any) -> str:
    column, key, *value = (compiler.process(clause, **options) for clause in element.clauses)
    text = "CASE json_typeof(entry.value) WHEN 'string' THEN entry.value #>> '{}' ELSE entry.value::text END"
    wanted = f" AND {text} = {value[0]}" if value else ""
    return f"EXISTS (SELECT 1 FROM json_each(sessionstore_json({column})) AS entry(key, value) WHERE entry.key = {key}{wanted})"


@compiles(json_number, "postgresql")
def _postgresql_number(element: json_number, compiler: SQLCompiler, **options: Any) -> str:
    column, name = (compiler.process(clause, **options) for clause in element.clauses)
    value = f"sessionstore_json({column}) -> {name}"
    number = f"(sessionstore_json({column}) ->> {name})::numeric"
    return f"CASE WHEN json_typeof({value}) = 'number' THEN CASE WHEN {number} BETWEEN 0 AND {MOST_USED} THEN {number} END END"
