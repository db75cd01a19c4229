"""What searches cost of their own, what the scores that users have are worth, and what stops save.

    python -m benchmarks.studies.search --num_questions 40 --store runs/search --json

Parts, of which `--part` runs some:

- `cost`: microseconds a node of each strategy, without any model, up to 10,000 nodes, and their growth;
- `scores`: the scores that come for nothing, for a verdict or for a written check, with the AUC that each has within a
  question, so that it has its place on the picture of `studies.judge_quality`;
- `stops`: certaindex, agreement and an unchanged leader on REBASE and MCTS, against a fixed number of leaves and a stop
  at random, each of as many tokens. Stops cut a search off, so that they are replayed on searches that ran to their
  end;
- `widths`: REBASE, best of n and MCTS that grow from 4 to 8 and 16 solutions (iterations of MCTS) where they are
  unsettled, beside fixed widths, one tree of 16, and a vote of as many tokens. Widths are replayed, too;
- `programs`: wall-clock at 1 and 16 programs, blocks held with and without sharing, and whether trees are the same.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
from benchmarks._lib.stopping_searches import Stopped, cut, cut_at_leaves, cut_at_random, stopped, stopped_between
from benchmarks._lib.tree_programs import add_programs
from scaffolding_ext.controllers.reward import RewardController
from scaffolding_ext.controllers.tree.node import Node
from scaffolding_ext.controllers.tree.score import LogprobScorer, RandomScorer, VerdictScorer
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.tree.stops import Agreement, Certaindex, SearchStop, Unchanged
from scaffolding_ext.controllers.tree.strategies.adaptive_branching import AdaptiveBranching
from scaffolding_ext.controllers.tree.strategies.base import Strategy
from scaffolding_ext.controllers.tree.strategies.beam import Beam
from scaffolding_ext.controllers.tree.strategies.best_first import BestFirst
from scaffolding_ext.controllers.tree.strategies.best_of_n import BestOfN
from scaffolding_ext.controllers.tree.strategies.budget_guided_mcts import BudgetGuidedMCTS
from scaffolding_ext.controllers.tree.strategies.dvts import DVTS
from scaffolding_ext.controllers.tree.strategies.mcts import MCTS
from scaffolding_ext.controllers.tree.strategies.particle_filter import ParticleFilter
from scaffolding_ext.controllers.tree.strategies.rebase import Rebase
from scaffolding_ext.registry import search_scorers

PARTS = ("cost", "scores", "stops", "widths", "programs")
STEP_LEN = 48  # tokens
NUM_VOTES = 16
WIDTHS = (4, 8, 16)
LOT = 20  # questions of a run that is stored by itself
LEVELS = 25
MAX_TOKENS = 1000  # of a solution
SOLUTION_LEN = 500  # about


def strategies(num_nodes: int) -> dict[str, Strategy]:
    """Each strategy, as wide as so many nodes need: solutions of 25 steps, as in REBASE."""
    wide = max(8, num_nodes // (4 * LEVELS) * 4)
    return {
        "best of n": BestOfN(num_nodes),
        "beam": Beam(wide, wide // 4, max_depth=LEVELS),
        "DVTS": DVTS(wide // 4, 4, max_depth=LEVELS),
        "REBASE": Rebase(wide, max_depth=LEVELS),
        "particle filter": ParticleFilter(wide, max_depth=LEVELS),
        "best first": BestFirst(max_depth=LEVELS),
        "MCTS": MCTS(max_depth=LEVELS),
        "budget-guided MCTS": BudgetGuidedMCTS(max_depth=LEVELS),
        "adaptive branching, Gaussian": AdaptiveBranching(saturation=1.0, max_depth=LEVELS),
        "adaptive branching, Beta": AdaptiveBranching("beta", saturation=1.0, max_depth=LEVELS),
        "adaptive branching, widening": AdaptiveBranching("widening", saturation=1.0, max_depth=LEVELS),
    }


def own_seconds(strategy: Strategy, num_nodes: int, seed: int) -> tuple[float, int]:
    """CPU seconds that a strategy takes for its nodes, and how many it wrote; every score is drawn at random."""
    rng = np.random.default_rng(seed)
    scores = rng.random(num_nodes + 64).tolist()
    began, num = time.process_time(), 0
    search = strategy.begin(Node(), rng)
    while num < num_nodes:
        search.used = num / num_nodes
        nodes = search.ask(num_nodes - num)
        if not nodes:
            break
        for node in nodes:
            if node.to_end:
                node.end()
            search.tell(node, scores[num])
            num += 1
    return time.process_time() - began, num


def add_costs(report: Report, num_nodes: int) -> None:
    """Microseconds a node, in ratio to best of n, and how cost grows from a tenth of the nodes on."""
    trivial = 0.0
    for name, strategy in strategies(num_nodes).items():
        seconds, num = min(own_seconds(strategy, num_nodes, seed) for seed in range(3))
        small, num_small = min(
            own_seconds(strategies(num_nodes // 10)[name], num_nodes // 10, seed) for seed in range(3)
        )
        own = 1e6 * seconds / max(1, num)
        trivial = trivial or own
        report.figure(f"{name}: nodes", num)
        report.figure(f"{name}: microseconds a node", own)
        report.figure(f"{name}: in ratio to best of n", own / trivial)
        if num > num_small and small > 0:
            growth = float(np.log(seconds / small) / np.log(num / num_small))
            report.figure(f"{name}: exponent of the growth", growth)


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


def add_stops(report: Report, lab: Lab, problems: Sequence[Any], width: int) -> None:
    """Tokens that stops save, and points that they lose, against the same search to its end and against plain cuts."""
    stops: dict[str, SearchStop] = {
        f"certaindex, entropy {least:g}": Certaindex([{"measure": "entropy", "at_least": least}], every=3)
        for least in (0.5, 0.75, 0.9)
    }
    stops["certaindex, entropy 0.75 and mean reward 0.4"] = Certaindex(
        [{"measure": "entropy", "at_least": 0.75}, {"measure": "mean_reward", "at_least": 0.4}], every=3
    )
    stops |= {"agreement": Agreement(), "unchanged": Unchanged(2, 0.6)}
    searches: dict[str, tuple[Strategy, dict[str, int]]] = {
        "REBASE": (Rebase(2 * width), {"nodes": 200 * width}),
        "MCTS": (MCTS(rollouts=True, at_once=2), {"tokens": 2 * width * SOLUTION_LEN}),
    }
    for search, (strategy, budget) in searches.items():
        label = f"{search} to its end"
        full, _ = run_cell(lab, problems, label, scorer=LogprobScorer(), strategy=strategy, budget=budget)
        questions = [each.question for each in full]
        whole = [stopped(each, None) for each in full]
        report.difference(f"{label}: accuracy, %", [e.is_right for e in whole], questions=questions, scale=100)
        report.figure(f"{label}: decoded tokens", float(np.mean([e.tokens for e in whole])))
        report.figure(f"{label}: leaves", float(np.mean([len(e.answers) for e in full])))
        for name, stop in stops.items():
            cut = [stopped(each, stop, strategy.most_leaves) for each in full]
            add_cut(report, f"{search}, {name}", cut, whole, questions)
            tokens = float(np.mean([each.tokens for each in cut]))
            for way, other in (
                ("a fixed number of leaves", cut_at_leaves(full, tokens)),
                ("a stop at random", cut_at_random(full, cut, report.rng)),
            ):
                report.difference(
                    f"{search}, {name}: points above {way}, of as many tokens",
                    [each.is_right for each in cut],
                    other,
                    questions,
                    scale=100,
                )


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


def add_cut(report: Report, label: str, cut: Sequence[Stopped], whole: Sequence[Stopped], questions: Any) -> None:
    """What a stop saves and loses; the bar of the first certaindex that meets both."""
    saved = report.saved(f"{label}: tokens saved, share", [e.tokens for e in cut], [e.tokens for e in whole])
    points = report.difference(
        f"{label}: points", [e.is_right for e in cut], [e.is_right for e in whole], questions, scale=100
    )
    report.share(f"{label}: stopped early", sum(e.is_early for e in cut), len(cut))
    if "certaindex" in label:
        report.bar(f"{label}: tokens saved", saved.value, ">=", 0.2)
        report.bar(f"{label}: lower end of the points", points.low, ">=", -2.0)


@benchmark("studies.search --num_questions 40 --store runs/search")
@size("--num_questions", 40, quick=4, help="Questions.", least=2)
@size("--width", 6, quick=4, help="Solutions of a search; a search that may stop has twice as many.", least=4)
@size("--num_nodes", 10_000, quick=1_000, help="Nodes of which the cost is taken.", least=100)
@size("--num_same", 100, quick=4, help="Questions whose trees are compared, alone and among 16.", least=2)
@click.option("--part", multiple=True, type=click.Choice(PARTS), help="What is run; all where none is named.")
@click.option("--least_steps", default=10, show_default=True, help="Fewest operations of a question.")
@click.option("--model", default="tinylm/target", show_default=True, help="Who writes.")
@stored
def main(
    report: Report,
    num_questions: int,
    width: int,
    num_nodes: int,
    num_same: int,
    part: tuple[str, ...],
    least_steps: int,
    model: str,
    store: Path | None,
) -> None:
    """What do searches cost of their own, what are users' scores worth, and what do stops save?"""
    wanted = part or PARTS
    if "cost" in wanted:
        add_costs(report, num_nodes)
    if {"scores", "stops", "widths"} & set(wanted):
        problems = draw_problems(num_questions, report.seed, least_steps)
        lab = Lab({"generation": model}, seed=report.seed, store=store, worker=RememberingWorker, max_batch_size=64)
        with lab:
            if "scores" in wanted:
                add_scores(report, lab, problems, width)
            if "stops" in wanted:
                add_stops(report, lab, problems, width)
            if "widths" in wanted:
                add_widths(report, lab, problems)
    if "programs" in wanted:
        add_programs(report, model, draw_problems(num_same, report.seed, least_steps), width, store)


if __name__ == "__main__":
    main()
