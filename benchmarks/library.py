"""The library in one process: one caller, sixteen workers, loads, and growth."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import disk, peers
from benchmarks.figures import Figure, ratio
from benchmarks.sides import PEERS, Process, in_turn, median, spread, worst
from benchmarks.sides import ratio as compare

SESSIONS = [f"many-{n}" for n in range(200)]


def append(folder: Path, rounds: int, table: list[dict[str, Any]]) -> list[Figure]:
    """One caller, and sixteen over 200 conversations, against raw sqlite3 and the peers as they come."""
    with ExitStack() as stack:
        sides = _sides(folder, stack)
        for process in sides.values():
            process.do("warm", sessions=["one", *SESSIONS])
        one = in_turn(sides, rounds, "one", seconds=0.5)
        many = in_turn({name: side for name, side in sides.items() if name != "raw"}, rounds, "many", seconds=0.7)
        many["raw"] = one["raw"]
        for name, process in sides.items():
            table.append({"side": name, **process.do("about"), "one": one[name], "many": many[name]})
    best = max((median(many[name], "rate"), name) for name in many if name in peers.ALL) if PEERS.exists() else (0, "")
    return _figures(one, many, best)


def _figures(one: Any, many: Any, best: tuple[float, str]) -> list[Figure]:
    found = [
        ratio("library", "one caller, append with all checks, of raw sqlite3, FULL", compare(one, "store", "raw"), 0.9),
        ratio("library", "the same, NORMAL", compare(one, "store, NORMAL", "raw, NORMAL"), 0.8),
        ratio("library", "the same, awaited, FULL", compare(one, "async", "raw"), 0.75),
        ratio("library", "16 tasks over 200 conversations, of raw's single transactions", compare(many, "async", "raw"), 5),
        ratio("library", "16 threads, the same", compare(many, "store", "raw"), 5),
        Figure("library", "16 tasks, p99", median(many["async"], "p99") * 1e3, 10, "less", "ms"),
        Figure("library", "16 threads, p99", median(many["store"], "p99") * 1e3, 10, "less", "ms"),
        Figure("library", "errors of 16 workers", sum(r["errors"] for r in many["async"] + many["store"]), 0, "less"),
    ]
    if best[1]:
        found.append(ratio("library", "16 tasks, of the best peer", compare(many, "async", best[1]), 6, note=best[1]))
    return found


def _sides(folder: Path, stack: ExitStack) -> dict[str, Process]:
    environment = disk.environment(folder)
    wanted: dict[str, tuple[str, str, Any]] = {
        "raw": ("ours.Raw", "full", None), "raw, NORMAL": ("ours.Raw", "normal", None),
        "store": ("ours.Library", "full", None), "store, NORMAL": ("ours.Library", "normal", None),
        "async": ("ours.Awaited", "full", None),
    }  # fmt: skip
    if PEERS.exists():
        wanted |= {name: (f"peers.{kind}", "full", PEERS) for name, kind in peers.ALL.items()}
    sides = {}
    for number, (name, (side, synchronous, python)) in enumerate(wanted.items()):
        options = {"python": python} if python else {}
        sides[name] = Process(side, folder / f"append-{number}", environment, synchronous, **options)
        stack.callback(sides[name].close)
    return sides


def loads(folder: Path, rounds: int, largest: int) -> list[Figure]:
    """The last page of conversations of growing length, a whole one, and appends into a full file."""
    lengths = [length for length in (10, 1_000, 10_000, 100_000, 1_000_000) if length <= largest]
    environment = disk.environment(folder)
    with ExitStack() as stack:
        store = Process("ours.Library", folder / "loads", environment)
        empty = Process("ours.Library", folder / "loads-empty", environment)
        for process in (store, empty):
            stack.callback(process.close)
            process.do("warm", sessions=["one"])
        for length in lengths:
            store.do("fill", session=f"c{length}", count=length)
        pages = {n: [store.do("last", session=f"c{n}", count=50, times=200) for _ in range(rounds)] for n in lengths}
        # The growth of pages of 50, measured in turn with that of 1,000 messages.
        flat = spread([
            store.do("last", session=f"c{lengths[-1]}", count=50, times=200)["p50"]
            / store.do("last", session="c1000", count=50, times=200)["p50"]
            for _ in range(rounds)
        ])  # fmt: skip
        full = in_turn({"full": store, "empty": empty}, rounds, "one", seconds=0.5)
        whole = [store.do("whole", session="c1000", times=50) for _ in range(rounds)]
        beside = _whole_of_peers(folder, environment, stack)
    slowest = max(median(found, "p50") for found in pages.values())
    return [
        Figure("loads", f"last 50 of 10 to {lengths[-1]:,} messages as objects, slowest", slowest * 1e3, 0.2, "less", "ms"),
        Figure("loads", f"growth of that from 1,000 to {lengths[-1]:,}", flat.median, 1.3, "less", spread=flat[1:]),
        Figure("loads", "a whole conversation of 1,000 as objects", median(whole, "p50") * 1e3, 1.8, "less", "ms", note=beside),
        _growth(full, lengths[-1]),
    ]


def _growth(full: Mapping[str, Any], length: int) -> Figure:
    found = spread([mine["p50"] / other["p50"] for mine, other in zip(full["full"], full["empty"], strict=True)])
    return Figure("loads", f"append into a file of {length:,} messages, of empty", found.median, 1.2, "less", spread=found[1:])


def _whole_of_peers(folder: Path, environment: Mapping[str, str], stack: ExitStack) -> str:
    if not PEERS.exists():
        return ""
    found = {}
    for name, kind in peers.ALL.items():
        process = Process(f"peers.{kind}", folder / f"loads-{kind}", environment, python=PEERS)
        stack.callback(process.close)
        process.do("fill", session="whole", count=1_000)
        found[name] = process.do("whole", session="whole", times=20)["p50"] * 1e3
    return ", ".join(f"{name} {took:.1f} ms" for name, took in sorted(found.items(), key=lambda item: item[1]))


def processes(folder: Path, rounds: int) -> list[Figure]:
    """Several processes on one file, each appending to a conversation of its own."""
    environment = disk.environment(folder)
    two = {name: _crowd(side, folder / f"two-{name}", environment, 2, rounds, 1.0) for name, side in SIDES.items()}
    eight = _crowd("ours.Library", folder / "eight", environment, 8, 1, 6.0)
    rates = {name: [sum(r["rate"] for r in taken) for taken in crowd["rounds"]] for name, crowd in two.items()}
    share = min(r["done"] for r in eight["rounds"][0]) / (sum(r["done"] for r in eight["rounds"][0]) / 8)
    found = spread([mine / other for mine, other in zip(rates["store"], rates["raw"], strict=True)])
    return [
        ratio("processes", "two processes on one file, of raw sqlite3", found, 0.8),
        Figure("processes", "two processes, lost messages", two["store"]["lost"] + eight["lost"], 0, "less"),
        Figure("processes", "two processes, p99", max(worst(r, "p99") for r in two["store"]["rounds"]) * 1e3, 20, "less", "ms",
               note=f"raw sqlite3 {max(worst(r, 'p99') for r in two['raw']['rounds']) * 1e3:.0f} ms"),
        Figure("processes", "eight processes, worst wait", worst(eight["rounds"][0], "max"), 0.6, "less", "s"),
        Figure("processes", "eight processes, smallest part of a fair share", share, 0.5, "more"),
    ]  # fmt: skip


SIDES = {"store": "ours.Library", "raw": "ours.Raw"}


def _crowd(side: str, folder: Path, environment: Mapping[str, str], count: int, rounds: int, seconds: float) -> dict[str, Any]:
    with ExitStack() as stack:
        crowd = [Process(side, folder, environment) for _ in range(count)]
        for number, process in enumerate(crowd):
            stack.callback(process.close)
            process.do("warm", sessions=[f"own-{number}"])
        taken = []
        for _ in range(rounds):
            for number, process in enumerate(crowd):
                process.begin("one", seconds=seconds, session=f"own-{number}")
            taken.append([process.end() for process in crowd])
        acknowledged = sum(result["done"] for results in taken for result in results) + count
        return {"rounds": taken, "lost": acknowledged - crowd[0].do("about")["stored"]}


def generating(folder: Path, rounds: int) -> list[Figure]:
    """1,000 conversations that generate in one process, each saving every 250 ms."""
    process = Process("ours.Awaited", folder / "generating", disk.environment(folder))
    try:
        taken = [process.do("generating", conversations=1_000, seconds=4.0, every=0.25) for _ in range(max(1, rounds // 2))]
    finally:
        process.close()
    cores = [result["cpu_us"] * result["rate"] / 1e4 for result in taken]
    late = median(taken, "p99") * 1e3
    return [
        Figure("generating", "1,000 conversations save every 250 ms, in process: p99", late, 10, "less", "ms"),
        Figure("generating", "… processor time", spread(cores).median, 25, "less", "% of a core",
               note=f"{median(taken, 'rate'):,.0f} saves/s, {median(taken, 'cpu_us'):.0f} us each"),
    ]  # fmt: skip
