"""Draws how long chains take, what engines do meanwhile, and what the target holds."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._lib.drawing import bars_of, beside, drawing
from scaffolding_ext.stats.intervals import Estimate

TITLES = {  # of the first panels
    "as_is": "Completion, engines as they are here:\nshorter bars are sooner done",
    "set": "Completion, passes of 8 and 32 ms:\nshorter bars are sooner done",
}
SHADES = {"mean": "C0", "last": "C1"}
STYLES = {"ranking": "-", "conformal in step": "--", "target only": ":"}
PARTS_OF_TIME = {"T_c": "C0", "T_m": "C1", "idle": "0.85"}


class Point(NamedTuple):
    """A figure at a number of chains or a speed ratio."""

    at: float
    estimate: Estimate


@dataclass
class Figures:
    """What was measured, for the plot.

    Attributes:
        completions: Seconds by part, system, and mean or last.
        ratios: Conformal over ranking by part, and mean or last.
        scheduled: The same by arithmetic, against whom and for mean or last, at each speed ratio.
        intensity: r by system, at each number of chains.
        shares: Seconds by system, engine and kind, at each number of chains.
        memory: By what and system, at each number of chains.
    """

    completions: dict[str, dict[str, dict[str, Estimate]]] = field(default_factory=dict)
    ratios: dict[str, dict[str, Estimate]] = field(default_factory=dict)
    scheduled: dict[tuple[str, str], list[Point]] = field(default_factory=dict)
    intensity: dict[str, list[Point]] = field(default_factory=dict)
    shares: dict[tuple[str, str, str], list[float]] = field(default_factory=dict)
    memory: dict[tuple[str, str], list[Point]] = field(default_factory=dict)


def plot(figures: Figures, path: Path, title: str) -> None:
    """Draw all panels for which there are figures."""
    with drawing(path, 2, 4, figsize=(25, 8.5)) as (figure, axes):
        for panel, (part, name) in zip(axes[0], TITLES.items(), strict=False):
            _bars(panel, figures.completions.get(part, {}), name)
        _speeds(axes[0, 2], figures)
        _lines(
            axes[0, 3],
            figures.intensity,
            "Share of the time in which engines compute,\nby the chains that run at once",
            "r = T_c / (T_m + T_s)",
        )
        _shares(axes[1, 0], figures)
        for panel, what in zip(axes[1, 1:], ("most calls", "most tokens", "seconds waited by a call"), strict=True):
            lines = {name: points for (key, name), points in figures.memory.items() if key == what}
            _lines(panel, lines, f"What the target has to bear:\n{what}", what)
        figure.suptitle(title)


def _bars(panel: Any, systems: dict[str, dict[str, Estimate]], title: str) -> None:
    for number, by_what in enumerate(systems.values()):
        for shift, (what, seconds) in zip((-0.2, 0.2), by_what.items(), strict=True):
            error = bars_of([seconds])
            label = f"{what} chain" if not number else None
            panel.barh(number + shift, seconds.value, 0.4, xerr=error, color=SHADES[what], label=label)
    panel.set_yticks(range(len(systems)), list(systems))
    panel.invert_yaxis()
    panel.set(title=title, xlabel="completion, s")
    if systems:
        beside(panel)


def _speeds(panel: Any, figures: Figures) -> None:
    for (theirs, what), points in figures.scheduled.items():
        values = [point.estimate.value for point in points]
        panel.plot(
            [point.at for point in points], values, STYLES[theirs], color=SHADES[what], label=f"{what}, over {theirs}"
        )
    for what, ratio in figures.ratios.get("set", {}).items():
        panel.errorbar(
            [4], [ratio.value], yerr=bars_of([ratio]), fmt="o", color=SHADES[what], label=f"{what}, measured"
        )
    panel.axhline(0.8, color="0.5", linewidth=0.8)
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter("{x:g}")
    panel.set(
        title="Below 1 conformal is sooner done\n(by arithmetic from the chunks)",
        xlabel="target's pass over the draft's",
        ylabel="conformal over synchronous",
    )
    if figures.scheduled:
        beside(panel)


def _lines(panel: Any, systems: dict[str, list[Point]], title: str, label: str) -> None:
    for name, points in systems.items():
        values = [point.estimate for point in points]
        panel.errorbar(
            [point.at for point in points], [one.value for one in values], yerr=bars_of(values), fmt="o-", label=name
        )
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter("{x:g}")
    panel.set(title=title, xlabel="chains", ylabel=label)
    if systems:
        beside(panel)


def _shares(panel: Any, figures: Figures) -> None:
    """Seconds of each engine at the most chains."""
    rows = sorted({(name, tag) for name, tag, _ in figures.shares if "budget" not in name})
    for number, (name, tag) in enumerate(rows):
        left = 0.0
        for what, colour in PARTS_OF_TIME.items():
            seconds = figures.shares[name, tag, what][-1]
            panel.barh(number, seconds, left=left, color=colour, label=what if not number else None)
            left += seconds
    panel.set_yticks(range(len(rows)), [f"{name}\n{tag}" for name, tag in rows])
    panel.set(title="What each engine does meanwhile,\nat the most chains", xlabel="seconds of a request")
    if rows:
        beside(panel)
