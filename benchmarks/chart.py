"""A picture of the figures: a bar for each, as a part of its limit, and the limit drawn in."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure as Picture

from benchmarks.figures import Figure, short

KEPT, MISSED = "#2a7f62", "#c8553d"


def draw(figures: list[Figure], path: Path) -> None:
    """Write it as SVG. Right of the line is better than promised, whichever way the figure counts."""
    shown = [figure for figure in figures if figure.limit and figure.reached]
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "sessionstore", "font.family": "sans-serif"})
    picture = Picture(figsize=(9, 0.33 * len(shown) + 1), layout="constrained")
    axes = picture.subplots()
    parts = [min(_part(figure), 4.0) for figure in shown]
    colours = [KEPT if figure.kept else MISSED for figure in shown]
    axes.barh(range(len(shown)), parts, color=colours, height=0.65)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(shown)), [figure.what for figure in shown], fontsize=7.5)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlim(0, 4.2)
    axes.set_xlabel("times as good as the limit (the line), cut off at 4")
    for row, (figure, part) in enumerate(zip(shown, parts, strict=True)):
        axes.text(part + 0.03, row, f"{short(figure.reached)} {figure.unit}".strip(), va="center", fontsize=7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    picture.savefig(path, metadata={"Date": None})


def _part(figure: Figure) -> float:
    return figure.reached / figure.limit if figure.better == "more" else figure.limit / figure.reached
