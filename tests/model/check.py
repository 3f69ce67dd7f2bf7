"""Check the protocol on paper: the model as it is has no fault, and each rule taken out is one that the checker finds.

python -m tests.model.check     (needs spin and a C compiler; Debian: spin, gcc)
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MODEL = Path(__file__).with_name("lease.pml")
VARIANTS = re.findall(r"^ \*   ([A-Z_]+) ", MODEL.read_text(), flags=re.MULTILINE)


def search(variant: str | None) -> tuple[int, int]:
    """How many faults a variant has (the search stops at the first), and how many states were looked at."""
    defined = [] if variant is None else [f"-D{variant}"]
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(["spin", "-a", *defined, str(MODEL)], cwd=directory, check=True, capture_output=True)
        compiled = ["gcc", "-O2", "-DSAFETY", "-DVECTORSZ=2048", "-DCOLLAPSE", "-o", "pan", "pan.c"]
        subprocess.run(compiled, cwd=directory, check=True, capture_output=True)
        done = subprocess.run(["./pan", "-m100000", "-w26"], cwd=directory, check=True, capture_output=True, text=True)
    if "Search not completed" in done.stdout and variant is None:
        raise SystemExit(done.stdout)
    faults = re.search(r"errors: (\d+)", done.stdout)
    states = re.search(r"(\d+) states, stored", done.stdout)
    if faults is None or states is None:
        raise SystemExit(done.stdout)
    return int(faults[1]), int(states[1])


def main() -> int:
    """Print a line for each. Answers 1 if the model has a fault, or a variant has none."""
    if shutil.which("spin") is None:
        raise SystemExit("spin is not installed (Debian: apt-get install spin)")
    wrong = 0
    for variant in (None, *VARIANTS):
        faults, states = search(variant)
        as_it_should = (faults > 0) == (variant is not None)
        wrong += not as_it_should
        verdict = "a fault is found" if faults else "no fault"
        sys.stdout.write(f"{variant or 'the protocol':16} {verdict}, {states:,} states{'' if as_it_should else '  WRONG'}\n")
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
