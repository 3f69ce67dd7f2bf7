"""Commands about keys: who may speak to a server of this database."""

import click

from sessionstore import migrate as migrations
from sessionstore.cli.group import main
from sessionstore.cli.options import AGE, database_option, json_option, opened, settings_of
from sessionstore.cli.printing import plain, show_one, time_of, visible
from sessionstore.keys import Key


@main.group()
def keys() -> None:
    """Make, list and revoke the keys with which one may speak to a server of this database.

    \b
    Example: sessionstore keys create laptop --owner ann --expires 90d
    """


@keys.command()
@database_option
@json_option
@click.option("--owner", required=True, help="For whom it acts. '' owns what was made before there were keys.")
@click.option("--read-only", is_flag=True, help="It changes nothing.")
@click.option("--admin", is_flag=True, help="It may end others' turns by force, and see the metrics.")
@click.option("--expires", type=AGE, metavar="AGE", help="It is good for so long, like 90d or 12h; without it, until revoked.")
@click.argument("name")
def create(
    database: str | None, *, as_json: bool, owner: str, read_only: bool, admin: bool, expires: int | None, name: str
) -> None:
    """Make a key called NAME and print it: this once, since only its hash is stored. From then on nobody is served without one.

    \b
    Example: sessionstore keys create laptop --owner ann --expires 90d
             KEY=$(sessionstore keys create reports --owner ann --read-only)
    """
    migrations.upgrade(settings_of(database).database_url)
    with opened(database) as store:
        made = store.keys.create(name, owner, read_only=read_only, admin=admin, expires_after_ms=expires)
    show_one({**plain(made.key), "secret": made.secret}, made.secret, as_json=as_json)
    if not as_json:
        click.echo(f"{_words(made.key)}. Send it as `Authorization: Bearer …`; it is not shown again.", err=True)


@keys.command(name="list")
@database_option
@json_option
def list_keys(database: str | None, *, as_json: bool) -> None:
    """List all keys that ever were, without themselves: name, owner, rights, and until when.

    \b
    Example: sessionstore keys list --json
    """
    with opened(database) as store:
        now = store.database.now()
        for key in store.keys.list():
            state = "over" if key.over(now) else "valid"
            show_one({**plain(key), "valid": not key.over(now)}, f"{_words(key)}\t{state}", as_json=as_json)


@keys.command()
@database_option
@json_option
@click.argument("name")
def revoke(database: str | None, *, as_json: bool, name: str) -> None:
    """Make the key called NAME good for nothing, for ever. Servers notice within a second, and end its event streams.

    \b
    Example: sessionstore keys revoke laptop
    """
    with opened(database) as store:
        revoked = store.keys.revoke(name)
    show_one(plain(revoked), f"{visible(name)} is revoked", as_json=as_json)


def _words(key: Key) -> str:
    rights = [word for word, has in (("read-only", key.read_only), ("admin", key.admin)) if has]
    until = "until revoked" if key.expires_at is None else f"until {time_of(key.expires_at)}"
    if key.revoked_at is not None:
        until = f"revoked {time_of(key.revoked_at)}"
    return "\t".join([visible(key.name), f"for {visible(key.owner) or 'nobody by name'}", *rights, until])
