"""The group of all commands: the library's own, and those that installed packages offer."""

import errno
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any

import click

import sessionstore
from sessionstore.errors import DatabaseUnusable, Generating, SessionStoreError, Unavailable

EX_UNAVAILABLE, EX_IOERR, EX_TEMPFAIL = 69, 74, 75


class Commands(click.Group):
    """The library's commands, and those that installed packages offer. Errors become one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names."""
        return sorted({*super().list_commands(ctx), *(found.name for found in _offered())})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name; one whose packages are missing says so when it is called."""
        for found in _offered():
            if found.name == cmd_name:
                return _load(found)
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except SessionStoreError as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(_exit_code(error))
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise
            click.echo(f"Error: {error.filename or 'the output'}: {error.strerror}", err=True)
            ctx.exit(EX_IOERR)


@click.group(cls=Commands)
@click.version_option(sessionstore.__version__, prog_name="sessionstore")
def main() -> None:
    """A transactional session store for AI-agent servers.

    \b
    Example: sessionstore serve
             sessionstore conversations --json
    """


def _offered() -> Iterable[Any]:
    return entry_points(group="sessionstore.commands")


def _load(found: Any) -> click.Command:
    try:
        return found.load()  # type: ignore[no-any-return]
    except ImportError as error:
        missing = error.name

        @click.command(found.name, help="Needs more packages: pip install 'sessionstore[api]'.")
        def unavailable() -> None:
            raise click.ClickException(f"{missing} is not installed: pip install 'sessionstore[api]'")

        return unavailable


def _exit_code(error: SessionStoreError) -> int:
    if isinstance(error, Unavailable | Generating) and error.retryable:
        return EX_TEMPFAIL
    return EX_UNAVAILABLE if isinstance(error, DatabaseUnusable) else 1
