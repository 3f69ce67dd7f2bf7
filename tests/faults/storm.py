"""A storm: more callers than a slow disk can serve. The line and the memory stay bounded, and after it all is as before."""

import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from sessionstore import migrate
from tests.faults.ledger import Ledger
from tests.faults.served import Served
from tests.faults.table import Row
from tests.faults.traffic import Traffic

CALLERS, FEW = 200, 4
SHORT, LONG = 20.0, 600.0
SLOW_MS = 25
# What the server may grow by: its line has room for 64 MiB.
MEMORY_BYTES = 128 * 1024 * 1024
# p99 before and after, on a machine that others use as well.
# An answer comes, yes or no, in the time that a call may wait and what it takes.
LONGEST_ANSWER = 2.5
TIMES_SLOWER, OR_SECONDS = 3.0, 0.05
SLOW_DISK = (
    "strace", "-f", "-qq", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=fdatasync",
    "-e", f"inject=fdatasync:delay_enter={SLOW_MS * 1000}",
)  # fmt: skip


async def _spell(server: Served, ledger: Ledger, callers: int, seconds: float, name: str, memory: list[int]) -> list[float]:
    """So many callers for a while; how long each call took."""
    traffic = Traffic(lambda: server.address, ledger, callers, name=name)
    working, end = asyncio.ensure_future(traffic.run()), time.monotonic() + seconds
    while time.monotonic() < end:
        await asyncio.sleep(0.25)
        memory.append(server.memory_bytes)
    traffic.ending.set()
    await working
    return traffic.latencies


def run(*, long: bool, seed: str) -> list[Row]:
    """A few, then 200, then a few again."""
    seconds, ledger, memory = LONG if long else SHORT, Ledger(), list[int]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        migrate.upgrade(f"sqlite:///{path}")
        # A line of 64 places, so that a storm of 200 is more than it takes.
        server = Served(
            f"sqlite:///{path}", prefix=SLOW_DISK, SESSIONSTORE_MAX_WAITING="64", SESSIONSTORE_BUSY_TIMEOUT_MS="500"
        )

        async def spells() -> list[list[float]]:
            calm = max(5.0, seconds / 20)
            return [
                await _spell(server, ledger, FEW, calm, "before", memory),
                await _spell(server, ledger, CALLERS, seconds, "storm", memory),
                await _spell(server, ledger, FEW, calm, "after", memory),
            ]

        before, storm, after = asyncio.run(spells())
        if server.stop() != 0:
            ledger.wrong.append("the server did not end in good order")
        lost, wrong = ledger.judge(path)
    calm, late = (statistics.quantiles(latencies, n=100)[98] for latencies in (before, after))
    grown = max(memory) - memory[0]
    if late > max(TIMES_SLOWER * calm, calm + OR_SECONDS):
        wrong.append(f"p99 was {calm * 1000:.0f} ms before and is {late * 1000:.0f} ms after")
    if grown > MEMORY_BYTES:
        wrong.append(f"it has grown by {grown / 2**20:.0f} MiB")
    worst = statistics.quantiles(storm, n=100)[98]
    if worst > LONGEST_ANSWER:
        wrong.append(f"p99 of the answers in the storm was {worst:.1f} s")
    refused = sum(count for code, count in ledger.answers.items() if code not in ("done", "no answer"))
    if not refused:
        wrong.append("nobody was refused: it was no storm, or the line has no end")
    note = (
        f"{CALLERS} callers for {seconds:.0f} s on a disk that syncs in {SLOW_MS} ms; {refused:,} refused with Retry-After;"
        f" p99 {calm * 1000:.0f} ms before, {late * 1000:.0f} ms after; grown by {grown / 2**20:.0f} MiB"
    )
    return [Row("a storm of callers", len(storm), ledger.acknowledged, lost, wrong, ledger.outage, note)]
