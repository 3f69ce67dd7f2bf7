"""Run the faults, one after the other, and print the table."""

import argparse
import importlib
import secrets
import sys
import time
import traceback
from pathlib import Path

from tests.faults import served
from tests.faults.table import Row, markdown

BEGIN, END = "<!-- table -->", "<!-- /table -->"
FAULTS = ["kills", "power", "disk", "clocks", "engine", "storm", "shutdown", "upgrade", "backing"]


def main() -> int:
    """Exit code 1 when something was lost or wrong."""
    parser = argparse.ArgumentParser(description=sys.modules["tests.faults"].__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *FAULTS], metavar="NAME", help=", ".join(FAULTS))
    parser.add_argument("--long", action="store_true", help="as often and as long as the table in the docs says")
    parser.add_argument("--seed", default=secrets.token_hex(4), help="what is left to chance is repeated with the same one")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the table in there, between its marks")
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    rows: list[Row] = []
    for name in asked.names or FAULTS:
        began = time.monotonic()
        rows += (found := _rows(name, long=asked.long, seed=asked.seed))
        print(
            f"{name}: {time.monotonic() - began:.0f} s",
            *(f"  {' · '.join(row.cells())}" for row in found),
            sep="\n",
            flush=True,
        )
    table = markdown(rows)
    print(table)
    failed = [row for row in rows if not row.passed]
    for row in failed:
        print(f"FAILED: {row.fault}", *row.wrong[:20], sep="\n  ")
    if asked.write and not failed:
        page = asked.write.read_text()
        before, after = page.partition(BEGIN)[0], page.partition(END)[2]
        asked.write.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")
    return 1 if failed else 0


def _rows(name: str, *, long: bool, seed: str) -> list[Row]:
    """What a kind of fault has done. One that cannot even be run is a row that says so."""
    try:
        rows: list[Row] = importlib.import_module(f"tests.faults.{name}").run(long=long, seed=seed)
    except Exception:
        rows = [Row(name, 0, 0, 0, [traceback.format_exc()])]
    logged = served.end_all()
    if not all(row.passed for row in rows):
        print("The servers had logged:", logged[-20_000:], sep="\n", flush=True)
    return rows


if __name__ == "__main__":
    sys.exit(main())
