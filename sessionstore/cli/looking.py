"""Commands that only look."""

from collections.abc import Iterator
from textwrap import dedent

import click

from sessionstore.cli.group import main
from sessionstore.cli.options import AGE, database_option, json_option, opened, owner_option, settings_of
from sessionstore.cli.printing import (
    check_lines,
    conversation_line,
    found_line,
    lease_line,
    lines,
    message_line,
    plain,
    show_one,
    usage_line,
)
from sessionstore.doctor import examine
from sessionstore.engines import invariants_of, open_database
from sessionstore.invariants import LEFTOVERS
from sessionstore.model import Conversation, Message, UsageBy
from sessionstore.store import Store


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
    opened = open_database(
        settings.database_url, synchronous=options["synchronous"], busy_timeout_ms=options["busy_timeout_ms"]
    )
    try:
        found = examine(opened)
    finally:
        opened.close()
    verdict = "healthy" if not found["problems"] else "NOT healthy"
    show_one(found, "\n".join([*lines(found), f"This database is {verdict}."]), as_json=as_json)
    if found["problems"]:
        raise click.exceptions.Exit(1)


@main.command()
@database_option
@json_option
@click.option("--repair", is_flag=True, help="Put right what can be told from the rest.")
@click.option("--sql", "as_sql", is_flag=True, help="Print the queries instead, for a SQL prompt of your own.")
def check(database: str | None, *, as_json: bool, repair: bool, as_sql: bool) -> None:
    """Check the file and all that is always true of what is in it. Exit code 1 when something is wrong and stays so.

    Others go on working meanwhile. What has no repair is for a backup to mend.

    \b
    Example: sessionstore check
             sessionstore check --sql | sqlite3 -readonly conversations.db
    """
    if as_sql:
        queries = (*invariants_of(settings_of(database).database_url), LEFTOVERS)
        click.echo("\n".join(f"-- {one.name}: {one.about}{dedent(one.sql)};" for one in queries))
        return
    with opened(database) as store:
        found = store.check()
        repaired = store.repair(found) if repair and found.faults else []
        left = store.check() if repaired else found
    shown = {**plain(left), "sound": left.sound, "repaired": [plain(fault) for fault in repaired]}
    show_one(shown, "\n".join(check_lines(left, repaired)), as_json=as_json)
    if not left.sound:
        raise click.exceptions.Exit(1)


@main.command()
@database_option
@owner_option
@json_option
@click.option("--limit", type=click.IntRange(min=1), default=50, show_default=True, help="At most so many.")
@click.option("--containing", metavar="TEXT", help="Only those with TEXT in their title or id, in any case.")
def conversations(database: str | None, *, as_json: bool, limit: int, containing: str | None) -> None:
    """List conversations, the latest change first.

    \b
    Example: sessionstore conversations --containing invoice
    """
    with opened(database) as store:
        for conversation in _pages(store, limit, containing):
            show_one(plain(conversation), conversation_line(conversation), as_json=as_json)


@main.command()
@database_option
@owner_option
@json_option
@click.argument("id")
def show(database: str | None, id: str, *, as_json: bool) -> None:
    """Show a conversation and its transcript.

    \b
    Example: sessionstore show 01a22948-0967-7590-8f36-9f2c30028444
    """
    with opened(database) as store:
        conversation = store.get(id)
        show_one(plain(conversation), conversation_line(conversation), as_json=as_json)
        for message in _transcript(store, id):
            show_one(plain(message), message_line(message), as_json=as_json)


@main.command()
@database_option
@owner_option
@json_option
def leases(database: str | None, *, as_json: bool) -> None:
    """List the turns that are going on, and those whose holder has gone silent.

    \b
    Example: sessionstore leases
    """
    with opened(database) as store:
        for conversation in store.leases():
            show_one(plain(conversation), lease_line(conversation), as_json=as_json)


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


@main.command()
@database_option
@owner_option
@json_option
@click.option("--conversation", "conversation_id", metavar="ID", help="Only in this conversation.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most so many.")
@click.argument("text")
def search(database: str | None, *, as_json: bool, conversation_id: str | None, limit: int, text: str) -> None:
    """Find messages that have every word of TEXT, the last stored first. Nothing in TEXT is syntax.

    \b
    Example: sessionstore search "invoice march"
    """
    with opened(database) as store:
        before = None
        while limit > 0:
            size = min(limit, store.limits.page)
            page = store.search(text, conversation_id=conversation_id, before=before, limit=size)
            for found in page.items:
                show_one(plain(found), found_line(found), as_json=as_json)
            limit, before = limit - len(page.items), page.next
            if before is None:
                return


@main.command()
@database_option
@owner_option
@json_option
@click.option("--by", type=click.Choice(["total", "day", "conversation"]), default="total", show_default=True)
@click.option("--conversation", "conversation_id", metavar="ID", help="Only of this conversation and what came from it.")
@click.option("--since", type=AGE, help="Only of turns that ended so long ago at most, like 30d or 12h.")
def usage(database: str | None, *, as_json: bool, by: UsageBy, conversation_id: str | None, since: int | None) -> None:
    """What was used: tokens and cost, as the turns told them, added up.

    \b
    Example: sessionstore usage --by day --since 30d
    """
    with opened(database) as store:
        after, begin = None, None if since is None else max(0, store.database.now() - since)
        while True:
            page = store.usage(
                conversation_id=conversation_id,
                descendants=conversation_id is not None,
                since=begin,
                by=by,
                after=after,
                limit=store.limits.page,
            )
            for sums in page.items:
                show_one(plain(sums), usage_line(sums), as_json=as_json)
            after = page.next
            if after is None:
                return
