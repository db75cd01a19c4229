"""Tasks as requests of the generation engine: checked on the caller's side, so that a bad one fails alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.branching import BranchTask, VerifyTask
from scaffolding_ext.protocol.notes import Purpose, is_urgent, purpose_of, set_token_counts
from scaffolding_ext.protocol.stop_strings import stop_strings
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.request.program import cache_salt_of, priority_of
from scaffolding_ext.workers.huggingface.sampling import GREEDY, SamplingParams
from scaffolding_ext.workers.sampling_defaults import GreedyWatch, SamplingDefaults
from scaffolding_ext.workers.task_fields import refuse
from scaffolding_ext.workers.task_reading import TaskReader, integer

if TYPE_CHECKING:
    from scaffolding_ext.workers.huggingface.engine_request import EngineRequest

_LOWEST_TEMPERATURE = 1e-3  # the quotient of a logit by less may leave float32

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
    """Makes requests from tasks, or says what is wrong with them.

    Args:
        reader: Reads their prompts.
        defaults: How the model is sampled where nobody sets a temperature.
        seed: Seeds the tasks that bring none; None draws fresh entropy.
        watch: Sees the temperature of each generation task.
    """

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
        self, task: GenerationTask, notify: Callable[[EngineRequest], None], **options: Any
    ) -> EngineRequest:
        """The request of a generation task.

        Args:
            task: The task.
            notify: What the request calls.
            options: What else it is told.

        Raises:
            InvalidTaskError: A field is unusable.
        """
        from scaffolding_ext.workers.huggingface.engine_request import EngineRequest

        refuse(task, _REFUSED, "HuggingFaceWorker")
        prompt = self._reader.prompt(task)
        return EngineRequest(
            prompt,
            self._reader.max_tokens(task, len(prompt)),
            self._sampling(task),
            stop=stop_strings(task.stop),
            wants_logits=bool(task.return_context_logits),
            num_logprobs=integer("num_logprobs", task.num_logprobs, 0, 0),
            keep=purpose_of(task).written is not Purpose.PROBE,  # nothing continues a probe
            ignore_end=bool(getattr(task, "ignore_eos", None)),  # younger than 1.2
            min_tokens=integer("min_tokens", getattr(task, "min_tokens", None), 0, 0),
            urgent=is_urgent(task),
            priority=priority_of(task),
            salt=cache_salt_of(task),
            notify=notify,
            **options,
        )

    def score(self, task: ScoreTask, notify: Callable[[EngineRequest], None]) -> EngineRequest:
        """The request of a score task.

        Raises:
            InvalidTaskError: A field is unusable.
        """
        from scaffolding_ext.workers.huggingface.engine_request import EngineRequest

        scored = self._reader.scored(task)
        return EngineRequest(
            scored.token_ids,
            0,
            GREEDY,
            score_from=scored.start,
            urgent=is_urgent(task),
            priority=priority_of(task),
            salt=cache_salt_of(task),
            notify=notify,
        )

    def verify(self, task: VerifyTask, notify: list[Callable[[EngineRequest], None]]) -> list[EngineRequest]:
        """The requests of a verify task, one a branch.

        Args:
            task: The task.
            notify: What each branch's request calls.

        Raises:
            InvalidTaskError: A field is unusable.
        """
        from scaffolding_ext.workers.huggingface.engine_request import EngineRequest

        branches = self._reader.verified(task)
        choices = (int(task.yes_token), int(task.no_token))
        urgent, priority, salt = is_urgent(task), priority_of(task), cache_salt_of(task)
        return [
            EngineRequest(
                prompt,
                0,
                GREEDY,
                choices=choices,
                layer_exit=task.layer_exit,
                keep=False,
                urgent=urgent,
                priority=priority,
                salt=salt,
                notify=word,
            )
            for prompt, word in zip(branches, notify, strict=True)
        ]

    def reads(
        self,
        task: BranchTask,
        prompts: Sequence[list[int]],
        notify: Sequence[Callable[[EngineRequest], None]],
        max_tokens: int = 0,
        **options: Any,
    ) -> list[EngineRequest]:
        """Requests that read prompts of a branch task, for what is found out before its branches are written.

        Args:
            task: The task.
            prompts: What they read.
            notify: What each of them calls.
            max_tokens: What each of them generates behind it at most.
            options: What else they are told.

        Raises:
            InvalidTaskError: A prompt is empty or too long, or has ids that are not the model's.
        """
        from scaffolding_ext.workers.huggingface.engine_request import EngineRequest

        read = [self._reader.ids(prompt, None, "input") for prompt in prompts]
        for ids in read:
            self._reader.check_len(len(ids), "prefix and suffix have")
        urgent, priority, salt = is_urgent(task), priority_of(task), cache_salt_of(task)
        return [
            EngineRequest(ids, max_tokens, GREEDY, urgent=urgent, priority=priority, salt=salt, notify=word, **options)
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


def fill(task: GenerationTask, request: EngineRequest) -> bool:
    """Write into the task what the request has so far, or in the end; returns whether it has ended.

    Raises:
        EngineError: The request has failed.
    """
    if task.output_tokens is None:
        task.output_tokens = []
    snapshot = request.snapshot(len(task.output_tokens))
    set_token_counts(task, snapshot.counts)
    if snapshot.finish_reason is not None and request.error is not None:
        raise request.error
    task.output_tokens += snapshot.token_ids
    task.output_str = snapshot.text
    task.finish_reason = snapshot.finish_reason
    if request.num_logprobs:
        task.logprobs = snapshot.logprobs
    if request.wants_logits:
        task.context_logits = request.context_logits
    if hasattr(task, "ttft_s"):  # younger than 1.2
        started = request.submitted_at
        task.ttft_s = None if request.first_token_at is None else request.first_token_at - started
        task.latency_s = time.monotonic() - started
        task.usage_prompt_tokens, task.usage_completion_tokens = request.prompt_len, len(task.output_tokens)
    return snapshot.finish_reason is not None
