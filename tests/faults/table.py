"""What a fault has done, as a row of a table."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

HEAD = ("fault", "times", "acknowledged", "lost", "wrong", "longest outage")


class Row(NamedTuple):
    """`wrong`: what must not be, in words. `outage`: the longest time in which nothing was acknowledged, in seconds."""

    fault: str
    times: int
    acknowledged: int
    lost: int
    wrong: Sequence[str] = ()
    outage: float | None = None
    note: str = ""

    @property
    def passed(self) -> bool:
        """Whether nothing was lost, nothing was wrong, and something was tried at all."""
        return not self.lost and not self.wrong and self.times > 0 and self.acknowledged > 0

    def cells(self) -> list[str]:
        """For people."""
        outage = "" if self.outage is None else f"{self.outage:.2f} s"
        return [self.fault, f"{self.times:,}", f"{self.acknowledged:,}", str(self.lost), str(len(self.wrong)), outage]


def markdown(rows: Iterable[Row]) -> str:
    """The table, with what is to be known beside it."""
    lines = ["| " + " | ".join([*HEAD, ""]) + " |", "|---|--:|--:|--:|--:|--:|---|"]
    lines += ["| " + " | ".join([*row.cells(), row.note]) + " |" for row in rows]
    return "\n".join(lines)
