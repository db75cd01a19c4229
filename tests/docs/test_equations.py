"""Every function that the tables of equations name is there and tested, by the paper's own number if it prints one."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from scaffolding_ext.controllers.budgets.files import TaskTypes
from scaffolding_ext.controllers.budgets.queueing.model import moments, objective
from scaffolding_ext.controllers.budgets.queueing.plan import solve
from scaffolding_ext.controllers.budgets.queueing.rounding import lower_bound
from scaffolding_ext.controllers.budgets.queueing.solvers import contraction, fixed_point, lipschitz
from scaffolding_ext.controllers.budgets.queueing.tasks import Mix
from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.chain.shorthand import EFFORTS
from scaffolding_ext.controllers.draft_target.p_values import leave_one_out_p_values, p_values
from scaffolding_ext.controllers.tree.gates.confidence import ConfidenceGate, DecodeExit
from scaffolding_ext.controllers.tree.gates.layer_exit import MAX_CHANGE
from scaffolding_ext.controllers.tree.stops import Certaindex
from scaffolding_ext.controllers.tree.strategies.mcts import MCTS
from scaffolding_ext.controllers.tree.strategies.rebase import Rebase
from scaffolding_ext.controllers.vote.allocation.threshold import StaticThreshold, ThresholdEvery
from scaffolding_ext.protocol.branching import LayerExit
from scaffolding_ext.request.program import Progress
from scaffolding_ext.scheduling import Fifo, Gang, Policy

ROOT = Path(__file__).parents[2]
QUOTED = re.compile(r"`([^`]+)`")


TESTS = "\n".join(
    path.read_text(encoding="utf-8")
    for path in sorted((ROOT / "tests").rglob("test_*.py"))
    if not path.is_relative_to(ROOT / "tests" / "docs")
)


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
    """What a name stands for: within the package, beside the name before it, or an argument of that."""
    if before is not None:
        if name in inspect.signature(before).parameters if callable(before) else False:
            return before
        beside = getattr(inspect.getmodule(before), name, None)
        if beside is not None:
            return beside
    return pkgutil.resolve_name(name if name.startswith("benchmarks.") else f"scaffolding_ext.{name}")


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.rule)
def test_what_a_row_names_is_there(row: Row) -> None:
    names = QUOTED.findall(row.function)
    assert names, "the row names no function"
    before: Any = None
    for name in names:
        try:
            before = found(name.partition("=")[0], before)
        except (ImportError, AttributeError) as error:
            pytest.fail(f"{name!r} is not there, and no argument of what stands before it: {error}")


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.rule)
def test_a_test_names_one_of_its_functions(row: Row) -> None:
    names = [name.rpartition(".")[2] for name in QUOTED.findall(row.function)]
    assert any(re.search(rf"\b{name}\b", TESTS) for name in names), f"no test names any of {names}"


def test_the_tables_are_read() -> None:
    assert len(rows()) > 55


PRINTED_OPTIMUM = [0, 340.5, 0, 0, 345.0, 30.1]


def table_1() -> Mix:
    return Mix.of(TaskTypes.load("configs:calibrations/queueing_table_1.yaml").tasks, 0.1, 30, 32768)


def gang_example(policy: Policy) -> float:
    """Mean ms of two programs of two requests, 4 and 5 ms each, in an engine with two places."""
    requests = [(program, 4 + program) for _ in range(2) for program in range(2)]
    places, ends = [0, 0], {}
    for program, taken in sorted(requests, key=lambda each: policy.priority(Progress(each[0], 0.0))):
        place = places.index(min(places))
        places[place] = ends[program] = places[place] + taken
    return sum(ends.values()) / 2


def reached_by_the_exit() -> float:
    """The layer at which theta 8.0 and epsilon 3.0 fire if entropies begin below both: the first that may be read."""
    return float(LayerExit(8.0, MAX_CHANGE).layers([[7.9, 7.0, 6.0, 5.0]])[0])


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
        "Certaindex: (log n - H) / log n",
        lambda: [
            entropy_certaindex(c) for c in ([0] * 5, [0] * 4 + [1], [0] * 3 + [1] * 2, [0, 0, 0, 1, 2], [0, 0, 1, 1, 2])
        ],
        [1.0, 0.689, 0.582, 0.410, 0.345],
        5e-4,
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
    Printed(
        "A1, eq. 12",  # m = 16 first chunks: p-values are multiples of 1 / (m + 1), or 1 / m among themselves
        lambda: [17 * p_values(range(16), [99.0])[0], 16 * leave_one_out_p_values(range(16)).min()],
        [1, 1],
    ),
    Printed("eq. 4, skip gate", lambda: [ConfidenceGate().least, ConfidenceGate().gap], [0.70, 0.06]),
    Printed("decode exit", lambda: [DecodeExit().after, DecodeExit().least, DecodeExit().gap], [3, 0.72, 0.10]),
    Printed("eq. 5 and the exit rule", reached_by_the_exit, 2),
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
    Printed(
        "Pollaczek 1930",
        lambda: [float(objective(table_1(), np.full(6, float(tokens)))) for tokens in (0, 100, 500)],
        [5.832, 8.239, 1.794],
        1e-3,
    ),
    Printed("eq. 24", lambda: fixed_point(table_1(), np.zeros(6)), PRINTED_OPTIMUM, 1.5),
    Printed("Table I, figures 3 and 4", lambda: solve(table_1().tasks, 0.1, 30, 32768).budgets, PRINTED_OPTIMUM, 1.5),
    Printed(
        "eq. 38", lambda: 0.1 * float(moments(table_1(), np.full(6, 32768.0)).first), 41, 0.5
    ),  # so no constant step
    Printed("the requests of the oldest program first", lambda: [gang_example(Fifo()), gang_example(Gang())], [9, 6.5]),
]


@pytest.mark.parametrize("printed", PRINTED, ids=lambda printed: printed.rule)
def test_a_formula_gives_the_paper_s_number(printed: Printed) -> None:
    assert sum(row.rule.startswith(printed.rule) for row in rows()) == 1, "no row, or several, begin like this"
    assert printed.ours() == pytest.approx(printed.printed, abs=printed.within)


def test_the_paper_s_bound_of_eq_26_is_above_1_and_eq_32_is_the_bend_of_accuracy() -> None:
    """Max_k sum_j pi_j c_j / c_k bounds the paper's constant of eq. 26 from below; the queue adds 0.7 % to eq. 32."""
    mix = table_1()
    optimum = np.array(solve(mix.tasks, 0.1, 30, 32768).budgets)
    assert float(mix.pi @ mix.c / mix.c.min()) == pytest.approx(1.06, abs=0.005)
    assert contraction(mix, optimum) == pytest.approx(0.31, abs=0.005)
    assert lipschitz(mix, optimum) == pytest.approx(float((mix.pi * mix.alpha * mix.A * mix.b**2).max()), rel=0.01)
    assert float(lower_bound(mix, optimum)) < float(objective(mix, optimum))


UNPRINTED = {  # the beginning of a row: the reason that no number of its paper stands above
    "Dynasor-CoT, paper: C_k": "a definition",
    "Certaindex, definition 2": "a definition; every short chain is tried beside it",
    "Certaindex: mean (MCTS)": "a definition; its thresholds are a row of their own",
    "Certaindex, section 3.3": "a policy; its figures are of recordings that were not released",
    "Certaindex, skylines": "curves that the paper draws and does not print",
    "Certaindex: baseline-even": "baselines",
    "A1, eq. 10": "the paper prints no value of r",
    "A1, eq. 11": "scores of models that do not ship here",
    "A1, section 3.3": "a policy",
    "eq. 2:": "the exponent is an argument, and no value is printed",
    "similarity gate": "computed by the code, and used for nothing",
    "eq. 3:": "a mean",
    "calibration of theta": "ours; the paper's theta is a row of its own",
    "selection:": "a product",
    "algorithm 4": "its stress test is of tests/workers/huggingface/test_block_pool.py: 80 of 80",
    "eq. 1 and 2": "a definition",
    "gradient and Hessian": "derivatives, by differences",
    "eq. 26": "a bound without a value: below",
    "eq. 32": "a bound without a value: below",
    "eq. 39 and 40": "roundings of the optimum above",
    "eq. 41": "a curve of figure 4 without values",
    "shortest job first": "an order without a value",
    "fairness phi": "a definition",
}
PAPERS = ("Dynasor", "Certaindex", "A1", "REBASE", "eq.", "table", "Table", *UNPRINTED)


def test_each_row_of_the_papers_has_the_paper_s_number_or_a_reason() -> None:
    known = [printed.rule for printed in PRINTED] + list(UNPRINTED)
    for row in rows():
        if row.rule.startswith(PAPERS):
            assert sum(row.rule.startswith(rule) for rule in known) == 1, row.rule
    assert all(any(row.rule.startswith(rule) for row in rows()) for rule in UNPRINTED)
