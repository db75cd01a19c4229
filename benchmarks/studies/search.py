"""Measures what widths save: searches that grow while unsettled, beside fixed widths and a vote of as many tokens.

    python -m benchmarks.studies.search

REBASE, best of n and MCTS grow from 4 to 8 and 16 solutions (iterations of MCTS, each to the end of a solution) where
they are unsettled. Beside them stand fixed widths. Widths are replayed: a search ran to its end, and is cut where it
would have stopped.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import click
import numpy as np
import numpy.typing as npt

from benchmarks._lib.command import benchmark, size
from benchmarks._lib.report import Report
from scaffolding_ext import HuggingFaceWorker, Prompting, ScaffoldingLlm
from scaffolding_ext.controllers.tree.score import LogprobScorer
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.tree.select import Leaf
from scaffolding_ext.controllers.tree.stops import Agreement, Certaindex, Look, SearchStop, Unchanged, leader_of
from scaffolding_ext.controllers.tree.strategies.base import Strategy
from scaffolding_ext.controllers.tree.strategies.best_of_n import BestOfN
from scaffolding_ext.controllers.tree.strategies.mcts import MCTS
from scaffolding_ext.controllers.tree.strategies.rebase import Rebase
from scaffolding_ext.controllers.vote.voting import vote
from scaffolding_ext.tinylm.grammar import Problem, sample_problem

STEP_LEN = 48  # tokens
WIDTHS = (4, 8, 16)
LEVELS = 25
MAX_TOKENS = 1000  # of a solution
LEAST_STEPS = 10  # operations of a question
NUM_ORDERS = 20  # of the samples of a vote
AT_ONCE = 16  # questions
BEST_OF_N = "best of n"
STRATEGIES: dict[str, Strategy] = {
    BEST_OF_N: BestOfN(),
    "REBASE": Rebase(max_depth=LEVELS),
    "MCTS": MCTS(rollouts=True, at_once=2, max_depth=LEVELS),
}
STOPS: dict[str, SearchStop] = {  # asked between widths
    "certaindex 0.5": Certaindex([{"measure": "entropy", "at_least": 0.5}]),
    "certaindex 0.75": Certaindex([{"measure": "entropy", "at_least": 0.75}]),
    "agreement": Agreement(),
}


def draw_problems(num_problems: int, seed: int) -> list[Problem]:
    """Different held-out problems of at least `LEAST_STEPS` operations."""
    rng, found = random.Random(seed), {}
    while len(found) < num_problems:
        problem = sample_problem(rng, "held_out")
        if problem.num_steps >= LEAST_STEPS:
            found[problem.question] = problem
    return list(found.values())


class Stopped(NamedTuple):
    """A search that was cut off.

    Attributes:
        tokens: That its steps decoded.
        is_right: True if the answer is right that a vote weighed by values elects.
    """

    tokens: int
    is_right: bool


class Searched:
    """The result of a search on one question, from its trace.

    Attributes:
        leaves: Solutions in the order of their ends.
        is_right: Whether each is right.
        lengths: Tokens of the leaves, from the root on.
        widths: The last round of each width.
    """

    def __init__(self, problem: Problem, trace: Sequence[dict[str, Any]]) -> None:
        answer = next(event for event in reversed(trace) if event["event"] == "answer")
        paths = list(map(tuple, answer["paths"]))
        ids = {answer: number for number, answer in enumerate(dict.fromkeys(filter(None, answer["answers"])))}
        self.leaves = [
            Leaf(ids.get(text, -1), value) for text, value in zip(answer["answers"], answer["values"], strict=True)
        ]
        self.is_right = [text == problem.answer for text in answer["answers"]]
        self.widths: list[int] = []
        self._rounds: list[tuple[int, int]] = []  # decoded tokens since the beginning, and leaves that have ended
        lengths: dict[tuple[int, ...], int] = {}
        num_tokens = num_ended = 0
        for event in trace:
            if event["event"] == "width":
                self.widths.append(len(self._rounds) - 1)
            elif event["event"] == "branches":
                named = zip(map(tuple, event["paths"]), event["num_tokens"], event["finish_reasons"], strict=True)
                for path, num, reason in named:
                    lengths[path] = num
                    num_tokens += num - lengths.get(path[:-1], 0)
                    num_ended += path in paths and reason is not None
                self._rounds.append((num_tokens, num_ended))
        self.widths.append(len(self._rounds) - 1)
        self.lengths = [lengths[path] for path in paths]

    def cut(self, last: int) -> Stopped:
        """The search up to a round; leaves that it had ended vote, all of them where it had ended none."""
        tokens, num = self._rounds[last]
        leaves = self.leaves[: num if num and last < self.widths[-1] else len(self.leaves)]
        winner = vote([leaf.answer_class for leaf in leaves], [max(0.0, leaf.value) for leaf in leaves])
        elected = next((at for at, leaf in enumerate(leaves) if leaf.answer_class == winner), 0)
        return Stopped(tokens, self.is_right[elected])

    def stopped(self, stop: SearchStop) -> Stopped:
        """The search as it would have ended with a stop that is asked between its widths."""
        leaders: list[int | None] = []
        for number in self.widths[:-1]:
            leaves = self.leaves[: self._rounds[number][1]]
            leaders.append(leader_of(leaves))
            if stop.is_enough(Look(leaves, leaders, max(0, WIDTHS[-1] - len(leaves)))):
                return self.cut(number)
        return self.cut(self.widths[-1])


class Curve(NamedTuple):
    """Accuracy of a vote over n samples, and what it costs, by n.

    Attributes:
        right: How likely the vote is right, shape [questions, n].
        tokens: Decoded, shape [questions, n].
    """

    right: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.float64]

    def at(self, tokens: float) -> npt.NDArray[np.float64]:
        """The probability that the vote is right on each question, if it takes so many tokens on average.

        Between two sizes, and below one sample and above all, the nearest sizes are mixed or taken.
        """
        means = self.tokens.mean(axis=0)
        size = float(np.interp(tokens, means, np.arange(len(means))))
        low, part = int(size), size - int(size)
        high = min(low + 1, len(means) - 1)
        return np.asarray((1 - part) * self.right[:, low] + part * self.right[:, high])


def vote_curve(samples: Sequence[Searched], rng: np.random.Generator) -> Curve:
    """A plain vote over the whole solutions of each question, the mean over random orders of them."""
    num = min(len(each.leaves) for each in samples)
    right, lengths = np.zeros((len(samples), num)), np.zeros((len(samples), num))
    for row, each in enumerate(samples):
        for _ in range(NUM_ORDERS):
            order = rng.permutation(len(each.leaves))[:num]
            classes = [each.leaves[at].answer_class for at in order]
            for at in range(num):
                winner = vote(classes[: at + 1])
                right[row, at] += each.is_right[order[classes.index(winner) if winner >= 0 else 0]] / NUM_ORDERS
            lengths[row] += np.cumsum([each.lengths[at] for at in order]) / NUM_ORDERS
    return Curve(right, lengths)


def search_all(worker: HuggingFaceWorker, strategy: Strategy, problems: Sequence[Problem], seed: int) -> list[Searched]:
    """The whole searches of a strategy, of rising widths."""
    controller = SearchController(
        strategy,
        LogprobScorer(),
        steps=STEP_LEN,
        max_tokens=MAX_TOKENS,
        sampling_params={"temperature": 0.8},
        budget=10_000,
        widths=WIDTHS,
        stop=Unchanged(rounds=10**6),  # never stops
    )
    controller.prompting = Prompting(tokenizer=worker.chat_tokenizer())
    with ScaffoldingLlm(controller, {"generation": worker}, seed=seed, max_parallel_requests=AT_ONCE) as llm:
        results = [llm.generate_async(problem.question, sample_id=problem.question) for problem in problems]
        return [Searched(problem, each.result().program.trace) for problem, each in zip(problems, results, strict=True)]


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


@benchmark("studies.search")
@size("--num_questions", 60, quick=4, help="Questions.", least=2)
@click.option("--model", default="tinylm/target", show_default=True, help="Who writes.")
def main(report: Report, num_questions: int, model: str) -> None:
    """Measure what widths save."""
    problems = draw_problems(num_questions, report.seed)
    questions = [problem.question for problem in problems]
    with HuggingFaceWorker(model, max_batch_size=64) as worker:
        searches = {name: search_all(worker, each, problems, report.seed) for name, each in STRATEGIES.items()}
    curve = vote_curve(searches[BEST_OF_N], report.rng)
    for name, each in searches.items():
        rows = {f"{name} of {WIDTHS[at]}": [search.cut(search.widths[at]) for search in each] for at in (0, -1)}
        full = rows[f"{name} of {WIDTHS[-1]}"]
        for label, stop in STOPS.items():
            rows[f"{name}, {label}"] = [search.stopped(stop) for search in each]
        for label, row in rows.items():
            add_width(report, label, row, full, curve, questions)


if __name__ == "__main__":
    main()
