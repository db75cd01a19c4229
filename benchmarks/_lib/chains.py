"""Chains of an embedded model, and what they say when asked from outside any controller."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks._lib.lab import Lab
from scaffolding_ext.answers import extract, up_to_brace
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.request.seeds import derive_seed
from scaffolding_ext.tinylm.grammar import CLOSE
from scaffolding_ext.tinylm.steps import STATED

TEMPERATURE = 0.7
MAX_CHAIN_LEN = 1200
ANSWER_LEN = 8  # tokens of a forced answer at most


class Belief(NamedTuple):
    """An answer that a chain states, and its tokens up to the end of that statement."""

    position: int
    answer: str


class Chain(NamedTuple):
    """A finished chain of thought.

    Attributes:
        sample: Its question.
        prompt_ids: What the model was given.
        ids: What it wrote, the answer included.
        text: The same as text.
        answer: Extracted from what follows the thinking, or None.
        beliefs: The answers that it states while thinking, in order, where they change.
    """

    sample: Example
    prompt_ids: list[int]
    ids: list[int]
    text: str
    answer: str | None
    beliefs: list[Belief]

    @property
    def is_right(self) -> bool:
        return self.answer == self.sample.target

    def is_right_at(self, index: int) -> bool:
        """Whether the stated answer of that index is right; without one, it is not."""
        return bool(self.beliefs) and self.beliefs[index].answer == self.sample.target

    def believed_at(self, num_tokens: int) -> str | None:
        """The answer stated last within the first `num_tokens` tokens."""
        stated = [belief.answer for belief in self.beliefs if belief.position <= num_tokens]
        return stated[-1] if stated else None


class Author:
    """One of a lab's models: it writes chains, and is asked about them.

    Args:
        lab: Has the engine.
        tag: Of the engine.
    """

    def __init__(self, lab: Lab, tag: str = "target") -> None:
        self._lab, self._tag = lab, tag
        self._ids = lab.prompting.encode

    def chains(self, samples: Sequence[Example], seed: int, first_epoch: int, num_epochs: int) -> list[Chain]:
        """`num_epochs` chains a question, those of one question side by side."""
        pairs = [(sample, epoch) for sample in samples for epoch in range(first_epoch, first_epoch + num_epochs)]
        tasks = []
        for sample, epoch in pairs:
            task = GenerationTask(input_str=sample.prompt, max_tokens=MAX_CHAIN_LEN, temperature=TEMPERATURE)
            task.seed = derive_seed(seed, sample.id, epoch)
            self._lab.prompting.apply(task)
            tasks.append(task)
        self._lab.ask(self._tag, tasks)
        return [self._chain(sample, task) for (sample, _), task in zip(pairs, tasks, strict=True)]

    def thinking_ids(self, chain: Chain) -> list[int]:
        """The part of a chain before its thinking closes."""
        close = self._ids("</think>")[0]
        return chain.ids[: chain.ids.index(close)] if close in chain.ids else chain.ids

    def forced_answers(self, chains: Sequence[Chain], positions: Sequence[Sequence[int]]) -> list[list[str | None]]:
        """The greedy answers of each chain when thinking is closed after so many of its tokens."""
        ids = self._ids(CLOSE)
        tasks = [
            GenerationTask(input_tokens=chain.prompt_ids + chain.ids[:position] + ids, max_tokens=ANSWER_LEN)
            for chain, wanted in zip(chains, positions, strict=True)
            for position in wanted
        ]
        answers = iter([up_to_brace(task.output_str or "") or None for task in self._lab.ask(self._tag, tasks)])
        return [list(itertools.islice(answers, len(wanted))) for wanted in positions]

    def mean_logprobs(self, chains: Sequence[Chain]) -> list[float]:
        """Mean log-probability a token of each chain, whoever wrote it, under this model."""
        tasks = [ScoreTask(input_tokens=chain.prompt_ids, continuation_tokens=chain.ids) for chain in chains]
        return [sum(t.logprobs or ()) / len(t.logprobs or (1,)) for t in self._lab.ask(self._tag, tasks)]

    def _chain(self, sample: Example, task: GenerationTask) -> Chain:
        text, ids = task.output_str or "", list(task.output_tokens or ())
        thinking, _, reply = text.partition("</think>")
        beliefs = [
            Belief(len(self._ids(thinking[: match.end()])), match[1] or match[2] or match[3])
            for match in STATED.finditer(thinking)
        ]
        return Chain(sample, list(task.input_tokens or ()), ids, text, extract(reply), beliefs)
