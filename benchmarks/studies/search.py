"""What searches cost of their own, what the scores that users have are worth, and what stops save.

    python -m benchmarks.studies.search --num_questions 40 --store runs/search

Three parts, of which `--part` runs some:

- `cost`: microseconds a node of each strategy, without any model, up to 10,000 nodes, and their growth;
- `scores`: the scores that come for nothing or for a verdict, each in the same two trees, with the AUC that it has
  within a question, so that it has its place on the picture of `studies.judge_quality`;
- `stops`: certaindex, agreement and an unchanged leader on REBASE and MCTS, against the same search to its end.
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
from benchmarks._lib.searching import Searched, VoteCurve, Watched, draw_problems, search_all, within_question_auc
from scaffolding_ext.controllers.tree.node import Node
from scaffolding_ext.controllers.tree.score import EntropyScorer, LogprobScorer, RandomScorer, Scorer, VerdictScorer
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.tree.stops import Agreement, Certaindex, Stop, Unchanged
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

PARTS = ("cost", "scores", "stops")
STEP_LEN = 48  # tokens
NUM_VOTES = 16


def strategies(num_nodes: int) -> dict[str, Strategy]:
    """Each strategy, wide or deep enough for so many nodes."""
    deep = num_nodes // 16 + 2
    return {
        "best of n": BestOfN(num_nodes),
        "beam": Beam(16, 4, max_depth=deep),
        "DVTS": DVTS(4, 4, max_depth=deep),
        "REBASE": Rebase(16, max_depth=deep),
        "particle filter": ParticleFilter(16, max_depth=deep),
        "best first": BestFirst(),
        "MCTS": MCTS(),
        "budget-guided MCTS": BudgetGuidedMCTS(),
        "adaptive branching, Gaussian": AdaptiveBranching(saturation=1.0),
        "adaptive branching, Beta": AdaptiveBranching("beta", saturation=1.0),
        "adaptive branching, widening": AdaptiveBranching("widening", saturation=1.0),
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
            scorer=watched, steps=STEP_LEN, max_tokens=1000, sampling_params={"temperature": 0.8}, **parts
        )
        rows = [each._asdict() for each in search_all(lab, controller, problems)]
        return {"rows": rows, "auc": within_question_auc(watched.seen)}

    found = lab.stored(f"{name}_{len(problems)}_{lab.seed}".replace(" ", "_").replace(",", ""), run)
    return [Searched(**row) for row in found["rows"]], found["auc"]


def add_scores(report: Report, lab: Lab, problems: Sequence[Any], width: int) -> None:
    """The scores that users have, in a beam and in REBASE, against a vote of as many decoded tokens."""
    samples, _ = run_cell(
        lab, problems, f"vote of {NUM_VOTES}", scorer=LogprobScorer(), strategy=BestOfN(NUM_VOTES), budget=NUM_VOTES + 1
    )
    curve, questions = VoteCurve(samples, report.rng), [each.question for each in samples]
    scorers: dict[str, Scorer] = {
        "random": RandomScorer(),
        "log-probability of the chain": LogprobScorer(),
        "log-probability of the step": LogprobScorer("step"),
        "entropy of the step": EntropyScorer(top_k=5),
        "verdict on the step": VerdictScorer(is_about_steps=True),
    }
    for search, strategy in {"beam": Beam(width, max(1, width // 4)), "REBASE": Rebase(width)}.items():
        for name, scorer in track(scorers.items(), search):
            label = f"{search}, {name}"
            cells, auc = run_cell(lab, problems, label, scorer=scorer, strategy=strategy, budget=12 * width)
            tokens = float(np.mean([each.decoded for each in cells]))
            report.figure(f"{label}: AUC within a question", auc)
            report.figure(f"{label}: decoded tokens", tokens)
            report.figure(f"{label}: computed tokens", float(np.mean([each.computed for each in cells])))
            for chosen in ("best", "elected"):
                right = [float(each.is_right[getattr(each, chosen)]) for each in cells]
                gain = f"{label}, {chosen}: points above a vote of as many decoded tokens"
                report.difference(f"{label}, {chosen}: accuracy, %", right, questions=questions, scale=100)
                report.difference(gain, right, curve.at(tokens), questions, scale=100)


def add_stops(report: Report, lab: Lab, problems: Sequence[Any], width: int) -> None:
    """Tokens that stops save, and points that they lose, against the same search to its end."""
    entropy = {"measure": "entropy", "at_least": 0.75}
    stops: dict[str, Stop] = {
        "certaindex": Certaindex([entropy], every=max(2, width // 4)),
        "agreement": Agreement(),
        "unchanged": Unchanged(2, 0.6),
    }
    for search, strategy in {"REBASE": Rebase(2 * width), "MCTS": MCTS(rollouts=True)}.items():
        parts = {"strategy": strategy, "budget": {"nodes": 16 * width}}
        full, _ = run_cell(lab, problems, f"{search} to its end", scorer=LogprobScorer(), **parts)
        questions = [each.question for each in full]
        right = [float(each.is_right[each.elected]) for each in full]
        report.difference(f"{search} to its end: accuracy, %", right, questions=questions, scale=100)
        for name, stop in track(stops.items(), search):
            cells, _ = run_cell(lab, problems, f"{search}, {name}", scorer=LogprobScorer(), stop=stop, **parts)
            own = [float(each.is_right[each.elected]) for each in cells]
            report.saved(f"{search}, {name}: tokens saved", [e.decoded for e in cells], [e.decoded for e in full])
            report.difference(f"{search}, {name}: points", own, right, questions, scale=100)


@benchmark("studies.search --num_questions 40 --store runs/search")
@size("--num_questions", 40, quick=4, help="Questions.", least=2)
@size("--width", 8, quick=4, help="Solutions of a search.", least=4)
@size("--num_nodes", 10_000, quick=1_000, help="Nodes of which the cost is taken.", least=100)
@click.option("--part", multiple=True, type=click.Choice(PARTS), help="What is run; all where none is named.")
@click.option("--least_steps", default=10, show_default=True, help="Fewest operations of a question.")
@click.option("--model", default="tinylm/target", show_default=True, help="Who writes.")
@stored
def main(
    report: Report,
    num_questions: int,
    width: int,
    num_nodes: int,
    part: tuple[str, ...],
    least_steps: int,
    model: str,
    store: Path | None,
) -> None:
    """What do searches cost of their own, what are users' scores worth, and what do stops save?"""
    wanted = part or PARTS
    if "cost" in wanted:
        add_costs(report, num_nodes)
    if not {"scores", "stops"} & set(wanted):
        return
    problems = draw_problems(num_questions, report.seed, least_steps)
    with Lab({"generation": model}, seed=report.seed, store=store, max_batch_size=64) as lab:
        if "scores" in wanted:
            add_scores(report, lab, problems, width)
        if "stops" in wanted:
            add_stops(report, lab, problems, width)


if __name__ == "__main__":
    main()
