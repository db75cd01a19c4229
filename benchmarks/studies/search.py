"""Measures what widths save: searches that grow while unsettled, beside fixed widths and a vote of as many tokens.

    python -m benchmarks.studies.search --num_questions 100 --store runs/search --json

REBASE, best of n and MCTS grow from 4 to 8 and 16 solutions (iterations of MCTS, each to the end of a solution) where
they are unsettled. Beside them stand fixed widths, and a REBASE that has 16 from the start. Widths are replayed: a
search ran to its end, and is cut where it would have stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from benchmarks._lib.command import benchmark, size, stored
from benchmarks._lib.lab import Lab
from benchmarks._lib.report import Report
from benchmarks._lib.searching import Curve, RememberingWorker, Searched, draw_problems, search_all, vote_curve
from scaffolding_ext.controllers.tree.score import LogprobScorer
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.tree.select import Leaf
from scaffolding_ext.controllers.tree.stops import Agreement, Certaindex, Look, SearchStop, Unchanged, leader_of
from scaffolding_ext.controllers.tree.strategies.base import Strategy
from scaffolding_ext.controllers.tree.strategies.best_of_n import BestOfN
from scaffolding_ext.controllers.tree.strategies.mcts import MCTS
from scaffolding_ext.controllers.tree.strategies.rebase import Rebase
from scaffolding_ext.controllers.vote.voting import vote

STEP_LEN = 48  # tokens
NUM_VOTES = 16
WIDTHS = (4, 8, 16)
LOT = 20  # questions of a run that is stored by itself
LEVELS = 25
MAX_TOKENS = 1000  # of a solution
ONE_TREE = "one tree"  # a REBASE that has the last width from the start


class Stopped(NamedTuple):
    """A search that was cut off.

    Attributes:
        tokens: That its steps decoded.
        is_right: Whether the answer is right that a vote weighed by values elects.
    """

    tokens: int
    is_right: bool


def stopped_between(search: Searched, stop: SearchStop, most_leaves: int) -> Stopped:
    """The search as it would have ended with a stop that is asked between its widths."""
    leaves, leaders = leaves_of(search), []
    for number in search.widths:
        num = search.rounds[number][1]
        leaders.append(leader_of(leaves[:num]))
        if stop.is_enough(Look(leaves[:num], leaders, max(0, most_leaves - num))):
            return cut(search, number)
    return cut(search, len(search.rounds) - 1)


def cut(search: Searched, last: int) -> Stopped:
    """The search up to a round; leaves that it had ended vote, all of them where it had ended none."""
    tokens, num = search.rounds[last]
    is_last = last >= len(search.rounds) - 1
    leaves = leaves_of(search)[: num if num and not is_last else len(search.answers)]
    winner = vote([leaf.answer_class for leaf in leaves], [max(0.0, leaf.value) for leaf in leaves])
    elected = next((at for at, leaf in enumerate(leaves) if leaf.answer_class == winner), 0)
    return Stopped(tokens, search.is_right[elected])


def leaves_of(search: Searched) -> list[Leaf]:
    """The leaves that a search ended, in the order of their ends."""
    ids = {answer: number for number, answer in enumerate(dict.fromkeys(a for a in search.answers if a is not None))}
    return [
        Leaf(-1 if answer is None else ids[answer], value)
        for answer, value in zip(search.answers, search.values, strict=True)
    ]


def run_lot(lab: Lab, problems: Sequence[Any], name: str, **parts: Any) -> list[Searched]:
    """A search on some problems."""

    def run() -> list[dict[str, Any]]:
        controller = SearchController(
            steps=STEP_LEN, max_tokens=MAX_TOKENS, sampling_params={"temperature": 0.8}, **parts
        )
        return [each._asdict() for each in search_all(lab, controller, problems)]

    name = f"{name}_{len(problems)}_{lab.seed}".replace(" ", "_").replace(",", "")
    return [Searched(**row) for row in lab.stored(name, run)]


def run_lots(lab: Lab, problems: Sequence[Any], name: str, **parts: Any) -> list[Searched]:
    """A search on all problems, in lots that are stored one by one."""
    lots = range(0, len(problems), LOT)
    return [each for at in lots for each in run_lot(lab, problems[at : at + LOT], f"{name} from {at}", **parts)]


def add_widths(report: Report, lab: Lab, problems: Sequence[Any], only: Sequence[str]) -> None:
    """Searches that grow where they are unsettled, against fixed widths and against a vote of as many tokens."""
    questions, scorer = [problem.question for problem in problems], LogprobScorer()
    parts: dict[str, Any] = {"scorer": scorer, "budget": 10_000, "stop": Unchanged(rounds=10**6)}  # never stops
    grown: dict[str, Strategy] = {
        "best of n": BestOfN(),
        "REBASE": Rebase(max_depth=LEVELS),
        "MCTS": MCTS(rollouts=True, at_once=2, max_depth=LEVELS),
    }
    names = [name for name in grown if name == "best of n" or name in (only or grown)]
    grown = {name: grown[name] for name in names}
    searches = {
        name: run_lots(lab, problems, f"{name} of rising widths", strategy=strategy, widths=WIDTHS, **parts)
        for name, strategy in grown.items()
    }
    curve = vote_curve(searches["best of n"], report.rng)
    whole = (
        []
        if only and ONE_TREE not in only
        else run_lots(
            lab,
            problems,
            "REBASE in one tree",
            scorer=scorer,
            budget=10_000,
            strategy=Rebase(WIDTHS[-1], max_depth=LEVELS),
        )
    )
    for name, each in searches.items():
        rows = {
            f"{name} of {width}": [cut(search, ([*search.widths, len(search.rounds) - 1])[at]) for search in each]
            for at, width in enumerate(WIDTHS)
        }
        full = rows[f"{name} of {WIDTHS[-1]}"]
        for label, stop in between_widths().items():
            rows[f"{name}, {label}"] = [stopped_between(search, stop, WIDTHS[-1]) for search in each]
        if name == "REBASE" and whole:
            rows[f"{name}, one tree of {WIDTHS[-1]}"] = [cut(search, len(search.rounds) - 1) for search in whole]
        for label, row in rows.items():
            add_width(report, label, row, full, curve, questions)


def between_widths() -> dict[str, SearchStop]:
    """The stops that are asked between widths."""
    levels = (0.5, 0.75, 0.9)
    found: dict[str, SearchStop] = {
        f"certaindex {least:g}": Certaindex([{"measure": "entropy", "at_least": least}]) for least in levels
    }
    return {**found, "agreement": Agreement()}


def add_width(
    report: Report, label: str, row: Sequence[Stopped], full: Sequence[Stopped], curve: Curve, questions: Sequence[str]
) -> None:
    """Tokens and accuracy of one way to choose a width, against the last width and a vote of as many tokens."""
    tokens, right = [each.tokens for each in row], [float(each.is_right) for each in row]
    report.figure(f"{label}: decoded tokens", float(np.mean(tokens)))
    report.difference(f"{label}: accuracy, %", right, questions=questions, scale=100)
    report.saved(f"{label}: tokens saved, share", tokens, [each.tokens for each in full])
    report.difference(f"{label}: points", right, [float(e.is_right) for e in full], questions, scale=100)
    at_equal = curve.at(float(np.mean(tokens)))
    report.difference(f"{label}: points above a vote of as many tokens", right, at_equal, questions, scale=100)


@benchmark("studies.search --num_questions 100 --store runs/search")
@size("--num_questions", 100, quick=4, help="Questions.", least=2)
@click.option("--least_steps", default=10, show_default=True, help="Fewest operations of a question.")
@click.option("--model", default="tinylm/target", show_default=True, help="Who writes.")
@click.option("--only", multiple=True, type=click.Choice(["REBASE", "MCTS", ONE_TREE]), help="Beside best of n.")
@stored
def main(
    report: Report, num_questions: int, least_steps: int, model: str, only: Sequence[str], store: Path | None
) -> None:
    """Measure what widths save."""
    problems = draw_problems(num_questions, report.seed, least_steps)
    with Lab({"generation": model}, seed=report.seed, store=store, worker=RememberingWorker, max_batch_size=64) as lab:
        add_widths(report, lab, problems, only)


if __name__ == "__main__":
    main()
