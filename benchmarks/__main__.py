"""Run everything, print the table, and write it down.

    python -m benchmarks [--rounds N] [--largest N] [--only NAME …] [--write FOLDER]      (make bench)

It needs cc for the disk, wrk for the load over HTTP, and .venv-peers for the other libraries (make sets it up).
"""

import argparse
import datetime
import json
import os
import platform
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import chart, disk, events, history, http, library, postgresql, profiles
from benchmarks.figures import Figure, plain
from benchmarks.sides import median

HEAD = "| work | limit | reached | |\n|---|---|---|---|"


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8, help="slices of each side")
    parser.add_argument("--largest", type=int, default=1_000_000, help="messages in the largest conversation")
    names = "append, loads, processes, generating, http, memory, events, history, postgresql"
    parser.add_argument("--only", nargs="+", metavar="NAME", help=f"of {names}")
    parser.add_argument("--write", type=Path, help="a folder for figures.json, figures.md, figures.svg and profiles.txt")
    asked = parser.parse_args()
    with disk.scratch() as folder:
        figures, table = _run(folder, asked)
        print(f"\n{HEAD}", *(figure.line() for figure in figures), sep="\n")
        if asked.write is not None:
            _write(asked.write, figures, table)
            profiles.write(folder, asked.write / "profiles.txt")


def _run(folder: Path, asked: argparse.Namespace) -> tuple[list[Figure], list[dict[str, Any]]]:
    table: list[dict[str, Any]] = []
    rounds = asked.rounds
    parts: dict[str, Callable[[], list[Figure]]] = {
        "append": lambda: library.append(folder, rounds, table),
        "loads": lambda: library.loads(folder, rounds, asked.largest),
        "processes": lambda: library.processes(folder, rounds),
        "generating": lambda: library.generating(folder, rounds) + http.saves(folder),
        "http": lambda: http.appends(folder, rounds, table) + http.granian(folder, rounds),
        "memory": lambda: http.memory(folder, asked.largest),
        "events": lambda: events.following(folder),
        "history": lambda: history.growth(folder, rounds, asked.largest),
        "postgresql": lambda: postgresql.appends(rounds),
    }
    figures = []
    for name in asked.only or parts:
        print(f"… {name}", flush=True)
        figures += parts[name]()
    for row in table:
        print(_row(row))
    return figures, table


def _row(row: dict[str, Any]) -> str:
    if "http" in row:
        return f"{row['side']:45} {median(row['http'], 'rate'):9,.0f}/s"
    one, many = median(row["one"], "rate"), median(row["many"], "rate")
    return f"{row['side']:45} {row['durability']:14} one {one:9,.0f}/s   sixteen {many:9,.0f}/s"


def _page(figures: list[Figure], table: list[dict[str, Any]]) -> str:
    """The figures, and under them each side as it comes, with the durability that it really has."""
    head = "| appends a second | journal, synchronous | one caller | 16 over 200 conversations |\n|---|---|---|---|"
    # Raw is one connection that nobody shares: there are no sixteen of it.
    rows = [
        f"| {row['side']} | {row['durability']} | {median(row['one'], 'rate'):,.0f} | {_sixteen(row)} |"
        for row in table
        if "one" in row
    ]
    return "\n".join([HEAD, *(figure.line() for figure in figures), "", head, *rows]) + "\n"


def _sixteen(row: dict[str, Any]) -> str:
    return "" if row["side"].startswith("raw") else f"{median(row['many'], 'rate'):,.0f}"


def _write(folder: Path, figures: list[Figure], table: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    machine = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "cores": os.cpu_count(),
        "fsync_us": disk.FSYNC_US,
    }
    found = {"machine": machine, "figures": plain(figures), "sides": table}
    (folder / "figures.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / "figures.md").write_text(_page(figures, table))
    chart.draw(figures, folder / "figures.svg")


if __name__ == "__main__":
    main()
