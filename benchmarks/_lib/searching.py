"""Searches on the embedded models' problems, what a search cost, and a vote at equal tokens."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks._lib.lab import Lab
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.vote.voting import vote
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import TaskStatus
from scaffolding_ext.protocol.branching import BranchTask
from scaffolding_ext.protocol.meta import TokenCounts, note
from scaffolding_ext.tinylm.grammar import MAX_NUM_STEPS, Problem, sample_problem
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

NUM_ORDERS = 20  # of the samples of a vote


def draw_problems(num_problems: int, seed: int, least_steps: int = 0, most_steps: int = MAX_NUM_STEPS) -> list[Problem]:
    """Different held-out problems of so many operations."""
    rng, found = random.Random(seed), {}
    while len(found) < num_problems:
        problem = sample_problem(rng, "held_out")
        if least_steps <= problem.num_steps <= most_steps:
            found[problem.question] = problem
    return list(found.values())


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
    """

    def __init__(self, model: str, **engine: Any) -> None:
        super().__init__(model, **engine)
        self._known: dict[tuple[Any, ...], Written] = {}

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
        written = [each for each in known if each is not None]
        task.outputs = [each.text for each in written]
        task.output_tokens = [list(each.ids) for each in written]
        task.confidences = [each.confidence for each in written]
        task.logprobs = [each.logprobs or [] for each in written]
        task.finish_reasons = [each.reason for each in written]
        decoded = sum(len(each.ids) for each in written)
        note(task, counts=TokenCounts(decoded, 0, len(task.prefix_tokens) * len(written)))
        return TaskStatus.SUCCESS

    def _lookup(self, key: tuple[Any, ...], max_tokens: int | None) -> Written | None:
        """The text that was written at this limit, or at another one that it did not reach."""
        last = self._known.get((key, None))
        if last is not None and last.reason != "length" and len(last.ids) <= (max_tokens or len(last.ids)):
            return last
        return self._known.get((key, max_tokens))

    task_handlers: ClassVar[dict[type[Any], Any]] = {**HuggingFaceWorker.task_handlers, BranchTask: _remembered_branch}


class Searched(NamedTuple):
    """The result of a search on one question.

    Attributes:
        answers: Of the leaves, in order.
        is_right: Whether each is right.
        values: Of the leaves.
        lengths: Tokens of the leaves, from the root on.
        rounds: After each round, tokens that its steps decoded since the beginning, and leaves that had ended.
        widths: The last round of each width but the last, of a search that grew.
    """

    answers: list[str | None]
    is_right: list[bool]
    values: list[float]
    lengths: list[int]
    rounds: Sequence[Sequence[int]]
    widths: Sequence[int]


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
    answer = events["answer"]
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
    return Searched(
        answer["answers"],
        [each == problem.answer for each in answer["answers"]],
        answer["values"],
        [lengths[tuple(path)] for path in answer["paths"]],
        rounds,
        widths,
    )


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
    num = min(len(each.answers) for each in samples)
    right, lengths = np.zeros((len(samples), num)), np.zeros((len(samples), num))
    for row, each in enumerate(samples):
        ids = {answer: number for number, answer in enumerate(dict.fromkeys(a for a in each.answers if a))}
        classes = [-1 if answer is None else ids[answer] for answer in each.answers]
        for _ in range(NUM_ORDERS):
            order = rng.permutation(len(classes))[:num]
            for size in range(1, num + 1):
                own = [classes[at] for at in order[:size]]
                winner = vote(own)
                right[row, size - 1] += each.is_right[order[own.index(winner) if winner >= 0 else 0]] / NUM_ORDERS
            lengths[row] += np.cumsum([each.lengths[at] for at in order]) / NUM_ORDERS
    return Curve(right, lengths)
