"""Searches on the embedded models' problems: a judge of any quality, what a search cost, and a vote at equal tokens."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from benchmarks._lib.lab import Lab
from benchmarks.tinylm.steps import check_steps
from scaffolding_ext.controllers.tree.branch import Branch
from scaffolding_ext.controllers.tree.score import Scorer
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.vote.voting import vote
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import ControllerGenerator, TaskStatus
from scaffolding_ext.protocol.branching import BranchTask
from scaffolding_ext.protocol.meta import Purpose, TokenCounts, note
from scaffolding_ext.request.program import count, current_program
from scaffolding_ext.request.seeds import derive_seed
from scaffolding_ext.tinylm.grammar import MAX_NUM_STEPS, Problem, sample_problem
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

QUESTION_LEN = 12  # tokens of the question that a judge of a step reads beside the step
NUM_ORDERS = 20  # of the samples of a vote


def draw_problems(num_problems: int, seed: int, least_steps: int = 0, most_steps: int = MAX_NUM_STEPS) -> list[Problem]:
    """Different held-out problems of so many operations."""
    rng, found = random.Random(seed), {}
    while len(found) < num_problems:
        problem = sample_problem(rng, "held_out")
        if least_steps <= problem.num_steps <= most_steps:
            found[problem.question] = problem
    return list(found.values())


def shift_of(auc: float) -> float:
    """The distance of the means of two unit normal distributions that have this AUC; infinite at 1."""
    return math.inf if auc == 1 else math.sqrt(2) * float(ndtri(auc))


def blurred(is_right: bool, shift: float, rng: np.random.Generator) -> float:
    """A judge's score of something right or wrong; an infinite shift gives the truth, 0.98 or 0.02."""
    if math.isinf(shift):
        return 0.98 if is_right else 0.02
    return float(1 / (1 + math.exp(-(shift * (is_right - 0.5) + rng.normal()))))


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
        self.shift = shift_of(auc)

    def score(self, branches: Sequence[Branch]) -> ControllerGenerator:
        program = current_program()
        assert program is not None
        problem = self.problems[program.question.prompt]
        for branch in branches:
            is_right = is_on_right_way(problem, branch)
            rng = np.random.default_rng(derive_seed(self.seed, problem.question, branch.path))
            branch.score = blurred(is_right, self.shift, rng)
        count(Purpose.VERIFY, TokenCounts(0, sum(branch.num_own_tokens + QUESTION_LEN for branch in branches)))
        yield from ()


class Written(NamedTuple):
    """The text that an engine wrote behind one prefix."""

    text: str
    ids: list[int]
    confidence: float
    logprobs: list[float] | None
    reason: str | None


class RememberingWorker(HuggingFaceWorker):
    """Writes a step once: the same prefix, seed and sampling give the same step, whichever search asks for it.

    A node's seed derives from its path, so that all searches of a question walk through one tree of steps. Every search
    is told the full number of decoded tokens, and that its prefixes were reused.

    Attributes:
        num_written: Tokens that the engine decoded.
        num_asked: Tokens that searches got.
    """

    def __init__(self, model: str, **engine: Any) -> None:
        super().__init__(model, **engine)
        self._known: dict[tuple[Any, ...], Written] = {}
        self.num_written = self.num_asked = 0

    async def _remembered_branch(self, task: BranchTask) -> TaskStatus:
        seeds = task.seeds
        if seeds is None or task.phrasings is not None:
            return await self._branch(task)
        sampling = task.temperature, task.top_p, task.top_k, tuple(task.stop or ())
        keys = [(*task.prefix_tokens, *own, seed, *sampling) for own, seed in zip(task.suffixes, seeds, strict=True)]
        known = [self._lookup(key, task.max_tokens) for key in keys]
        missing = [number for number, each in enumerate(known) if each is None]
        if missing:
            own = copy.copy(task)
            own.customized_result_fields = {}
            own.suffixes = [task.suffixes[number] for number in missing]
            own.seeds = [seeds[number] for number in missing]
            own.branch_scores = None
            await self._branch(own)
            assert own.outputs is not None
            assert own.output_tokens is not None
            assert own.confidences is not None
            assert own.finish_reasons is not None
            for at, number in enumerate(missing):
                wrote = Written(
                    own.outputs[at],
                    own.output_tokens[at],
                    own.confidences[at],
                    own.logprobs[at] if own.logprobs else None,
                    own.finish_reasons[at],
                )
                known[number] = self._known[keys[number], task.max_tokens] = self._known[keys[number], None] = wrote
                self.num_written += len(own.output_tokens[at])
        written = [each for each in known if each is not None]
        task.outputs = [each.text for each in written]
        task.output_tokens = [list(each.ids) for each in written]
        task.confidences = [each.confidence for each in written]
        task.logprobs = [each.logprobs or [] for each in written]
        task.finish_reasons = [each.reason for each in written]
        decoded = sum(len(each.ids) for each in written)
        self.num_asked += decoded
        note(task, counts=TokenCounts(decoded, 0, len(task.prefix_tokens) * len(written)))
        return TaskStatus.SUCCESS

    def forget(self) -> None:
        """Let go of all that was written."""
        self._known.clear()

    def _lookup(self, key: tuple[Any, ...], max_tokens: int | None) -> Written | None:
        """The text that was written at this limit, or at another one that it did not reach."""
        last = self._known.get((key, None))
        if last is not None and last.reason != "length" and len(last.ids) <= (max_tokens or len(last.ids)):
            return last
        return self._known.get((key, max_tokens))

    task_handlers: ClassVar[dict[type[Any], Any]] = {**HuggingFaceWorker.task_handlers, BranchTask: _remembered_branch}


def is_on_right_way(problem: Problem, branch: Branch) -> bool:
    """True if a chain's answer is right or, before there is one, if its last line is on a right way."""
    if branch.has_ended and branch.answer is not None:
        return branch.answer == problem.answer
    lines = check_steps(problem, branch.chain.text.partition("</think>")[0])
    return lines[-1].is_on_right_way if lines else True


class Searched(NamedTuple):
    """The result of a search on one question.

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
        judged: Tokens that judges read; those that they decoded are in `decoded`.
        num_nodes: Of the tree.
        most_held: Most distinct tokens that a round held.
        seconds: On this machine.
        rounds: After each round, tokens that its steps decoded since the beginning, and leaves that had ended.
        widths: The last round of each width but the last, of a search that grew.
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
    judged: int
    num_nodes: int
    most_held: int
    seconds: float
    rounds: Sequence[Sequence[int]] = ()
    widths: Sequence[int] = ()

    @property
    def all_tokens(self) -> int:
        """Tokens of policy and judge. The prompt, which every program reads once, is left out."""
        return self.decoded + self.judged


def search_all(
    lab: Lab, controller: SearchController, problems: Sequence[Problem], at_once: int = 16
) -> list[Searched]:
    """The results of a search on problems."""
    controller.prompting = lab.prompting
    with ScaffoldingLlm(controller, dict(lab.workers), seed=lab.seed, max_parallel_requests=at_once) as llm:
        results = [llm.generate_async(problem.question, sample_id=problem.question) for problem in problems]
        return [searched(problem, result.result()) for problem, result in zip(problems, results, strict=True)]


def searched(problem: Problem, result: Any) -> Searched:
    """The result of a search, from its trace."""
    events = {event["event"]: event for event in result.program.trace}
    answer, tree, ledger = events["answer"], events["tree"], result.program.ledger
    lengths: dict[tuple[int, ...], int] = {}
    rounds: list[list[int]] = []
    widths: list[int] = []
    leaves_at = {tuple(path) for path in answer["paths"]}
    num_tokens = num_ended = 0
    for event in result.program.trace:
        if event["event"] == "branches":
            for path, num, reason in zip(
                map(tuple, event["paths"]), event["num_tokens"], event["finish_reasons"], strict=True
            ):
                lengths[path] = num
                num_tokens += num - lengths.get(path[:-1], 0)
                num_ended += path in leaves_at and reason is not None
            rounds.append([num_tokens, num_ended])
        elif event["event"] == "width":
            widths.append(len(rounds) - 1)
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
        ledger.total.decoded,
        ledger.by_purpose.get(Purpose.VERIFY, TokenCounts()).prefilled,
        tree["num_nodes"],
        tree["most_tokens_held"],
        result.program.lifetime.elapsed(),
        rounds,
        widths,
    )


class Curve(NamedTuple):
    """Accuracy of a way to choose among n samples, and what it costs, by n.

    Attributes:
        right: How likely the choice is right, shape [questions, n].
        tokens: Of policy and judge, shape [questions, n].
    """

    right: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.float64]

    def at(self, tokens: float) -> npt.NDArray[np.float64]:
        """The probability that the choice is right on each question, if it takes so many tokens on average.

        Between two sizes, and below one sample and above all, the nearest sizes are mixed or taken.
        """
        means = self.tokens.mean(axis=0)
        size = float(np.interp(tokens, means, np.arange(len(means))))
        low, part = int(size), size - int(size)
        high = min(low + 1, len(means) - 1)
        return np.asarray((1 - part) * self.right[:, low] + part * self.right[:, high])


def sample_curves(
    samples: Sequence[Searched], rng: np.random.Generator, shift: float | None = None
) -> dict[str, Curve]:
    """A plain vote over whole solutions; with a judge also best of n and a vote weighed by its scores.

    Every curve is the mean over orders of the samples; the judge's noise is drawn anew for each order.

    Args:
        samples: Whole solutions of each question.
        rng: Of orders and noise.
        shift: Of a `BlurredJudge`; infinite is the truth itself, None no judge.
    """
    names = ["vote"] if shift is None else ["best of n", "weighted vote"]
    num = min(len(each.answers) for each in samples)
    right = {name: np.zeros((len(samples), num)) for name in names}
    lengths = np.zeros((len(samples), num))
    for row, each in enumerate(samples):
        ids = {answer: number for number, answer in enumerate(dict.fromkeys(a for a in each.answers if a))}
        classes = [-1 if answer is None else ids[answer] for answer in each.answers]
        for _ in range(NUM_ORDERS):
            order = rng.permutation(len(classes))[:num]
            scores = [blurred(each.is_right[at], shift, rng) for at in order] if shift is not None else None
            for size in range(1, num + 1):
                own = [classes[at] for at in order[:size]]
                for name in names:
                    if name == "best of n":
                        assert scores is not None
                        chosen = max(range(size), key=scores[:size].__getitem__)
                    else:
                        winner = vote(own, scores[:size] if scores is not None else None)
                        chosen = own.index(winner) if winner >= 0 else 0
                    right[name][row, size - 1] += each.is_right[order[chosen]] / NUM_ORDERS
            own_lengths = np.array([each.lengths[at] for at in order], dtype=float)
            if shift is not None:
                own_lengths += own_lengths + QUESTION_LEN
            lengths[row] += np.cumsum(own_lengths) / NUM_ORDERS
    return {name: Curve(right[name], lengths) for name in names}
