"""JSON in SQL, in the words of each database: what `statements` says and `dialect` does not have to."""

from typing import Any

from sqlalchemy import Boolean, Float
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from sessionstore.limits import MOST_USED


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
