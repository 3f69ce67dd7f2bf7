"""Power loss: every write of a real run is recorded, and the disk is put together as it may be after a failure at any moment.

A system-call trace of the product itself (strace) takes the place of a file system under SQLite: it sees the engine that is
really used, its log with other processes' index, and our own files, and needs no other build of SQLite. What was written and
not yet synced is there or not, each write by itself, or torn; a name is there when its folder was synced.
"""

import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sessionstore import Draft, Store
from tests.faults.ledger import Ledger, faults_in
from tests.faults.recorded import state_of
from tests.faults.table import Row

SHORT, LONG = 120, 500
STEPS_SHORT, STEPS_LONG = 100, 300
KEPT, TORN = 0.5, 0.2
CALLS = (
    "openat,pwrite64,write,ftruncate,fdatasync,fsync,unlink,unlinkat,link,linkat,"
    # Which the product does not make there: if it does one day, this has to learn what they mean.
    "rename,renameat,renameat2,pwritev,pwritev2,writev,fallocate,copy_file_range,sendfile,truncate"
)
LINE = re.compile(r"^(?:\d+ +)?(\w+)\((.*)\) += (-?\d+)")
FD = re.compile(r"^(?:\w+)?<([^>]*)>")


class Event(NamedTuple):
    """Something that was done to a file, or said."""

    kind: str
    path: str
    data: bytes = b""
    offset: int = 0


@dataclass
class File:
    """What of a file is surely on the disk, and what may be."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Event] = field(default_factory=list)
    syncing: int = 0

    def after(self, choice: random.Random) -> bytes:
        """As it may be found after a failure."""
        found = bytearray(self.durable)
        for event in self.pending:
            if choice.random() < KEPT:
                _apply(found, _torn(event, choice) if choice.random() < TORN else event)
        return bytes(found)

    def sync(self) -> None:
        """What had been written when it was asked for is on the disk."""
        for event in self.pending[: self.syncing]:
            _apply(self.durable, event)
        del self.pending[: self.syncing]


@dataclass
class Disk:
    """The files of one folder, by what happened to them so far. A name that was made or removed since is known by `names`."""

    names: dict[str, File] = field(default_factory=dict)
    durable_names: dict[str, File] = field(default_factory=dict)

    def happen(self, event: Event) -> None:
        """It happens."""
        match event.kind:
            case "create":
                self.names.setdefault(event.path, File())
            case "link":
                self.names[event.data.decode()] = self.names[event.path]
            case "unlink":
                self.names.pop(event.path, None)
            case "syncing" if event.path in self.names:
                self.names[event.path].syncing = len(self.names[event.path].pending)
            case "sync" if event.path in self.names:
                self.names[event.path].sync()
            case "sync folder":
                self.durable_names = dict(self.names)
            case _ if event.path in self.names:
                self.names[event.path].pending.append(event)

    def after(self, choice: random.Random) -> dict[str, bytes]:
        """What may be found after a failure now."""
        changed = {
            name for name in {*self.names, *self.durable_names} if self.names.get(name) is not self.durable_names.get(name)
        }
        kept = {name for name in changed if choice.random() < KEPT}
        found = {
            name: (self.names if name not in changed or name in kept else self.durable_names).get(name)
            for name in {*self.names, *self.durable_names}
        }
        return {name: file.after(choice) for name, file in found.items() if file is not None}


def _apply(found: bytearray, event: Event) -> None:
    if event.kind == "truncate":
        del found[event.offset :]
        found.extend(bytes(event.offset - len(found)))
        return
    found.extend(bytes(max(0, event.offset - len(found))))
    found[event.offset : event.offset + len(event.data)] = event.data


def _torn(event: Event, choice: random.Random) -> Event:
    return event if event.kind == "truncate" else event._replace(data=event.data[: choice.randrange(len(event.data) + 1)])


def record(folder: Path, synchronous: str, steps: int, how: str) -> list[Event]:
    """What the product did to the disk, in order, and what it said."""
    trace, url = folder / "trace", f"sqlite:///{folder}/data/store.db"
    program = [sys.executable, "-m", "tests.faults.recorded", url, synchronous, str(steps), how]
    spy = ["strace", "-f", "-qq", "-y", "-xx", "-s", "1000000", "-e", f"trace={CALLS}", "-e", "signal=none", "-o", str(trace)]
    subprocess.run([*spy, *program], check=True, stdout=subprocess.DEVNULL, timeout=600)
    return list(_events(trace, str(folder / "data")))


def _events(trace: Path, folder: str) -> Iterator[Event]:
    for line in _whole_lines(trace):
        found = LINE.match(line)
        if found is None or found[3].startswith("-"):
            continue
        event = _event(found[1], found[2], folder)
        if event is not None and not event.path.endswith(("-shm", "-gate", "(deleted)")):
            yield event


def _whole_lines(trace: Path) -> Iterator[str]:
    """Calls that another thread interrupted are put together again, where they ended; a sync is told where it began, too."""
    unfinished: dict[str, str] = {}
    for line in trace.read_text().splitlines():
        thread, _, rest = line.partition(" ")
        rest = rest.lstrip()
        if rest.endswith("<unfinished ...>"):
            unfinished[thread] = rest.removesuffix("<unfinished ...>")
            if "sync(" in rest:
                yield f"begin_{unfinished[thread]}) = 0"
        elif rest.startswith("<... "):
            yield f"{unfinished.pop(thread)}{rest.partition('resumed>')[2]}"
        else:
            if "sync(" in rest:
                yield f"begin_{rest}"
            yield rest


def _event(call: str, arguments: str, folder: str) -> Event | None:
    descriptor = FD.match(arguments)
    path = _unhexed(descriptor[1]) if descriptor else ""
    strings = [bytes.fromhex(text.replace("\\x", "")) for text in re.findall(r'"((?:\\x[0-9a-f]{2})*)"', arguments)]
    if call == "write":
        return Event("say", "", strings[0]) if arguments.startswith("1<") else None
    names = [text.decode() for text in strings] if call in ("openat", "unlink", "unlinkat", "link", "linkat", "rename") else []
    if not (path if not names else names[0]).startswith(folder):
        return None
    last = arguments.rpartition(", ")[2]
    match call:
        case "openat":
            return Event("create", names[0]) if "O_CREAT" in arguments else None
        case "pwrite64":
            return Event("write", path, strings[0], int(last))
        case "ftruncate":
            return Event("truncate", path, offset=int(last))
        case "begin_fdatasync" | "begin_fsync":
            return Event("syncing", path)
        case "fdatasync" | "fsync":
            return Event("sync folder" if path == folder else "sync", path)
        case "link" | "linkat":
            return Event("link", names[0], names[1].encode())
        case "unlink" | "unlinkat":
            return Event("unlink", names[0])
    raise ValueError(f"{call} is not known here")


def _unhexed(path: str) -> str:
    return bytes.fromhex(path.replace("\\x", "")).decode() if path.startswith("\\x") else path


class Losses(NamedTuple):
    """What failures have done."""

    acknowledged: int
    lost: int
    wrong: list[str]


def crash_alone(events: list[Event], seeds: int, seed: str, place: Path) -> Losses:
    """Let the power fail, each time at another moment, and find exactly one of the states that there were."""
    said = [(index, event.data.decode().split()) for index, event in enumerate(events) if event.kind == "say"]
    states = ["nothing", *(state for _, (_, state) in said)]
    acknowledged = lost = 0
    wrong = _nothing_done([how for _, (how, _) in said], states[1:])
    for number in range(seeds):
        choice = random.Random(f"{seed} {number}")
        moment = choice.randrange(1, len(events))
        told = sum(index < moment for index, _ in said)
        acknowledged += told
        found = _found_after(events[:moment], choice, place / str(number))
        # The call that was on its way may have been done.
        if found not in states[told : told + 2]:
            older = [index for index, state in enumerate(states[:told]) if state == found]
            lost += told - older[-1] if older else 0
            wrong += [] if older else [f"seed {seed} {number}: {found} is no state that there was"]
    return Losses(acknowledged, lost, wrong)


def _nothing_done(answers: list[str], states: list[str]) -> list[str]:
    """Whoever was told that his call was done has seen it done, and who was refused has changed nothing."""
    wrong = [
        f"call {number} was {how}, and what is there is {'the same' if before == after else 'another'}"
        for number, (how, before, after) in enumerate(zip(answers[1:], states, states[1:], strict=False), start=1)
        if (how == "done") == (before == after)
    ]
    return wrong + ([] if len(answers) > 50 else ["it did nothing"])


def crash_together(events: list[Event], seeds: int, seed: str, place: Path) -> Losses:
    """The same for several threads at once: acknowledged ⊆ present ⊆ sent, in order."""
    acknowledged = lost = 0
    wrong: list[str] = []
    for number in range(seeds):
        choice = random.Random(f"{seed} together {number}")
        moment = choice.randrange(len(events) // 10, len(events))
        ledger = Ledger(filled={"afterwards"})
        for event in events[:moment]:
            if event.kind == "say":
                _book(ledger, event.data.decode().splitlines())
        acknowledged += ledger.acknowledged
        found = _found_after(events[:moment], choice, place / f"together{number}")
        verdict = ledger.judge(place / f"together{number}" / "store.db")
        lost, wrong = lost + verdict.lost, [*wrong, *verdict.wrong, *([found] if found.startswith("!") else [])]
    return Losses(acknowledged, lost, wrong)


def _book(ledger: Ledger, lines: list[str]) -> None:
    for line in lines:
        word, id, number = line.split()
        if number == "-1":
            ledger.sent[id]
        elif word == "send":
            ledger.send(id, f"m{number}", int(number))
        else:
            ledger.acknowledge(id, f"m{number}")


def _found_after(events: list[Event], choice: random.Random, place: Path) -> str:
    """The state of what is left. With a `!` in front: what is wrong with it."""
    disk = Disk()
    for event in events:
        if event.kind != "say":
            disk.happen(event)
    place.mkdir()
    for name, content in disk.after(choice).items():
        (place / Path(name).name).write_bytes(content)
    path = place / "store.db"
    try:
        with Store.open(f"sqlite:///{path}", migrate_first=True) as store:
            found = state_of(path)
            store.create("afterwards", messages=[Draft(role="user", content="it goes on")])
    except Exception as error:
        return f"! {error!r}"
    faults = faults_in(path)
    return f"! {faults}" if faults else found


def run(*, long: bool, seed: str) -> list[Row]:
    """With FULL nothing may be lost; with NORMAL something must be, or this would not see it."""
    seeds, steps = (LONG, STEPS_LONG) if long else (SHORT, STEPS_SHORT)
    rows = []
    for name, how, crash in (("one caller", "alone", crash_alone), ("six callers", "together", crash_together)):
        found = {}
        for synchronous in ("full", "normal"):
            with tempfile.TemporaryDirectory() as folder:
                found[synchronous] = crash(record(Path(folder), synchronous, steps, how), seeds, seed, Path(folder))
        full, normal = found["full"], found["normal"]
        wrong = [
            *full.wrong,
            *normal.wrong,
            *([] if normal.lost else ["nothing was lost with NORMAL either: this sees nothing"]),
        ]
        note = f"synchronous=FULL; the same with NORMAL loses {normal.lost:,} of {normal.acknowledged:,}"
        rows.append(Row(f"power loss, {name}", seeds, full.acknowledged, full.lost, wrong, note=note))
    return rows
