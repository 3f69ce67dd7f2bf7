"""Sides of a comparison, measured in turn: short slices in random order, and ratios of neighbours only.

Other work on the machine then slows all sides alike, and the ratio stays what it is.
"""

import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
PEERS = ROOT / ".venv-peers/bin/python"


class Ratio(NamedTuple):
    """The median of the ratios of neighbouring slices, and the quartiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


class Process:
    """A worker."""

    def __init__(
        self,
        side: str,
        folder: Path,
        environment: Mapping[str, str],
        synchronous: str = "full",
        python: str | Path = sys.executable,
    ) -> None:
        folder.mkdir(exist_ok=True)
        module, _, name = side.rpartition(".")
        self.side = side
        self.log = folder / f"{name}.log"
        self._process = subprocess.Popen(
            [str(python), "-m", "benchmarks.worker", f"benchmarks.{module}", name, str(folder), synchronous],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log.open("w"), text=True, cwd=ROOT,
            env={**environment, "PYTHONWARNINGS": "ignore"},
        )  # fmt: skip
        self._answer()

    @property
    def pid(self) -> int:
        """Which process it is."""
        return self._process.pid

    def begin(self, job: str, **arguments: Any) -> None:
        """Tell it to do something."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([job, arguments]) + "\n")
        self._process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """What it took."""
        return json.loads(self._answer())  # type: ignore[no-any-return]

    def do(self, job: str, **arguments: Any) -> dict[str, Any]:
        """Both."""
        self.begin(job, **arguments)
        return self.end()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.side} died: {self.log.read_text()[-2000:]}")
        return line


def in_turn(sides: Mapping[str, Process], rounds: int, job: str, **arguments: Any) -> dict[str, list[dict[str, Any]]]:
    """Have each side do a job in each round, in random order."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name in random.sample(list(sides), len(sides)):
            results[name].append(sides[name].do(job, **arguments))
    return results


def ratio(results: Mapping[str, list[dict[str, Any]]], name: str, to: str, figure: str = "rate") -> Ratio:
    """How one side compares to another, round by round."""
    pairs = zip(results[name], results[to], strict=True)
    return spread([mine[figure] / other[figure] for mine, other in pairs if mine[figure] and other[figure]])


def spread(values: list[float]) -> Ratio:
    """Median and quartiles."""
    if len(values) < 2:
        return Ratio(values[0], values[0], values[0])
    low, _, high = statistics.quantiles(values, n=4)
    return Ratio(statistics.median(values), low, high)


def median(results: list[dict[str, Any]], figure: str) -> float:
    """The median of a figure over the rounds."""
    return statistics.median(result[figure] for result in results)


def worst(results: list[dict[str, Any]], figure: str) -> float:
    """The largest of a figure over the rounds."""
    return float(max(result[figure] for result in results))


def cpu_seconds(pid: int) -> float:
    """The processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_mb(pid: int, field: str = "VmHWM") -> float:
    """The memory of a process: `VmRSS` now, `VmHWM` at its peak."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise LookupError(field)
