"""A PostgreSQL server of our own for tests: in a temporary folder, on the loopback, ended when it is done with.

It is never one that happens to be there. As root the server runs under another user, since PostgreSQL refuses to be root's.
"""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg

BINARIES = "SESSIONSTORE_TEST_POSTGRESQL"
"""Where `initdb` and `postgres` are, if not where Debian puts them or on the path."""
UNPRIVILEGED = ("postgres", "nobody")
# What analyzes by itself is a transaction like any other, and the list's feed would wait for it.
QUICK = {"fsync": "off", "synchronous_commit": "on", "full_page_writes": "off", "autovacuum": "off"}
DURABLE = {"fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "autovacuum": "off"}
STARTING_SECONDS = 60
ENDED = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
EMPTIED = (
    "TRUNCATE conversations, messages, generations, pruned, keys RESTART IDENTITY",
    "UPDATE change_epoch SET base = 0",
)


def binaries() -> Path | None:
    """The newest PostgreSQL that is installed here, or None."""
    named = os.environ.get(BINARIES)
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name), reverse=True)
    found = shutil.which("initdb")
    places = [Path(named)] if named else [*debian, *([Path(found).resolve().parent] if found else [])]
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


class Server:
    """One server. It can be stopped, killed, started again, and followed by a standby."""

    def __init__(self, settings: Mapping[str, str] = QUICK, *, follows: "Server | None" = None, port: int = 0) -> None:
        found = binaries()
        assert found is not None
        self._binaries, self._settings = found, dict(settings)
        self._user = next((name for name in UNPRIVILEGED if _is_user(name)), None) if os.geteuid() == 0 else None
        self.port = port or free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="sessionstore-postgresql-"))
        self.data = self.folder / "data"
        if self._user:
            self.folder.chmod(0o755)
            shutil.chown(self.folder, self._user)
        self._process: subprocess.Popen[bytes] | None = None
        self._free: list[str] = []
        if follows is None:
            self._run("initdb", "--pgdata", self.data, "--username=store", "--auth=trust", "--encoding=UTF8", "--no-sync",
                      "--locale=C.UTF-8")  # fmt: skip
            with (self.data / "pg_hba.conf").open("a") as rules:
                rules.write("host replication all 127.0.0.1/32 trust\n")
        else:
            source = f"host=127.0.0.1 port={follows.port} user=store application_name=standby"
            self._run("pg_basebackup", "--pgdata", self.data, "--dbname", source, "--write-recovery-conf", "--checkpoint=fast",
                      "--no-sync")  # fmt: skip
        self.start()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        settings = {
            "port": str(self.port), "listen_addresses": "127.0.0.1", "unix_socket_directories": str(self.folder),
            "max_connections": "300", "shared_buffers": "64MB", "log_min_messages": "fatal", **self._settings,
        }  # fmt: skip
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._binaries / "postgres", "-D", self.data, *options], stdout=log, stderr=log, cwd=self.folder,
                start_new_session=True, **self._as_user(),
            )  # fmt: skip
        self._wait()

    def _wait(self) -> None:
        end = time.monotonic() + STARTING_SECONDS
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                assert self._process is not None
                if self._process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError((self.folder / "log").read_text()) from None
                time.sleep(0.02)

    def url(self, database: str) -> str:
        """How a database on it is reached."""
        return f"postgresql://store@127.0.0.1:{self.port}/{database}"

    @contextmanager
    def database(self, template: str = "template") -> Iterator[str]:
        """An empty database with the schema of another one, for as long as it is needed: how it is reached."""
        name = self._free.pop() if self._free else self._create(template)
        yield self.url(name)
        try:
            self.execute(ENDED.format(name=name))
            # Creating and dropping one for each test would be most of the time.
            self.execute(*EMPTIED, database=name)
            self._free.append(name)
        except psycopg.Error:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    @contextmanager
    def copied(self, name: str) -> Iterator[str]:
        """A copy of a database that nobody has open."""
        copy = self._create(name)
        yield self.url(copy)
        self.execute(f"DROP DATABASE {copy} WITH (FORCE)")

    def _create(self, template: str) -> str:
        name = f"test_{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
        return name

    def execute(self, *statements: str, database: str = "postgres") -> list[Any]:
        """Run statements, each in a transaction of its own, and answer the rows of the last one."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it: at once but in good order, or as the signal says (SIGQUIT: as in a crash)."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(60)

    def kill(self) -> None:
        """Kill every process of it."""
        process, self._process = self._process, None
        if process is not None:
            # Its children are in sessions of their own; they end when they find their parent gone.
            children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False).stdout
            for one in (str(process.pid), *children.split()):
                try:
                    os.kill(int(one), signal.SIGKILL)
                except ProcessLookupError:
                    continue
            process.wait(60)
            (self.data / "postmaster.pid").unlink(missing_ok=True)

    def promote(self) -> None:
        """Make a standby the primary."""
        self.execute("SELECT pg_promote()")

    def close(self) -> None:
        """End it, and leave nothing."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: Any) -> None:
        command: Sequence[Any] = [self._binaries / program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.folder, **self._as_user())
        if done.returncode != 0:
            raise RuntimeError(done.stderr)

    def _as_user(self) -> dict[str, Any]:
        if self._user is None:
            return {}
        return {"user": self._user, "group": pwd.getpwnam(self._user).pw_gid, "extra_groups": []}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
