"""Kill API servers, restart and crash PostgreSQL, promote a standby; and hold what was acknowledged against what is there.

    python -m tests.failover [--times 3]     (make failover)

Callers work over one address, turn after turn, each under a lease: a lease that is lost without a word, or any answer but a
success and a 503 with Retry-After, is wrong. The standby has what was acknowledged (synchronous_commit = on).
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

from tests.failover.front import Front
from tests.faults.ledger import Ledger
from tests.faults.table import Row, markdown
from tests.faults.traffic import Traffic
from tests.servers import DURABLE, Server
from tests.test_serve import Server as ApiServer

CALLERS, API_SERVERS = 8, 3
CALM_SECONDS, PATIENCE_SECONDS = 1.0, 40.0
MOST_OUTAGE_SECONDS = 30.0


class Cluster:
    """A primary with a standby that has to agree to each commit, and API servers on whichever of the two writes."""

    def __init__(self) -> None:
        self.primary = Server(DURABLE)
        self.primary.execute("CREATE DATABASE store")
        # Who follows looks for a primary that is back more often than every five seconds.
        self.standby = Server({**DURABLE, "wal_retrieve_retry_interval": "200ms"}, follows=self.primary)
        self.primary.execute("ALTER SYSTEM SET synchronous_standby_names = 'standby'", "SELECT pg_reload_conf()")
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.standby.port}"
        self.url = f"postgresql://store@{hosts}/store?target_session_attrs=read-write"
        self.servers = [self.serve() for _ in range(API_SERVERS)]
        self.promoted = False

    def serve(self) -> ApiServer:
        return ApiServer(self.url)

    def ports(self) -> list[int]:
        return [int(server.address.rpartition(":")[2]) for server in self.servers]

    def kill_an_api_server(self, number: int) -> None:
        """kill -9, and after a second there is a new one."""
        victim = self.servers[number % len(self.servers)]
        victim.process.kill()
        victim.process.communicate()
        time.sleep(1)
        self.servers[number % len(self.servers)] = self.serve()

    def restart(self, _: int) -> None:
        """In good order, and at once."""
        self.primary.stop()
        self.primary.start()

    def crash(self, _: int) -> None:
        """kill -9 of all its processes; it recovers from its log."""
        self.primary.kill()
        self.primary.start()

    def promote(self, _: int) -> None:
        """The primary's machine is gone for good."""
        self.primary.kill()
        time.sleep(0.5)
        self.standby.promote()
        self.promoted = True

    def close(self) -> list[str]:
        """End everything. Answers what the API servers had to say."""
        codes = [server.stop() for server in self.servers]
        said = [
            f"a server ended with {code}: {server.errors[-300:]}"
            for server, code in zip(self.servers, codes, strict=True)
            if code
        ]
        for server in (self.standby, self.primary):
            server.close()
        return said


async def one(cluster: Cluster, name: str, fault: Callable[[int], None], times: int, note: str) -> Row:
    """Let a fault happen so many times while callers work, and judge."""
    ledger, outages = Ledger(), list[float]()
    front = Front(cluster.ports)
    address = await front.open()
    traffic = Traffic(lambda: address, ledger, CALLERS, name=name.replace(" ", "-") + "-", pause=0.005)
    working = asyncio.create_task(traffic.run())
    for number in range(times):
        await _goes_on(ledger, 50)
        ledger.outage = 0.0
        await asyncio.to_thread(fault, number)
        await _goes_on(ledger, 50)
        outages.append(ledger.outage)
        await asyncio.sleep(CALM_SECONDS)
    traffic.ending.set()
    await working
    await front.close()
    database = cluster.standby if cluster.promoted else cluster.primary
    lost, wrong = ledger.judge(database.url("store"), only=name.replace(" ", "-") + "-")
    if max(outages) > MOST_OUTAGE_SECONDS:
        wrong.append(f"nothing was acknowledged for {max(outages):.1f} s")
    told = ", ".join(f"{count} {code}" for code, count in sorted(ledger.answers.items()) if code != "done")
    return Row(name, times, ledger.acknowledged, lost, wrong, max(outages), f"{note}; {told or 'nobody noticed'}")


async def _goes_on(ledger: Ledger, more: int) -> None:
    """Wait until so many more are acknowledged."""
    wanted, end = ledger.acknowledged + more, time.monotonic() + PATIENCE_SECONDS
    while ledger.acknowledged < wanted:
        if time.monotonic() > end:
            raise TimeoutError(f"{ledger.acknowledged} were acknowledged, and no more: {dict(ledger.answers)}")
        await asyncio.sleep(0.01)


def main() -> int:
    """Print the table. Answers 1 when anything was lost or wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    times = parser.parse_args().times
    cluster = Cluster()
    faults: list[tuple[str, Any, int, str]] = [
        ("kill -9 of an API server", cluster.kill_an_api_server, times, f"{API_SERVERS} behind one address"),
        ("restart of PostgreSQL", cluster.restart, times, "in good order"),
        ("crash of PostgreSQL", cluster.crash, times, "kill -9 of all its processes"),
        ("promotion of a standby", cluster.promote, 1, "the primary is gone; synchronous replication"),
    ]
    rows: list[Row] = []
    try:
        for name, fault, count, note in faults:
            rows.append(asyncio.run(one(cluster, name, fault, count, note)))
            sys.stdout.write(markdown(rows[-1:]).splitlines()[-1] + "\n")
            sys.stdout.flush()
    finally:
        said = cluster.close()
    sys.stdout.write(f"\n{markdown(rows)}\n")
    for row in rows:
        sys.stdout.writelines(f"{row.fault}: {wrong}\n" for wrong in row.wrong)
    sys.stdout.writelines(f"{line}\n" for line in said)
    return int(bool(said) or not all(row.passed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
