"""`sessionstore serve`: the HTTP server. Beyond this machine it serves those who have a key."""

import asyncio
import gc
import ipaddress
import signal
import socket
from types import FrameType
from typing import Any

import click
import uvicorn
from sse_starlette.sse import AppStatus
from starlette.applications import Starlette

from sessionstore import Store, migrate
from sessionstore.cli.options import database_option, settings_of
from sessionstore.engines import exists, name_of
from sessionstore.settings import Settings
from sessionstore_api.app import create_app
from sessionstore_api.logs import configure
from sessionstore_api.protocol import Bounded, protocol_of

try:
    import resource
except ImportError:  # Windows has none
    resource = None  # type: ignore[assignment]

# Calls leave no cycles behind, so there is little to find: 700, the default, is a fraction of one call's objects.
COLLECT_AFTER = 20_000
# How long a client may take to read the last words of a server that stops.
STOPPING_SECONDS = 3.0
UVICORNS_HANDLE_EXIT: Any = AppStatus.original_handler


@click.command()
@database_option
@click.option("--host", help="The address to listen on (127.0.0.1); any other than this machine's own needs keys.")
@click.option("--port", type=click.IntRange(0, 65535), help="The port to listen on (8080); 0 takes a free one.")
def serve(database: str | None, host: str | None, port: int | None) -> None:
    """Serve conversations over HTTP, and bring the database to the newest schema first.

    \b
    Example: sessionstore serve --database sqlite:///conversations.db --port 8080
    """
    settings = settings_of(database, host=host, port=port)
    local = is_this_machine(settings.host)
    if local or exists(settings.database_url):
        migrate.upgrade(settings.database_url)
    if not local:
        _want_keys(settings)
    configure(settings)
    allow_many_sockets()
    listener = _listen(settings)
    _Server(settings, listener).run(sockets=[listener])


class Server(uvicorn.Server):
    """Serves an application of ours, and stops in good order."""

    def __init__(self, app: Starlette, settings: Settings) -> None:
        config = uvicorn.Config(
            app,
            loop="auto",
            http=protocol_of(settings),
            h11_max_incomplete_event_size=settings.head_bytes,
            ws="none",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=settings.shutdown_seconds,
        )
        super().__init__(config)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the events first, which have no end of their own: whoever follows is told, if he reads."""
        if "store" in self.lifespan.state:
            self.lifespan.state["store"].end_events()
        asyncio.get_running_loop().call_later(STOPPING_SECONDS, self._let_go)
        await super().shutdown(sockets)

    def _let_go(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, Bounded) and connection.waits_for_reader:
                connection.transport.abort()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop, without sse_starlette's word for it: that one is the process's, and no later server of it would live."""
        UVICORNS_HANDLE_EXIT(self, sig, frame)


class _Server(Server):
    def __init__(self, settings: Settings, listener: socket.socket) -> None:
        super().__init__(create_app(settings), settings)
        self._settings, self._listener = settings, listener

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        spare_the_collector()
        host, port = self._listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        click.echo(f"Listening on http://{shown}:{port} (documentation: /docs)")
        click.echo(f"Database {name_of(self._settings.database_url)}")

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until SIGTERM or SIGINT; both end in good order, which is exit code 0."""
        # uvicorn raises the signal again once it has shut down; these handlers receive that.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _already_stopped)
        super().run(sockets)


def spare_the_collector() -> None:
    """What was loaded stays for ever: to look through it again and again would stop every call for 40 ms (measured)."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)


def _already_stopped(_: int, __: FrameType | None) -> None:
    pass


def allow_many_sockets() -> None:
    """As many as the machine lets us: the customary 1,024 are soon taken by clients who say nothing."""
    if resource is not None:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def is_this_machine(host: str) -> bool:
    """Whether nobody from elsewhere can reach that address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _want_keys(settings: Settings) -> None:
    if exists(settings.database_url):
        with Store.open(settings.database_url, **settings.store_options()) as store:
            if store.keys.any():
                return
    raise click.UsageError(
        f"{settings.host} is not a loopback address, and without keys the whole network would read along:"
        " make one first (sessionstore keys create NAME --owner OWNER)."
    )


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise click.ClickException(f"Cannot listen on {settings.host}:{settings.port}: {error.strerror}") from error
    return listener
