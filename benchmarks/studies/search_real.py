"""Every search strategy runs to its end on a real model, steered by a checker of arithmetic.

    python -m benchmarks.studies.search_real --model FOLDER --json

Word problems are drawn from templates. A function in a process of its own checks the calculations in every step, and a
search goes by that. The figures say what each strategy spent, by purpose, and how many of its searches answered: a
small model is too weak for a claim on accuracy.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import click
import numpy as np

from benchmarks._lib.arithmetic import draw_word_problems
from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.report import Report
from scaffolding_ext.controllers.tree.score import CheckerScorer
from scaffolding_ext.controllers.tree.search import SearchController
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
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.workers.checker import CheckWorker
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

WIDTH = 4
AT_ONCE = 20


def strategies() -> dict[str, Strategy]:
    """Every strategy, of about four solutions' tokens."""
    return {
        "best of n": BestOfN(WIDTH),
        "beam": Beam(WIDTH, 1),
        "DVTS": DVTS(2, 2),
        "REBASE": Rebase(WIDTH),
        "particle filter": ParticleFilter(WIDTH),
        "best first": BestFirst(),
        "MCTS": MCTS(rollouts=True),
        "budget-guided MCTS": BudgetGuidedMCTS(),
        "adaptive branching": AdaptiveBranching("beta", max_depth=3),
    }


def add_strategy(report: Report, name: str, results: list[Any]) -> None:
    """How many searches ended with an answer, why they ended, and tokens by purpose."""
    trees = [next(event for event in each.program.trace if event["event"] == "tree") for each in results]
    chosen = [next(event for event in each.program.trace if event["event"] == "answer") for each in results]
    answered = sum(
        any(
            answer is not None
            for path, answer in zip(each["paths"], each["answers"], strict=True)
            if path == each["winner"]
        )
        for each in chosen
    )
    report.share(f"{name}: searches that answer", answered, len(results))
    for reason, number in sorted(Counter(tree["reason"] for tree in trees).items()):
        report.figure(f"{name}: ended as {reason}", number)
    report.figure(f"{name}: nodes", float(np.mean([tree["num_nodes"] for tree in trees])))
    report.figure(f"{name}: depth", float(np.mean([tree["depth"] for tree in trees])))
    purposes = sorted({str(purpose) for each in results for purpose in each.program.ledger.by_purpose})
    for purpose in purposes:
        counts = [
            {str(key): value for key, value in each.program.ledger.by_purpose.items()}.get(purpose) for each in results
        ]
        report.difference(f"{name}: decoded for {purpose}", [0 if each is None else each.decoded for each in counts])


@benchmark("studies.search_real --model FOLDER")
@click.option("--model", default="tinylm/draft", show_default=True, help="Folder or name of the model.")
@size("--num_questions", 20, quick=2, help="Questions.", least=2)
@size("--max_tokens", 120, quick=40, help="Tokens of a solution.")
@size("--step_tokens", 40, quick=10, help="Tokens of a step at most; a line ends one, too.")
@size("--budget", 360, quick=80, help="Tokens of a search whose strategy has no end of its own.")
def main(report: Report, model: str, num_questions: int, max_tokens: int, step_tokens: int, budget: int) -> None:
    """Does every strategy run to its end on a real model, and what does it spend?"""
    questions = [problem.question for problem in draw_word_problems(num_questions, report.seed)]
    check = CheckWorker(function="benchmarks._lib.arithmetic:right_share", deadline_seconds=10)
    with HuggingFaceWorker(model, max_batch_size=64, max_seq_len=1024) as worker, check:
        for name, strategy in track(strategies().items(), "strategies"):
            controller = SearchController(
                strategy,
                CheckerScorer(),
                selector="best",
                steps={"ends": ["\n"], "max_tokens": step_tokens},
                max_tokens=max_tokens,
                budget={"tokens": budget},
                sampling_params={"temperature": 0.8},
            )
            controller.prompting = Prompting.for_model(model)
            workers = {"generation": worker, "reward": check}
            with ScaffoldingLlm(controller, workers, seed=report.seed, max_parallel_requests=AT_ONCE) as llm:
                add_strategy(report, name, llm.generate(questions))


if __name__ == "__main__":
    main()
