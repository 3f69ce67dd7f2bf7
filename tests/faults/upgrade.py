"""A newer version migrates a filled database while the old one serves: the old one refuses cleanly, and no call is lost."""

import asyncio
import tempfile
import time
from pathlib import Path

import httpx2

from sessionstore import Draft, Store
from tests.faults import newer
from tests.faults.ledger import Ledger
from tests.faults.served import Served
from tests.faults.table import Row
from tests.faults.traffic import Traffic

SHORT, LONG = 2, 10
CONVERSATIONS, MESSAGES = 60, 500
CALLERS = 8
NEWER = ("-m", "tests.faults.newer", "serve")


def _fill(url: str) -> None:
    with Store.open(url, migrate_first=True) as store:
        for number in range(CONVERSATIONS):
            drafts = [Draft(role="user", content=f"message {index} " * 20) for index in range(MESSAGES)]
            store.create(f"filled{number}", messages=drafts)


async def _over(old: Served, url: str, scripts: Path, ledger: Ledger) -> tuple[Served, float]:
    """Callers ask the old server until the newer one listens. Answers that one, and for how long nobody was served."""
    addresses = [old.address]
    traffic = Traffic(lambda: addresses[-1], ledger, CALLERS)
    working = asyncio.ensure_future(traffic.run())
    await asyncio.sleep(1)
    ledger.outage = 0.0
    new = await asyncio.to_thread(
        lambda: Served(url, program=NEWER, FAULTS_MIGRATIONS=str(scripts), SESSIONSTORE_BUSY_TIMEOUT_MS="5000")
    )
    addresses.append(new.address)
    done, end = ledger.acknowledged, time.monotonic() + 60
    while ledger.acknowledged < done + 50 and time.monotonic() < end:
        await asyncio.sleep(0.01)
    outage = ledger.outage
    if ledger.acknowledged < done + 50:
        ledger.wrong.append("the newer server does not serve")
    await _ask(old.address, "/readyz", 503, "schema-changed", ledger)
    await _ask(new.address, "/readyz", 200, None, ledger)
    # If it were written all the same, it would be there, and nobody has asked for it.
    await _ask(old.address, "/v1/conversations", 503, "schema-changed", ledger, {"id": "written-by-the-old-one"})
    await asyncio.sleep(0.5)
    traffic.ending.set()
    await working
    return new, outage


async def _ask(address: str, path: str, status: int, code: str | None, ledger: Ledger, body: object = None) -> None:
    async with httpx2.AsyncClient() as client:
        asked = client.get(f"{address}{path}") if body is None else client.post(f"{address}{path}", json=body)
        told = await asked
    if (told.status_code, told.json().get("code")) != (status, code):
        ledger.wrong.append(f"{path} said {told.status_code} {told.text[:100]}, not {status} {code}")


def run(*, long: bool, seed: str) -> list[Row]:
    """Fill, serve, migrate under it, go over."""
    times, longest, refused = LONG if long else SHORT, 0.0, 0
    acknowledged = lost = 0
    wrong: list[str] = []
    for _ in range(times):
        ledger = Ledger()
        with tempfile.TemporaryDirectory() as folder:
            path, scripts = Path(folder) / "store.db", Path(folder) / "scripts"
            newer.prepare(scripts)
            _fill(f"sqlite:///{path}")
            old = Served(f"sqlite:///{path}")
            new, outage = asyncio.run(_over(old, f"sqlite:///{path}", scripts, ledger))
            if (old.stop(), new.stop()) != (0, 0):
                ledger.wrong.append("a server did not end in good order")
            ledger.filled = {f"filled{number}" for number in range(CONVERSATIONS)}
            lost_now, wrong_now = ledger.judge(path)
        acknowledged, lost, wrong = acknowledged + ledger.acknowledged, lost + lost_now, wrong + wrong_now
        longest = max(longest, outage)
        refused += ledger.answers["schema-changed"] + ledger.answers["busy"]
    note = f"{CONVERSATIONS * MESSAGES:,} messages rewritten; {refused} calls were told to come again, and did"
    return [Row("a newer version migrates", times, acknowledged, lost, wrong, longest, note)]
