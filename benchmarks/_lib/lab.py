"""Measures an embedded model from outside any controller: chains, forced answers, scores and verdicts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

from scaffolding_ext import HuggingFaceWorker, Prompting
from scaffolding_ext.answers import extract, up_to_brace
from scaffolding_ext.evaluation.datasets import Sample
from scaffolding_ext.prompting import load_tokenizer
from scaffolding_ext.protocol import GenerationTask, Task
from scaffolding_ext.seeds import derive_seed
from scaffolding_ext.tasks import ScoreTask, VerifyTask
from scaffolding_ext.tinylm.chains import STATED
from scaffolding_ext.tinylm.grammar import CLOSE, NO, PROBE, VERDICT, YES

TEMPERATURE = 0.7
MAX_CHAIN_LEN = 1200
ANSWER_LEN = 8  # tokens of a forced answer at most
_T = TypeVar("_T", bound=Task)


class Belief(NamedTuple):
    """An answer that a chain states, and its tokens up to the end of that statement."""

    position: int
    answer: str


class Response(NamedTuple):
    """What a probed chain says: its text, the answer in it, and the tokens that it took."""

    text: str
    answer: str | None
    num_tokens: int


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

    sample: Sample
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


class Lab:
    """One embedded model and its prompting; `with` frees the engine."""

    def __init__(self, model: str) -> None:
        self.worker = HuggingFaceWorker(model)
        self.prompting = Prompting.for_model(model)
        self.tokenizer = load_tokenizer(model)
        self._encode = self.tokenizer.backend_tokenizer.encode

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: Any) -> None:
        self.worker.shutdown()

    def sample_chains(self, samples: Sequence[Sample], seed: int, first_epoch: int, num_epochs: int) -> list[Chain]:
        """`num_epochs` chains a question, those of one question side by side."""
        pairs = [(sample, epoch) for sample in samples for epoch in range(first_epoch, first_epoch + num_epochs)]
        tasks = []
        for sample, epoch in pairs:
            task = GenerationTask(input_str=sample.prompt, max_tokens=MAX_CHAIN_LEN, temperature=TEMPERATURE)
            task.seed = derive_seed(seed, sample.id, epoch)
            self.prompting.apply(task)
            tasks.append(task)
        self._run(tasks)
        return [self._chain(sample, task) for (sample, _), task in zip(pairs, tasks, strict=True)]

    def thinking_ids(self, chain: Chain) -> list[int]:
        """The part of a chain before its thinking closes."""
        close = self._ids("</think>")[0]
        return chain.ids[: chain.ids.index(close)] if close in chain.ids else chain.ids

    def forced_answers(self, chains: Sequence[Chain], positions: Sequence[Sequence[int]]) -> list[list[str | None]]:
        """The greedy answers of each chain when thinking is closed after so many of its tokens."""
        suffix = self._ids(CLOSE)
        tasks = [
            GenerationTask(input_tokens=chain.prompt_ids + chain.ids[:position] + suffix, max_tokens=ANSWER_LEN)
            for chain, wanted in zip(chains, positions, strict=True)
            for position in wanted
        ]
        answers = iter([up_to_brace(task.output_str or "") or None for task in self._run(tasks)])
        return [list(itertools.islice(answers, len(wanted))) for wanted in positions]

    def probes(
        self, chains: Sequence[Chain], positions: Sequence[Sequence[int]], temperature: float, seed: int
    ) -> list[list[Response]]:
        """What each chain responds when it is probed after so many of its tokens."""
        suffix = self._ids(PROBE)
        tasks = [
            GenerationTask(
                input_tokens=chain.prompt_ids + chain.ids[:position] + suffix,
                max_tokens=ANSWER_LEN,
                temperature=temperature,
                top_p=0.95,
                seed=derive_seed(seed, chain.sample.id, position),
            )
            for chain, wanted in zip(chains, positions, strict=True)
            for position in wanted
        ]
        texts = [(task.output_str or "", len(task.output_tokens or ())) for task in self._run(tasks)]
        responses = iter([Response(text, up_to_brace(text) or None, num_tokens) for text, num_tokens in texts])
        return [list(itertools.islice(responses, len(wanted))) for wanted in positions]

    def mean_logprobs(self, chains: Sequence[Chain]) -> list[float]:
        """Mean log-probability a token of each chain, whoever wrote it, under this model."""
        tasks = self._run([ScoreTask(input_tokens=chain.prompt_ids, continuation_tokens=chain.ids) for chain in chains])
        return [sum(task.logprobs or ()) / len(task.logprobs or (1,)) for task in tasks]

    def verdicts(self, chains: Sequence[Chain]) -> list[float]:
        """P(YES) of each chain with the answer that it ends in."""
        question = self._ids(VERDICT)
        end = self.tokenizer.eos_token_id
        tasks = [
            VerifyTask(
                branches=[chain.prompt_ids + [token for token in chain.ids if token != end] + question],
                yes_token=self._ids(YES)[0],
                no_token=self._ids(NO)[0],
            )
            for chain in chains
        ]
        return [float((task.scores or [0.5])[0]) for task in self._run(tasks)]

    def _chain(self, sample: Sample, task: GenerationTask) -> Chain:
        text, ids = task.output_str or "", list(task.output_tokens or ())
        thinking, _, reply = text.partition("</think>")
        beliefs = [
            Belief(len(self._ids(thinking[: match.end()])), match[1] or match[2]) for match in STATED.finditer(thinking)
        ]
        return Chain(sample, list(task.input_tokens or ()), ids, text, extract(reply), beliefs)

    def _ids(self, text: str) -> list[int]:
        return list(self._encode(text, add_special_tokens=False).ids)

    def _run(self, tasks: list[_T]) -> list[_T]:
        async def run_all() -> None:
            await asyncio.gather(*[self.worker.run_task(task) for task in tasks])

        asyncio.run(run_all())
        return tasks
