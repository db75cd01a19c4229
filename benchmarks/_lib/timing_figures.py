"""Draws how long chains take, what engines do meanwhile, and what the target holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks._lib.drawing import Figures, bars_of, beside, drawing, of, points, ring
from scaffolding_ext.stats.intervals import Estimate

TITLES = {  # of the first panels
    "as_is": "Completion, engines as they are here:\nfurther left is sooner done",
    "set": "Completion, passes of 8 and 32 ms:\nfurther left is sooner done",
}
SHADES = {"mean": "C0", "last": "C1"}
STYLES = {"ranking": "o-", "conformal in step": "s--", "target only": "^:"}
PARTS_OF_TIME = {"T_c": "C0", "T_m": "C1", "idle": "0.85"}
MEMORY = {
    "most calls": "What the target has to bear:\nflat where the budget holds it",
    "most tokens": "What the target has to bear:\nflat where the budget holds it",
    "seconds waited by a call": "What the budget costs:\nfurther up a call waits longer",
}
DEFAULT = "conformal"
BAR = 0.8


def plot(figures: Figures, path: Path, title: str) -> None:
    """Draw all panels for which there are figures, as `studies.conformal_timing` names them."""
    with drawing(path, 4, 2, figsize=(14, 17)) as (figure, axes):
        for panel, (part, name) in zip(axes[0], TITLES.items(), strict=True):
            _completions(panel, figures, part, name)
        _speeds(axes[1, 0], figures)
        _lines(
            axes[1, 1],
            figures,
            "r",
            "Share of the time in which engines compute,\nby the chains that run at once",
            "r = T_c / (T_m + T_s)",
        )
        _shares(axes[2, 0], figures)
        for panel, (what, name) in zip((axes[2, 1], *axes[3]), MEMORY.items(), strict=True):
            _lines(panel, figures, what, name, what)
        figure.suptitle(title)


def _found(figures: Figures, pattern: str) -> Iterator[tuple[re.Match[str], Estimate]]:
    """Every figure whose whole name fits, with what fits."""
    for name in figures:
        match, estimate = re.fullmatch(pattern, name), of(figures, name)
        if match is not None and estimate is not None:
            yield match, estimate


def _completions(panel: Any, figures: Figures, part: str, title: str) -> None:
    systems: list[str] = []
    for match, seconds in _found(figures, rf"{part}: (?P<name>[^,]+), (?P<what>mean|last) completion \(s\)"):
        if match["name"] not in systems:
            systems.append(match["name"])
        place = systems.index(match["name"]) + (-0.15 if match["what"] == "mean" else 0.15)
        label = f"{match['what']} chain" if len(systems) == 1 else None
        panel.errorbar(seconds.value, place, xerr=bars_of([seconds]), fmt="o", color=SHADES[match["what"]], label=label)
        if match["name"] == DEFAULT:
            ring(panel, seconds.value, place)
    panel.set_yticks(range(len(systems)), systems)
    panel.set_ylim(len(systems) - 0.5, -0.5)
    panel.set(title=title, xlabel="completion, s")
    if systems:
        beside(panel)


def _speeds(panel: Any, figures: Figures) -> None:
    lines: dict[tuple[str, str], dict[float, Estimate]] = {}
    pattern = r"schedule: conformal over (?P<theirs>.+), target (?P<speed>\d+) times slower, (?P<what>\w+) completion"
    for match, ratio in _found(figures, pattern):
        lines.setdefault((match["theirs"], match["what"]), {})[float(match["speed"])] = ratio
    for (theirs, what), ratios in lines.items():
        shape = {"fmt": STYLES[theirs], "color": SHADES[what], "elinewidth": 0.6}
        points(panel, list(ratios), list(ratios.values()), f"{what}, over {theirs}", **shape)
    for match, ratio in _found(figures, r"set: conformal over ranking, (?P<what>\w+) completion"):
        label = f"{match['what']}, over ranking, measured"
        points(panel, [4], [ratio], label, fmt="D", color=SHADES[match["what"]], mfc="white", ms=7)
    panel.axhline(BAR, color="0.5", linewidth=0.8, label=f"the bar, {BAR:g}")
    _log(panel)
    panel.set(
        title="Below 1 conformal is sooner done\n(by arithmetic from the chunks)",
        xlabel="target's pass over the draft's",
        ylabel="conformal over synchronous",
    )
    if lines:
        beside(panel)


def _lines(panel: Any, figures: Figures, what: str, title: str, label: str) -> None:
    lines: dict[str, dict[float, Estimate]] = {}
    for match, found in _found(figures, rf"(?P<name>.+), (?P<chains>\d+) chains: {re.escape(what)}"):
        lines.setdefault(match["name"], {})[float(match["chains"])] = found
    for name, by_chains in lines.items():
        points(panel, list(by_chains), list(by_chains.values()), name)
    _log(panel)
    panel.set(title=title, xlabel="chains", ylabel=label)
    if lines:
        beside(panel)


def _log(panel: Any) -> None:
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter("{x:g}")


def _shares(panel: Any, figures: Figures) -> None:
    """Seconds of each engine at the most chains."""
    pattern = r"(?P<name>[^,]+), (?P<chains>\d+) chains: (?P<tag>\w+), (?P<what>T_c|T_m|idle) \(s\)"
    seconds: dict[tuple[str, str], dict[str, tuple[int, float]]] = {}
    for match, found in _found(figures, pattern):
        own = seconds.setdefault((match["name"], match["tag"]), {})
        own[match["what"]] = max(own.get(match["what"], (0, 0.0)), (int(match["chains"]), found.value))
    rows = sorted(key for key in seconds if "budget" not in key[0])
    for number, row in enumerate(rows):
        left = 0.0
        for what, colour in PARTS_OF_TIME.items():
            _, width = seconds[row][what]
            panel.barh(number, width, left=left, color=colour, label=what if not number else None)
            left += width
    panel.set_yticks(range(len(rows)), [f"{name}\n{tag}" for name, tag in rows])
    panel.set(title="What each engine does meanwhile,\nat the most chains (means)", xlabel="seconds of a request")
    if rows:
        beside(panel)
