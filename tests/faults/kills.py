"""kill -9 of servers and of programs that use the library, under load, again and again."""

import asyncio
import random
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO

from sessionstore import migrate
from tests.faults.ledger import Ledger
from tests.faults.served import Served, start
from tests.faults.table import Row
from tests.faults.traffic import Traffic

SHORT, LONG = 24, 200
CALLERS, PROGRAMS = 6, 2
LONGEST_OUTAGE = 10.0


class Program:
    """A program that writes through the library, and its side of the ledger. It has a clock of its own there."""

    def __init__(self, url: str, id: str) -> None:
        self._url, self._id, self.ledger, self._next = url, id, Ledger(), 0
        self.start()

    def start(self) -> None:
        """Go on where it was: with the call that was not answered."""
        command = (sys.executable, "-m", "tests.faults.writers", self._url, self._id, self._next)
        self.process = start(*command, stdout=subprocess.PIPE, bufsize=1)
        self._reader = threading.Thread(target=self._read, args=(self.process.stdout,))
        self._reader.start()

    def _read(self, said: IO[str]) -> None:
        # As it comes: a program that waits for its reader is in no transaction.
        for line in said:
            word, id, number = line.split()
            if number == "-1":
                self.ledger.acknowledge(id)
            elif word == "send":
                self.ledger.send(id, f"m{number}", int(number))
            else:
                self.ledger.acknowledge(id, f"m{number}")
                self._next = int(number) + 1

    def kill(self) -> None:
        """kill -9, and read what it had still said."""
        self.process.kill()
        self._reader.join()
        if self.process.wait() != -signal.SIGKILL:
            raise RuntimeError(f"the program had ended by itself, with {self.process.returncode}")


async def _round(url: str, server: Served, programs: list[Program], ledger: Ledger, kills: int, choice: random.Random) -> None:
    traffic = Traffic(lambda: server.address, ledger, CALLERS)
    working = asyncio.ensure_future(traffic.run())
    living: list[Served | Program] = [server, *programs]
    for _ in range(kills):
        await asyncio.sleep(choice.uniform(0.6, 1.4))
        victim = choice.choice(living)
        await asyncio.to_thread(victim.kill)
        await asyncio.to_thread(victim.start)
    traffic.ending.set()
    await working


def run(*, long: bool, seed: str) -> list[Row]:
    """Kill one of three processes on one file about once a second."""
    kills, choice, ledger = LONG if long else SHORT, random.Random(seed), Ledger()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.db"
        url = f"sqlite:///{path}"
        migrate.upgrade(url)
        server, programs = Served(url), [Program(url, f"library{number}") for number in range(PROGRAMS)]
        asyncio.run(_round(url, server, programs, ledger, kills, choice))
        ledger.end(LONGEST_OUTAGE)
        for program in programs:
            program.kill()
            ledger.add(program.ledger)
        if server.stop() != 0:
            ledger.wrong.append("the server did not end in good order")
        lost, wrong = ledger.judge(path)
    note = f"a server with {CALLERS} callers and {PROGRAMS} programs on one file"
    return [Row("kill -9 of a process", kills, ledger.acknowledged, lost, wrong, ledger.outage, note)]
