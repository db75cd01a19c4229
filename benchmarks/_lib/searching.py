"""Searches on the embedded models' problems: a judge of any quality, what a search cost, and a vote at equal tokens."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from benchmarks._lib.lab import Lab
from scaffolding_ext.controllers.tree.branch import Branch
from scaffolding_ext.controllers.tree.score import Scorer
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.vote.voting import vote
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.protocol.notes import Purpose, TokenCounts
from scaffolding_ext.request.program import count, current_program
from scaffolding_ext.request.seeds import derive_seed
from scaffolding_ext.tinylm.grammar import Problem, sample_problem
from scaffolding_ext.tinylm.steps import check_steps

QUESTION_LEN = 12  # tokens of the question that a judge of a step reads beside the step
NUM_ORDERS = 20  # of the samples of a vote


def draw_problems(num_problems: int, seed: int, least_steps: int = 0) -> list[Problem]:
    """Different held-out problems."""
    rng, found = random.Random(seed), {}
    while len(found) < num_problems:
        problem = sample_problem(rng, "held_out")
        if problem.num_steps >= least_steps:
            found[problem.question] = problem
    return list(found.values())


class BlurredJudge(Scorer):
    """Judges whether a chain is on a right way as an exact judge does, blurred to an AUC within each question.

    A score is the logistic function of the truth, shifted by what gives two unit normal distributions that AUC, and
    of normal noise. What a model that reads every step once would read is counted under `verify`.

    Args:
        problems: By their questions.
        auc: In [0.5, 1]; 1 is the truth itself.
        seed: Of the noise.
    """

    is_free = True

    def __init__(self, problems: Mapping[str, Problem], auc: float, seed: int) -> None:
        super().__init__()
        self.problems, self.auc, self.seed = problems, auc, seed
        self.shift = math.sqrt(2) * float(ndtri(min(auc, 1 - 1e-9)))

    def score(self, branches: Sequence[Branch]) -> ControllerGenerator:
        program = current_program()
        assert program is not None
        problem = self.problems[program.asked[0]]
        for branch in branches:
            is_right = is_on_right_way(problem, branch)
            if self.auc == 1:
                branch.score = 0.98 if is_right else 0.02
                continue
            noise = np.random.default_rng(derive_seed(self.seed, problem.question, branch.path)).normal()
            branch.score = 1 / (1 + math.exp(-(self.shift * (is_right - 0.5) + noise)))
        count(Purpose.VERIFY, TokenCounts(0, sum(branch.num_own_tokens + QUESTION_LEN for branch in branches)))
        yield from ()


class Watched(Scorer):
    """Another scorer, whose scores are kept beside the truth.

    Args:
        scorer: What is watched.
        problems: By their questions.

    Attributes:
        seen: Question, score and truth of every node that was judged.
    """

    def __init__(self, scorer: Scorer, problems: Mapping[str, Problem]) -> None:
        super().__init__()
        self.scorer, self.problems = scorer, problems
        self.reads_logprobs = scorer.reads_logprobs
        self.seen: list[tuple[str, float, bool]] = []

    def prepare(self, prompt: GenerationTask) -> None:
        self.scorer.prepare(prompt)

    def score(self, branches: Sequence[Branch]) -> ControllerGenerator:
        yield from self.scorer.score(branches)
        program = current_program()
        assert program is not None
        problem = self.problems[program.asked[0]]
        self.seen += [(problem.question, branch.value, is_on_right_way(problem, branch)) for branch in branches]


def within_question_auc(seen: Sequence[tuple[str, float, bool]]) -> float:
    """How often a score ranks a right node above a wrong one of its question, ties counting half; mean of questions.

    Questions without right or without wrong nodes are left out; NaN where all are.
    """
    values: dict[str, tuple[list[float], list[float]]] = {}
    for question, value, is_right in seen:
        values.setdefault(question, ([], []))[is_right].append(value)
    shares = [
        float(np.mean([(r > w) + 0.5 * (r == w) for r in right for w in wrong]))
        for wrong, right in values.values()
        if wrong and right
    ]
    return float(np.mean(shares)) if shares else math.nan


def is_on_right_way(problem: Problem, branch: Branch) -> bool:
    """Whether a chain's answer is right, or, before there is one, its last line is on a right way."""
    if branch.has_ended and branch.answer is not None:
        return branch.answer == problem.answer
    lines = check_steps(problem, branch.chain.text.partition("</think>")[0])
    return lines[-1].is_on_right_way if lines else True


class Searched(NamedTuple):
    """What a search came to on one question.

    Attributes:
        question: Its text.
        num_steps: Its difficulty.
        answers: Of the leaves, in order.
        is_right: Whether each is right.
        values: Of the leaves.
        lengths: Tokens of the leaves, from the root on.
        best: The best leaf.
        elected: The leaf that a vote weighed by values elects.
        decoded: Tokens that were decoded, whatever for.
        computed: And read, by judges, too; the KV of what was read before is reused.
        num_nodes: Of the tree.
        most_held: Most distinct tokens that a round held.
        seconds: On this machine.
    """

    question: str
    num_steps: int
    answers: list[str | None]
    is_right: list[bool]
    values: list[float]
    lengths: list[int]
    best: int
    elected: int
    decoded: int
    computed: int
    num_nodes: int
    most_held: int
    seconds: float


def search_all(
    lab: Lab, controller: SearchController, problems: Sequence[Problem], at_once: int = 16
) -> list[Searched]:
    """What a search comes to on problems."""
    controller.prompting = lab.prompting
    with ScaffoldingLlm(controller, dict(lab.workers), seed=lab.seed, max_parallel_requests=at_once) as llm:
        results = [llm.generate_async(problem.question, sample_id=problem.question) for problem in problems]
        return [searched(problem, result.result()) for problem, result in zip(problems, results, strict=True)]


def searched(problem: Problem, result: Any) -> Searched:
    """What a search came to, from its trace."""
    events = {event["event"]: event for event in result.program.trace}
    answer, tree, total = events["answer"], events["tree"], result.program.ledger.total
    lengths = {
        tuple(path): num
        for event in result.program.trace
        if event["event"] == "branches"
        for path, num in zip(event["paths"], event["num_tokens"], strict=True)
    }
    values, classes = answer["values"], answer["classes"]
    leaves = range(len(values))
    winner = vote(classes, [max(0.0, value) for value in values])
    return Searched(
        problem.question,
        problem.num_steps,
        answer["answers"],
        [each == problem.answer for each in answer["answers"]],
        values,
        [lengths[tuple(path)] for path in answer["paths"]],
        max(leaves, key=lambda leaf: (classes[leaf] >= 0, values[leaf], -leaf)),
        next((leaf for leaf in leaves if classes[leaf] == winner), 0),
        total.decoded,
        total.computed,
        tree["num_nodes"],
        tree["most_tokens_held"],
        result.program.elapsed(),
    )


class VoteCurve:
    """Accuracy of a plain vote and its decoded tokens, by how many samples vote; the mean over orders of the samples.

    Args:
        samples: Whole solutions of each question, as many for each.
        rng: Of the orders.
    """

    def __init__(self, samples: Sequence[Searched], rng: np.random.Generator) -> None:
        num = min(len(each.answers) for each in samples)
        self.right = np.zeros((len(samples), num))
        self.tokens = np.zeros((len(samples), num))
        for row, each in enumerate(samples):
            ids = {answer: number for number, answer in enumerate(dict.fromkeys(a for a in each.answers if a))}
            classes = [-1 if answer is None else ids[answer] for answer in each.answers]
            for _ in range(NUM_ORDERS):
                order = rng.permutation(len(classes))[:num]
                for size in range(1, num + 1):
                    own = [classes[at] for at in order[:size]]
                    winner = vote(own)
                    elected = order[own.index(winner)] if winner >= 0 else order[0]
                    self.right[row, size - 1] += each.is_right[elected] / NUM_ORDERS
                self.tokens[row] += np.cumsum([each.lengths[at] for at in order]) / NUM_ORDERS

    def at(self, tokens: float) -> npt.NDArray[np.float64]:
        """How likely the vote is right on each question, where it decodes so many tokens on average.

        Between two sizes of the vote, and below one sample and above all, the nearest sizes are mixed or taken.
        """
        means = self.tokens.mean(axis=0)
        size = float(np.interp(tokens, means, np.arange(len(means))))
        low, part = int(size), size - int(size)
        high = min(low + 1, len(means) - 1)
        return np.asarray((1 - part) * self.right[:, low] + part * self.right[:, high])
