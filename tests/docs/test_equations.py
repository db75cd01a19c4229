"""Every function that the tables of equations name exists, and defaults are the numbers that the papers print."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.chain.shorthand import EFFORTS
from scaffolding_ext.controllers.tree.gates.confidence import ConfidenceGate, DecodeExit
from scaffolding_ext.controllers.tree.stops import Certaindex
from scaffolding_ext.controllers.tree.strategies.mcts import MCTS
from scaffolding_ext.controllers.tree.strategies.rebase import Rebase
from scaffolding_ext.controllers.vote.allocation.threshold import StaticThreshold, ThresholdEvery
from scaffolding_ext.request.program import Progress
from scaffolding_ext.scheduling import Fifo, Gang, Policy

ROOT = Path(__file__).parents[2]
QUOTED = re.compile(r"`([^`]+)`")


class Row(NamedTuple):
    """A line of a table, cell by cell."""

    rule: str
    function: str
    deviation: str


def rows() -> list[Row]:
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    text = text.partition("\n## Equations\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.removesuffix("|").removeprefix("|").split(" | ")] for line in lines]
    return [Row(*line) for line in cells if line[0] != "rule or equation"]


def found(name: str, before: Any) -> Any:
    """Return the object of a name: within the package, beside the name before it, or an argument of that."""
    if before is not None:
        if name in inspect.signature(before).parameters if callable(before) else False:
            return before
        beside = getattr(inspect.getmodule(before), name, None)
        if beside is not None:
            return beside
    return pkgutil.resolve_name(name if name.startswith("benchmarks.") else f"scaffolding_ext.{name}")


def test_every_function_that_a_row_names_exists() -> None:
    faults = []
    for row in rows():
        names = QUOTED.findall(row.function)
        before: Any = None
        try:
            for name in names:
                before = found(name.partition("=")[0], before)
        except (ImportError, AttributeError) as error:
            faults.append(f"{row.rule}: {error}")
        if not names:
            faults.append(f"{row.rule}: names no function")
    assert faults == []
    assert len(rows()) >= 50


def gang_example(policy: Policy) -> float:
    """Mean ms of two programs of two requests, 4 and 5 ms each, in an engine with two places."""
    requests = [(program, 4 + program) for _ in range(2) for program in range(2)]
    places, ends = [0, 0], {}
    for program, taken in sorted(requests, key=lambda each: policy.priority(Progress(each[0], 0.0))):
        place = places.index(min(places))
        places[place] = ends[program] = places[place] + taken
    return sum(ends.values()) / 2


DYNASOR: Any = DynasorCoTController()


class Printed(NamedTuple):
    """A number that a paper or its code prints, and ours for it."""

    rule: str
    ours: Callable[[], Any]
    printed: Any
    within: float = 1e-9


PRINTED = [
    Printed(
        "Dynasor-CoT, code: effort presets",
        lambda: [number for pair in EFFORTS.values() for number in pair],
        [8, 64, 5, 64, 3, 64, 2, 64, 2, 32],
    ),
    Printed(
        "Dynasor-CoT, code: the last w probe answers",
        lambda: [DYNASOR.rule.threshold, DYNASOR.schedule.chunk_size],
        [3, 64],
    ),
    Printed(
        "Certaindex, policies: static threshold",
        lambda: [
            StaticThreshold().threshold,
            StaticThreshold().knob,
            ThresholdEvery().threshold,
            ThresholdEvery().step,
        ],
        [0.7, 5, 0.7, 5],
    ),
    Printed("eq. 4, skip gate", lambda: [ConfidenceGate().least, ConfidenceGate().gap], [0.70, 0.06]),
    Printed("decode exit", lambda: [DecodeExit().after, DecodeExit().least, DecodeExit().gap], [3, 0.72, 0.10]),
    Printed(
        "REBASE, paper",
        lambda: [Rebase(allocation="paper").temperature, Rebase().temperature, Rebase().width, Rebase().max_depth],
        [0.1, 0.2, 16, 25],
    ),
    Printed("Kocsis & Szepesvari 2006", lambda: MCTS().exploration, 1.414, 5e-4),
    Printed(
        "Certaindex, tables 1 and 3",
        lambda: [
            number
            for stop in map(Certaindex, ("mcts_gsm8k", "mcts_asdiv", "rebase_gsm8k", "rebase_math"))
            for number in (stop.every, *(each.at_least for each in stop.thresholds))
        ],
        [3, 0.99, 0.4, 3, 0.4, 16, 0.85, 0.99, 16, 0.75],
    ),
    Printed("the requests of the oldest program first", lambda: [gang_example(Fifo()), gang_example(Gang())], [9, 6.5]),
]


@pytest.mark.parametrize("printed", PRINTED, ids=lambda printed: printed.rule)
def test_a_formula_gives_the_paper_s_number(printed: Printed) -> None:
    assert sum(row.rule.startswith(printed.rule) for row in rows()) == 1, "no row, or several, begin like this"
    assert printed.ours() == pytest.approx(printed.printed, abs=printed.within)
