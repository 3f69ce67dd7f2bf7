"""Commands that change something."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import click

from sessionstore import migrate as migrations
from sessionstore.cli.group import EX_TEMPFAIL, main
from sessionstore.cli.options import AGE, database_option, json_option, opened, owner_option, settings_of
from sessionstore.cli.printing import plain, show_one
from sessionstore.engines import exists, name_of, open_database
from sessionstore.errors import SchemaBehind, SessionStoreError
from sessionstore.exporting import Format
from sessionstore.model import Imported, Pruned
from sessionstore.settings import Settings
from sessionstore.store import copy as copied
from sessionstore.store import restore as restored


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
    done = {"database": name_of(settings.database_url), "from": before, "to": migrations.HEAD, "dry_run": dry_run}
    verb = "would go" if dry_run else "went"
    show_one(done, f"{done['database']} {verb} from {before or 'nothing'} to {done['to']}", as_json=as_json)


@main.command()
@database_option
@owner_option
@json_option
@click.option("--after", "after_position", type=click.IntRange(min=-1), help="Take back what stands after this position.")
@click.option("--backup", metavar="ID", help="The id of the fork that keeps everything; one is made otherwise.")
@click.argument("id")
def undo(database: str | None, *, as_json: bool, after_position: int | None, backup: str | None, id: str) -> None:
    """Take back the last thing that a person said in conversation ID, and all after it. A fork keeps everything.

    \b
    Example: sessionstore undo garden
    """
    with opened(database) as store:
        done = store.undo(id, backup, after_position=after_position).value
        words = f"{done.removed} messages taken back; {done.backup.id} has them all"
        show_one({"id": id, "removed": done.removed, "backup": done.backup.id}, words, as_json=as_json)


@main.command()
@database_option
@owner_option
@json_option
@click.option("--older-than", type=AGE, metavar="AGE", help="Conversations that have not changed for so long, like 90d or 12h.")
@click.option("--keep", type=click.IntRange(min=0), help="All conversations but so many that changed last.")
@click.option("--messages-older-than", type=AGE, metavar="AGE", help="Older messages of the conversations that stay.")
@click.option("--keep-messages", type=click.IntRange(min=1), help="All but the newest so many messages of each.")
@click.option(
    "--tombstones-older-than", type=AGE, metavar="AGE", default="30d", show_default=True, help="What is left of deleted ones."
)
@click.option("--dry-run", is_flag=True, help="Say what would be forgotten, and forget nothing.")
@click.option("--all-owners", is_flag=True, help="Of each owner, as far as it is too old or too much of his.")
def prune(
    database: str | None,
    *,
    as_json: bool,
    older_than: int | None,
    keep: int | None,
    messages_older_than: int | None,
    keep_messages: int | None,
    tombstones_older_than: int,
    dry_run: bool,
    all_owners: bool,
) -> None:
    """Forget what is old, or too much. What is being generated is left alone; others can write meanwhile.

    \b
    Example: sessionstore prune --older-than 90d --dry-run
             sessionstore prune --older-than 90d && sessionstore purge
    """
    wanted: dict[str, Any] = {
        "older_than_ms": older_than,
        "keep": keep,
        "messages_older_than_ms": messages_older_than,
        "keep_messages": keep_messages,
        "tombstones_older_than_ms": tombstones_older_than,
    }
    with opened(database) as store, _bar("Forgetting", shown=not dry_run) as advance:
        stores = [store.of(owner) for owner in store.owners()] if all_owners else [store]
        planned = sum((one.prune(**wanted, dry_run=True) for one in stores), Pruned())
        done, total = planned if dry_run else Pruned(), _pieces(planned)
        for one in [] if dry_run else stores:
            done += one.prune(**wanted, progress=partial(_advance, advance, done, total))
    verb = "would be forgotten" if dry_run else f"forgotten, {done.skipped} left alone"
    words = f"{done.conversations} conversations, {done.messages} messages, {done.tombstones} tombstones {verb}"
    show_one({**plain(done), "dry_run": dry_run}, words, as_json=as_json)


@main.command()
@database_option
@json_option
def purge(database: str | None, *, as_json: bool) -> None:
    """Make sure that deleted text is in neither file, log nor index any more. Exit code 75 while somebody still reads it.

    \b
    Example: sessionstore purge
    """
    with opened(database) as store:
        purged = store.purge()
    words = "nothing that was deleted is left" if purged else "somebody is reading: try again later"
    show_one({"purged": purged}, words, as_json=as_json)
    if not purged:
        raise click.exceptions.Exit(EX_TEMPFAIL)


@main.command()
@database_option
@json_option
@click.option("--keep", type=click.IntRange(min=1), help="Keep the newest so many, and remove older ones of this database.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
def backup(database: str | None, *, as_json: bool, keep: int | None, folder: Path) -> None:
    """Write a backup into FOLDER while everybody works. It is checked, durable, and for its owner only.

    Exit code 1 when it was written, and what is in it is not as it always is: see `sessionstore check`.

    \b
    Example: sessionstore backup --keep 14 /var/backups/sessionstore
    """
    with opened(database) as store:
        done = store.backup(folder, keep=keep)
    show_one(plain(done), f"{done.file}, {done.bytes} bytes; {done.removed} older ones removed", as_json=as_json)
    _warn(done.faults)


@main.command()
@database_option
@json_option
@click.argument("backup", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--keep-keys", is_flag=True, help="No key has been revoked since BACKUP was made.")
def restore(database: str | None, *, as_json: bool, backup: Path, keep_keys: bool) -> None:
    """Make BACKUP the database, where there is none: never over one. Conversations begin new lives, leases and keys are over.

    \b
    Example: sessionstore restore /var/backups/sessionstore/store-7d2f61-20261201T013940.123Z.db
    """
    done = restored(backup, settings_of(database).database_url, keep_keys=keep_keys)
    show_one(plain(done), f"{done.file} is restored, {done.bytes} bytes", as_json=as_json)
    if done.revoked_keys:
        click.echo(f"{done.revoked_keys} keys are revoked: make new ones, or say --keep-keys.", err=True)
    _warn(done.faults)


@main.command()
@json_option
@click.option("--from", "source", metavar="URL", required=True, help="The database that is copied. It is only read.")
@click.option("--to", "target", metavar="URL", required=True, help="An empty one, or one that this copy has begun.")
def copy(*, as_json: bool, source: str, target: str) -> None:
    """Copy a database into an empty one, of the same kind or another: every row as it is, leases too.

    Stop what writes to it first. Interrupted, it goes on when it is run again; until it is whole nobody can open the target.

    \b
    Example: sessionstore copy --from sqlite:///conversations.db --to postgresql://store@db.example/conversations
    """
    with _bar("Copying", shown=True) as advance:
        done = copied(source, target, progress=lambda done: advance(done.conversations, done.total))
    words = f"{done.conversations} conversations are in {name_of(target)}; {done.messages} messages were written"
    show_one({**plain(done), "from": name_of(source), "to": name_of(target)}, words, as_json=as_json)


def _warn(faults: Sequence[str]) -> None:
    """It is there, and not as it should be."""
    for fault in faults:
        click.echo(f"Not as it always is: {fault}", err=True)
    if faults:
        click.echo("Run `sessionstore check --repair` on the database.", err=True)
        raise click.exceptions.Exit(1)


@main.command()
@database_option
@owner_option
@json_option
@click.option("--format", "form", type=click.Choice(["jsonl", "markdown"]), default="jsonl", show_default=True)
@click.option(
    "--output", "-o", type=click.Path(dir_okay=False, path_type=Path), help="A new file, for its owner only; or stdout."
)
@click.argument("ids", nargs=-1, metavar="[ID]…")
def export(database: str | None, *, as_json: bool, form: Format, output: Path | None, ids: tuple[str, ...]) -> None:
    """Write conversations out: those named, or all; as JSON Lines for `import`, or as Markdown to read.

    \b
    Example: sessionstore export -o conversations.jsonl
             sessionstore export --format markdown garden
    """
    with opened(database) as store, _written(output) as file, _bar("Exporting", shown=output is not None) as advance:
        done = store.export(file, ids or None, format=form, progress=lambda done: advance(done.conversations, done.total))
    if output is not None:
        words = f"{done.conversations} conversations, {done.messages} messages written to {output}"
        show_one({**plain(done), "file": str(output)}, words, as_json=as_json)


@main.command(name="import")
@database_option
@owner_option
@json_option
@click.option("--skip-existing", is_flag=True, help="Leave out conversations whose id is taken, instead of stopping there.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def import_(database: str | None, *, as_json: bool, skip_existing: bool, file: Path) -> None:
    """Bring conversations in that `export` has written as JSON Lines. Each comes whole, as it was, or not at all.

    \b
    Example: sessionstore import conversations.jsonl
    """
    size = file.stat().st_size
    so_far = Imported()

    def note(done: Imported) -> None:
        nonlocal so_far
        so_far = done
        advance(done.bytes, size)

    with opened(database) as store, file.open("rb") as lines, _bar("Importing", shown=True) as advance:
        try:
            done = store.import_(lines, skip_existing=skip_existing, progress=note)
        except SessionStoreError:
            click.echo(f"{so_far.conversations} conversations were imported before this:", err=True)
            raise
    words = f"{done.conversations} conversations, {done.messages} messages imported, {done.skipped} left out"
    show_one(plain(done), words, as_json=as_json)


def _advance(advance: Callable[[int, int], None], before: Pruned, total: int, part: Pruned) -> None:
    advance(_pieces(before + part), total)


def _pieces(done: Pruned) -> int:
    return done.conversations + done.messages + done.tombstones


@contextmanager
def _written(output: Path | None) -> Iterator[BinaryIO]:
    """Where to write: stdout, or a file that was not there, for its owner only, which gets its name when it is whole."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if output.exists():
        raise click.ClickException(f"{output} is there already")
    # The name that it has until then is private by itself.
    with tempfile.NamedTemporaryFile(dir=output.parent, prefix=".sessionstore-export-") as file:
        yield cast("BinaryIO", file)
        file.flush()
        os.fsync(file.fileno())
        os.link(file.name, output)


@contextmanager
def _bar(label: str, *, shown: bool) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on stderr, where somebody sees it; it is told how much is done so far, and of how much."""
    if not shown or not sys.stderr.isatty():
        yield lambda _so_far, _of: None
        return
    with click.progressbar(length=1, label=label, file=sys.stderr) as bar:

        def advance(so_far: int, of: int) -> None:
            bar.length = max(1, of)
            bar.update(min(so_far, of) - bar.pos)

        yield advance


def _revision(settings: Settings) -> str | None:
    if not exists(settings.database_url):
        return None
    database = open_database(settings.database_url)
    try:
        migrations.verify(database)
    except SchemaBehind:
        return migrations.current(database)
    finally:
        database.close()
    return migrations.HEAD
