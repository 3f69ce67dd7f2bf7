"""The figures that were promised, and what was reached."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from benchmarks.sides import Ratio


@dataclass(frozen=True)
class Figure:
    """A measured figure beside its limit. `spread` is the quartiles of the rounds where it is a ratio."""

    area: str
    what: str
    reached: float
    limit: float
    better: Literal["more", "less"]
    unit: str = ""
    spread: tuple[float, float] | None = None
    note: str = ""

    @property
    def kept(self) -> bool:
        """Whether the limit is kept."""
        return self.reached >= self.limit if self.better == "more" else self.reached <= self.limit

    def line(self) -> str:
        """A row of the table."""
        sign = "≥" if self.better == "more" else "≤"
        quartiles = f" ({short(self.spread[0])} to {short(self.spread[1])})" if self.spread else ""
        unit = f" {self.unit}" if self.unit else ""
        mark = "" if self.kept else " (missed)"
        return (
            f"| {self.what} | {sign} {short(self.limit)}{unit} | {short(self.reached)}{unit}{quartiles}{mark} | {self.note} |"
        )


def ratio(area: str, what: str, found: Ratio, limit: float, note: str = "") -> Figure:
    """A figure that is a ratio in which more is better."""
    return Figure(area, what, found.median, limit, "more", spread=(found.low, found.high), note=note)


def plain(figures: list[Figure]) -> list[dict[str, Any]]:
    """For JSON."""
    return [{**asdict(figure), "kept": figure.kept} for figure in figures]


def short(value: float) -> str:
    """A figure as people read it."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
