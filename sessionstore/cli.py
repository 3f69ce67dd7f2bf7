"""The command line. Data goes to stdout, words about it to stderr; exit codes are those of sysexits where they say something.

0 done · 1 refused or failed · 2 wrong usage · 69 database unavailable · 75 busy or being generated, try again
"""

import dataclasses
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import msgspec

import sessionstore
from sessionstore import migrate as migrations
from sessionstore.database import Database
from sessionstore.dialect import path_of
from sessionstore.doctor import examine
from sessionstore.errors import (
    DatabaseUnusable,
    Generating,
    InvalidInput,
    SchemaBehind,
    SessionStoreError,
    Unavailable,
)
from sessionstore.model import Conversation, Message
from sessionstore.settings import Settings
from sessionstore.store import Store

EX_UNAVAILABLE, EX_TEMPFAIL = 69, 75

database_option = click.option(
    "--database", metavar="URL", help="sqlite:///path/to/file.db (SESSIONSTORE_DATABASE_URL, or a file in your data directory)."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON: one object, or one a line.")


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


@click.group(cls=Commands)
@click.version_option(sessionstore.__version__, prog_name="sessionstore")
def main() -> None:
    """A transactional session store for AI-agent servers.

    \b
    Example: sessionstore serve
             sessionstore conversations --json
    """


@main.command()
@database_option
@json_option
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
def migrate(database: str | None, *, as_json: bool, dry_run: bool) -> None:
    """Bring the database to the newest schema, creating it if there is none.

    \b
    Example: sessionstore migrate --database sqlite:///conversations.db
    """
    settings = settings_of(database)
    before = _revision(settings)
    if not dry_run:
        migrations.upgrade(settings.database_url)
    done = {"file": str(file_of(settings)), "from": before, "to": migrations.HEAD, "dry_run": dry_run}
    verb = "would go" if dry_run else "went"
    _print(done, f"{done['file']} {verb} from {before or 'nothing'} to {done['to']}", as_json=as_json)


@main.command()
@database_option
@json_option
def doctor(database: str | None, *, as_json: bool) -> None:
    """Examine the database: engine, settings, schema, sizes, integrity, leases. Exit code 1 when something is wrong.

    \b
    Example: sessionstore doctor --json
    """
    settings = settings_of(database)
    options = settings.store_options()
    opened = Database(settings.database_url, synchronous=options["synchronous"], busy_timeout_ms=options["busy_timeout_ms"])
    try:
        found = examine(opened)
    finally:
        opened.close()
    verdict = "healthy" if not found["problems"] else "NOT healthy"
    _print(found, "\n".join([*_lines(found), f"This database is {verdict}."]), as_json=as_json)
    if found["problems"]:
        raise click.exceptions.Exit(1)


@main.command()
@database_option
@json_option
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many.")
@click.option("--containing", metavar="TEXT", help="Only those with TEXT in their title or id, in any case.")
def conversations(database: str | None, *, as_json: bool, limit: int, containing: str | None) -> None:
    """List conversations, the latest change first.

    \b
    Example: sessionstore conversations --containing invoice
    """
    with _store(database) as store:
        for conversation in _pages(store, limit, containing):
            _print(_plain(conversation), _conversation_line(conversation), as_json=as_json)


@main.command()
@database_option
@json_option
@click.argument("id")
def show(database: str | None, id: str, *, as_json: bool) -> None:
    """Show a conversation and its transcript.

    \b
    Example: sessionstore show 01a22948-0967-7590-8f36-9f2c30028444
    """
    with _store(database) as store:
        conversation = store.get(id)
        _print(_plain(conversation), _conversation_line(conversation), as_json=as_json)
        for message in _transcript(store, id):
            _print(_plain(message), _message_line(message), as_json=as_json)


@main.command()
@database_option
@json_option
def leases(database: str | None, *, as_json: bool) -> None:
    """List the turns that are going on, and those whose holder has gone silent.

    \b
    Example: sessionstore leases
    """
    with _store(database) as store:
        for conversation in store.leases():
            _print(_plain(conversation), _lease_line(conversation), as_json=as_json)


def settings_of(database: str | None, **given: Any) -> Settings:
    """The environment's settings, with what was said on the command line instead where something was."""
    try:
        settings = Settings.from_environment()
    except InvalidInput as error:
        raise click.UsageError(str(error)) from error
    said = {name: value for name, value in {"database_url": database, **given}.items() if value is not None}
    return dataclasses.replace(settings, **said)


def file_of(settings: Settings) -> Path:
    """Where the database is."""
    return path_of(settings.database_url)


@contextmanager
def _store(database: str | None) -> Iterator[Store]:
    settings = settings_of(database)
    with Store.open(settings.database_url, **settings.store_options()) as store:
        yield store


def _revision(settings: Settings) -> str | None:
    if not file_of(settings).exists():
        return None
    database = Database(settings.database_url)
    try:
        migrations.verify(database)
    except SchemaBehind:
        return migrations.current(database)
    finally:
        database.close()
    return migrations.HEAD


def _pages(store: Store, limit: int, containing: str | None) -> Iterator[Conversation]:
    before = None
    while limit > 0:
        page = store.conversations(containing=containing, before=before, limit=min(limit, store.limits.page))
        yield from page.items
        limit, before = limit - len(page.items), page.next
        if before is None:
            return


def _transcript(store: Store, id: str) -> Iterator[Message]:
    after = None
    while True:
        page = store.messages(id, after=after, limit=store.limits.page)
        yield from page.items
        after = page.next
        if after is None:
            return


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


def _print(data: dict[str, Any], words: str, *, as_json: bool) -> None:
    click.echo(json.dumps(data) if as_json else words)


def _plain(value: Conversation | Message) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(value)
    for name in [name for name in plain if name.endswith("_json")]:
        plain[name.removesuffix("_json")] = getattr(value, name.removesuffix("_json"))
        del plain[name]
    return plain


def _time(milliseconds: int) -> str:
    return f"{datetime.fromtimestamp(milliseconds // 1000, UTC):%Y-%m-%d %H:%M:%SZ}"


def _state(conversation: Conversation) -> str:
    turn = conversation.generation
    if turn is None:
        return "idle"
    return f"{'expired' if turn.expired else 'generating'} ({turn.holder})"


def _conversation_line(conversation: Conversation) -> str:
    count, title = f"{conversation.message_count} messages", _visible(conversation.title or "")
    return "\t".join([conversation.id, _time(conversation.updated_at), count, _state(conversation), title])


def _message_line(message: Message) -> str:
    content = message.content
    text = content if isinstance(content, str) else message.content_json or ""
    status = "" if message.status == "complete" else f" ({message.status})"
    return f"{message.position}\t{message.role}{status}\t{_visible(text)}"


def _visible(text: str) -> str:
    """One line that does nothing to a terminal: control characters and lone surrogates as their escapes."""
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def _lease_line(conversation: Conversation) -> str:
    turn = conversation.generation
    if turn is None:
        return ""
    asked = "interrupt requested" if turn.interrupt_requested else ""
    return "\t".join([conversation.id, _state(conversation), f"until {_time(turn.expires_at)}", turn.phase, asked])


def _lines(found: dict[str, Any]) -> Iterator[str]:
    for name, value in found.items():
        inside = ", ".join(f"{key}={inner}" for key, inner in value.items()) if isinstance(value, dict) else value
        shown = "; ".join(inside) if isinstance(inside, list) else inside
        yield f"{name.replace('_', ' '):15} {'none' if shown in (None, '') else shown}"


if __name__ == "__main__":
    main()
