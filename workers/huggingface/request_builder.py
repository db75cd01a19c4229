"""Turns tasks into requests of the engine. Checks run on the caller's side, so that only the bad task fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol import GenerationTask, Task, current_scope
from scaffolding_ext.protocol.branching import BranchTask, VerifyTask
from scaffolding_ext.protocol.meta import Purpose, is_urgent, note, purpose_of
from scaffolding_ext.protocol.stop_strings import stop_strings
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.request.program import cache_salt_of, priority_of
from scaffolding_ext.workers.huggingface.block_pool import BlockPriority
from scaffolding_ext.workers.huggingface.engine_request import Ends, EngineRequest, Kv, Wants
from scaffolding_ext.workers.huggingface.sampling import GREEDY, SamplingParams
from scaffolding_ext.workers.shared.sampling_defaults import GreedyWatch, SamplingDefaults
from scaffolding_ext.workers.shared.task_reading import TaskReader, integer, refuse

_LOWEST_TEMPERATURE = 1e-3  # a logit divided by less may exceed float32

# Fields that this worker cannot honour.
_REFUSED = (
    "best_of",
    "echo",
    "frequency_penalty",
    "logit_bias",
    "n",
    "presence_penalty",
    "reasoning_effort",
    "suffix",
    "skip_tokenizer",
    "skip_detokenizer",
)


class RequestBuilder:
    """Makes requests from tasks, and refuses unusable ones; `seed` is for tasks without a seed."""

    def __init__(self, reader: TaskReader, defaults: SamplingDefaults, seed: int | None, watch: GreedyWatch) -> None:
        self._reader = reader
        self._defaults = defaults
        self._watch = watch
        self._rng = np.random.default_rng(seed)

    @property
    def tokenizer_fingerprint(self) -> str:
        """Equal for workers whose token ids mean the same."""
        return self._reader.tokenizer_fingerprint

    def generation(
        self,
        task: GenerationTask,
        notify: Callable[[EngineRequest], None],
        priority: BlockPriority | None = None,
    ) -> EngineRequest:
        """The request of a generation task.

        Args:
            task: The task.
            notify: What the request calls.
            priority: Of its blocks in the cache.

        Raises:
            InvalidTaskError: A field is unusable.
        """
        refuse(task, _REFUSED, "HuggingFaceWorker")
        prompt = self._reader.prompt(task)
        ends = Ends(
            self._reader.max_tokens(task, len(prompt)),
            stop_strings(task.stop),
            integer("min_tokens", getattr(task, "min_tokens", None), 0, 0),
            bool(getattr(task, "ignore_eos", None)),  # younger than 1.2
        )
        wants = Wants(integer("num_logprobs", task.num_logprobs, 0, 0), logits=bool(task.return_context_logits))
        keep = purpose_of(task).written is not Purpose.PROBE  # nothing continues a probe
        kv = _kv(task, Kv(keep, priority))
        sampling = self._sampling(task)
        return _request(prompt, ends, sampling, wants=wants, kv=kv, task=task, notify=notify)

    def score(self, task: ScoreTask, notify: Callable[[EngineRequest], None]) -> EngineRequest:
        """The request of a score task.

        Raises:
            InvalidTaskError: A field is unusable.
        """
        token_ids, start = self._reader.scored(task)
        wants, kv = Wants(score_from=start), _kv(task)
        return _request(token_ids, Ends(), GREEDY, wants=wants, kv=kv, task=task, notify=notify)

    def verify(self, task: VerifyTask, notify: list[Callable[[EngineRequest], None]]) -> list[EngineRequest]:
        """The requests of a verify task, one for each branch.

        Raises:
            InvalidTaskError: A field is unusable.
        """
        branches = self._reader.verified(task)
        wants = Wants(
            choices=(int(task.yes_token), int(task.no_token)), layer_exit=task.layer_exit, verdicts=task.every_layer
        )
        kv = _kv(task, Kv(keep=False))
        return [
            _request(prompt, Ends(), GREEDY, wants=wants, kv=kv, task=task, notify=word)
            for prompt, word in zip(branches, notify, strict=True)
        ]

    def reads(
        self,
        task: BranchTask,
        prompts: Sequence[list[int]],
        notify: Sequence[Callable[[EngineRequest], None]],
        wants: Wants,
    ) -> list[EngineRequest]:
        """Requests that read prompts of a branch task before its branches are written.

        Raises:
            InvalidTaskError: A prompt is empty or too long, or has ids that are not the model's.
        """
        read = [self._reader.ids(prompt, None, "input") for prompt in prompts]
        for ids in read:
            self._reader.check_len(len(ids), "prefix and suffix have")
        kv = _kv(task)
        return [
            _request(ids, Ends(), GREEDY, wants=wants, kv=kv, task=task, notify=word)
            for ids, word in zip(read, notify, strict=True)
        ]

    def _sampling(self, task: GenerationTask) -> SamplingParams:
        temperature, top_p, top_k = self._defaults.selection(task)
        if temperature and temperature < _LOWEST_TEMPERATURE:
            raise InvalidTaskError(
                f"temperature is {temperature!r}; it must be 0 (greedy) or at least {_LOWEST_TEMPERATURE}"
            )
        self._watch.see(task, temperature)
        seed = int(self._rng.integers(1 << 63)) if task.seed is None else integer("seed", task.seed, None, 0)
        return SamplingParams(temperature, min(top_k, self._reader.vocab_size), top_p, seed)


def _kv(task: Task, kv: Kv = Kv()) -> Kv:  # noqa: B008  (it cannot change)
    scope = current_scope.get()
    return kv._replace(salt=cache_salt_of(task), owner=None if scope is None else scope.request_id)


def _request(*args: Any, task: Task, **options: Any) -> EngineRequest:
    return EngineRequest(*args, urgent=is_urgent(task), priority=priority_of(task), **options)


def fill(task: GenerationTask, request: EngineRequest) -> bool:
    """Write the request's results so far into the task; returns whether the request has ended.

    Raises:
        EngineError: The request has failed.
    """
    if task.output_tokens is None:
        task.output_tokens = []
    snapshot = request.snapshot(len(task.output_tokens))
    note(task, counts=snapshot.counts)
    if snapshot.finish_reason is not None and request.error is not None:
        raise request.error
    task.output_tokens += snapshot.token_ids
    task.output_str = snapshot.text
    task.finish_reason = snapshot.finish_reason
    if request.wants.num_logprobs:
        task.logprobs = snapshot.logprobs
    if request.wants.logits:
        task.context_logits = request.context_logits
    if hasattr(task, "ttft_s"):  # younger than 1.2
        started = request.submitted_at
        task.ttft_s = None if request.first_token_at is None else request.first_token_at - started
        task.latency_s = time.monotonic() - started
        task.usage_prompt_tokens, task.usage_completion_tokens = request.prompt_len, len(task.output_tokens)
    return snapshot.finish_reason is not None
