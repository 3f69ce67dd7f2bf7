"""What many commands take: which database, and whether to print JSON."""

import dataclasses
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from sessionstore.errors import InvalidInput
from sessionstore.settings import Settings
from sessionstore.store import Store

database_option = click.option(
    "--database",
    metavar="URL",
    help="sqlite:///path/to/file.db or postgresql://… (SESSIONSTORE_DATABASE_URL, or a file in your data directory).",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON: one object, or one a line.")


def _note_owner(context: click.Context, _: click.Parameter, owner: str) -> None:
    context.meta[OWNER] = owner


OWNER = "sessionstore.owner"
owner_option = click.option(
    "--owner",
    envvar="SESSIONSTORE_OWNER",
    default="",
    metavar="NAME",
    expose_value=False,
    callback=_note_owner,
    help="Whose conversations; without it, those made without keys (SESSIONSTORE_OWNER).",
)
"""Of commands about one owner's conversations: `opened` knows it."""


def settings_of(database: str | None, **given: Any) -> Settings:
    """The environment's settings, with what was said on the command line instead where something was."""
    try:
        settings = Settings.from_environment()
    except InvalidInput as error:
        raise click.UsageError(str(error)) from error
    said = {name: value for name, value in {"database_url": database, **given}.items() if value is not None}
    return dataclasses.replace(settings, **said)


@contextmanager
def opened(database: str | None) -> Iterator[Store]:
    """The store of that database, of the owner that was named, if one was."""
    settings, owner = settings_of(database), click.get_current_context().meta.get(OWNER, "")
    with Store.open(settings.database_url, owner=owner, **settings.store_options()) as store:
        yield store


class Age(click.ParamType[int]):
    """A time like 90d, 12h, 30m or 45s, in milliseconds."""

    name = "age"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The milliseconds."""
        if isinstance(value, int):
            return value
        found = _AGE.fullmatch(value)
        if found is None:
            self.fail(f"{value!r} is no age; 90d, 12h, 30m and 45s are", param, ctx)
        return int(found[1]) * _UNITS[found[2]]


_AGE = re.compile("([0-9]{1,9})([smhd])")
_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
AGE = Age()
