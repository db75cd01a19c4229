"""What the scores that users have are worth in searches, and what widths save.

    python -m benchmarks.studies.search --num_questions 40 --store runs/search --json

Parts, of which `--part` runs some:

- `scores`: the scores that come for nothing, for a verdict or for a written check, with the AUC that each has within a
  question, so that it has its place on the picture of `studies.judge_quality`;
- `widths`: REBASE, best of n and MCTS that grow from 4 to 8 and 16 solutions (iterations of MCTS) where they are
  unsettled, beside fixed widths, one tree of 16, and a vote of as many tokens. Widths are replayed: a search ran to
  its end, and is cut where it would have stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from benchmarks._lib.command import benchmark, size, stored, track
from benchmarks._lib.lab import Lab
from benchmarks._lib.report import Report
from benchmarks._lib.searching import (
    Curve,
    RememberingWorker,
    Searched,
    Watched,
    draw_problems,
    sample_curves,
    search_all,
    within_question_auc,
)
from scaffolding_ext.controllers.reward import RewardController
from scaffolding_ext.controllers.tree.score import LogprobScorer, RandomScorer, VerdictScorer
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.tree.select import Leaf
from scaffolding_ext.controllers.tree.stops import Agreement, Certaindex, Look, SearchStop, Unchanged, leader_of
from scaffolding_ext.controllers.tree.strategies.base import Strategy
from scaffolding_ext.controllers.tree.strategies.beam import Beam
from scaffolding_ext.controllers.tree.strategies.best_of_n import BestOfN
from scaffolding_ext.controllers.tree.strategies.mcts import MCTS
from scaffolding_ext.controllers.tree.strategies.rebase import Rebase
from scaffolding_ext.controllers.vote.voting import vote
from scaffolding_ext.registry import search_scorers

PARTS = ("scores", "widths")
STEP_LEN = 48  # tokens
NUM_VOTES = 16
WIDTHS = (4, 8, 16)
LOT = 20  # questions of a run that is stored by itself
LEVELS = 25
MAX_TOKENS = 1000  # of a solution


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


def run_cell(lab: Lab, problems: Sequence[Any], name: str, **parts: Any) -> tuple[list[Searched], float]:
    """A search on all problems, and the AUC of its score within a question."""

    def run() -> dict[str, Any]:
        watched = Watched(parts.pop("scorer"), {problem.question: problem for problem in problems})
        controller = SearchController(
            scorer=watched, steps=STEP_LEN, max_tokens=MAX_TOKENS, sampling_params={"temperature": 0.8}, **parts
        )
        rows = [each._asdict() for each in search_all(lab, controller, problems)]
        return {"rows": rows, "auc": within_question_auc(watched.seen)}

    found = lab.stored(f"{name}_{len(problems)}_{lab.seed}".replace(" ", "_").replace(",", ""), run)
    return [Searched(**row) for row in found["rows"]], found["auc"]


def run_votes(lab: Lab, problems: Sequence[Any], name: str = "vote") -> list[Searched]:
    """Whole solutions, which votes are made of."""
    parts = {"strategy": BestOfN(NUM_VOTES), "budget": NUM_VOTES + 1}
    return run_cell(lab, problems, name, scorer=LogprobScorer(), **parts)[0]


def add_scores(report: Report, lab: Lab, problems: Sequence[Any], width: int) -> None:
    """The scores that users have, on whole solutions and in two trees, against a vote of as many decoded tokens."""
    samples = run_votes(lab, problems)
    curve = sample_curves(samples, report.rng)["vote"]
    check = RewardController(worker_tag="generation", checks=True, max_check_tokens=400)
    of_steps: dict[str, Any] = {
        "random": RandomScorer(),
        "log-probability of the chain": LogprobScorer(),
        "log-probability of the step": LogprobScorer("step"),
        "verdict on the step": VerdictScorer(is_about_steps=True),
    }
    of_answers: dict[str, Any] = {
        "random": RandomScorer(),
        "log-probability of the chain": LogprobScorer(),
        "verdict on the answer": VerdictScorer(),
        "written check": search_scorers.obtain(check),
    }
    searches: dict[str, tuple[Strategy, dict[str, Any]]] = {
        "best of n": (BestOfN(2 * width), of_answers),
        "beam": (Beam(width, max(1, width // 4)), of_steps),
        "REBASE": (Rebase(width), of_steps),
    }
    for search, (strategy, scorers) in searches.items():
        for name, scorer in track(scorers.items(), search):
            label = f"{search}, {name}"
            cells, auc = run_cell(lab, problems, label, scorer=scorer, strategy=strategy, budget=100 * width)
            report.figure(f"{label}: AUC within a question", auc)
            add_choices(report, label, cells, curve)


def add_choices(report: Report, label: str, cells: Sequence[Searched], curve: Curve) -> None:
    """Accuracy of the best and the elected leaf, and how far it is above a vote of as many decoded tokens."""
    questions = [each.question for each in cells]
    tokens = float(np.mean([each.decoded for each in cells]))
    report.figure(f"{label}: decoded tokens", tokens)
    for chosen, words in (("best", "the best leaf"), ("elected", "a vote weighed by scores")):
        right = [float(each.is_right[getattr(each, chosen)]) for each in cells]
        gain = f"{label}, {words}: points above a vote of as many decoded tokens"
        report.difference(f"{label}, {words}: accuracy, %", right, questions=questions, scale=100)
        report.difference(gain, right, curve.at(tokens), questions, scale=100)


def run_lots(lab: Lab, problems: Sequence[Any], name: str, **parts: Any) -> list[Searched]:
    """A search on all problems, in lots that are stored one by one."""
    lots = range(0, len(problems), LOT)
    return [each for at in lots for each in run_cell(lab, problems[at : at + LOT], f"{name} from {at}", **parts)[0]]


def add_widths(report: Report, lab: Lab, problems: Sequence[Any]) -> None:
    """Searches that grow where they are unsettled, against fixed widths and against a vote of as many tokens."""
    questions, scorer = [problem.question for problem in problems], LogprobScorer()
    parts: dict[str, Any] = {"scorer": scorer, "budget": 10_000, "stop": Unchanged(rounds=10**6)}  # never stops
    grown: dict[str, tuple[Strategy, int]] = {  # an iteration of MCTS writes a step and a rollout
        "best of n": (BestOfN(), 1),
        "REBASE": (Rebase(max_depth=LEVELS), 1),
        "MCTS": (MCTS(rollouts=True, at_once=2, max_depth=LEVELS), 2),
    }
    searches = {
        name: run_lots(
            lab,
            problems,
            f"{name} of rising widths",
            strategy=strategy,
            widths=[nodes * width for width in WIDTHS],
            **parts,
        )
        for name, (strategy, nodes) in grown.items()
    }
    curve = sample_curves(searches["best of n"], report.rng)["vote"]
    whole = run_lots(
        lab, problems, "REBASE in one tree", scorer=scorer, budget=10_000, strategy=Rebase(WIDTHS[-1], max_depth=LEVELS)
    )
    for name, each in searches.items():
        rows = {
            f"{name} of {width}": [cut(search, ([*search.widths, len(search.rounds) - 1])[at]) for search in each]
            for at, width in enumerate(WIDTHS)
        }
        full = rows[f"{name} of {WIDTHS[-1]}"]
        for label, stop in between_widths().items():
            rows[f"{name}, {label}"] = [stopped_between(search, stop, WIDTHS[-1]) for search in each]
        if name == "REBASE":
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


@benchmark("studies.search --num_questions 40 --store runs/search")
@size("--num_questions", 40, quick=4, help="Questions.", least=2)
@size("--width", 6, quick=4, help="Solutions of a search.", least=4)
@click.option("--part", multiple=True, type=click.Choice(PARTS), help="What is run; all where none is named.")
@click.option("--least_steps", default=10, show_default=True, help="Fewest operations of a question.")
@click.option("--model", default="tinylm/target", show_default=True, help="Who writes.")
@stored
def main(
    report: Report,
    num_questions: int,
    width: int,
    part: tuple[str, ...],
    least_steps: int,
    model: str,
    store: Path | None,
) -> None:
    """What are users' scores worth in searches, and what do widths save?"""
    wanted = part or PARTS
    problems = draw_problems(num_questions, report.seed, least_steps)
    lab = Lab({"generation": model}, seed=report.seed, store=store, worker=RememberingWorker, max_batch_size=64)
    with lab:
        if "scores" in wanted:
            add_scores(report, lab, problems, width)
        if "widths" in wanted:
            add_widths(report, lab, problems)


if __name__ == "__main__":
    main()
