"""Turn tasks into requests of the engine. Checks run on the caller's side, so that only the bad task fails."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from scaffolding_ext.answers.stop_strings import stop_strings
from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol import GenerationTask, Task, current_scope
from scaffolding_ext.protocol.branching import BranchTask, VerifyTask
from scaffolding_ext.protocol.meta import Purpose, is_urgent, purpose_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.request.program import cache_salt_of, priority_of
from scaffolding_ext.workers.huggingface.block_pool import BlockPool, BlockPriority
from scaffolding_ext.workers.huggingface.engine_request import Ends, EngineRequest, Kv, Wants
from scaffolding_ext.workers.huggingface.model_loading import LoadedModel
from scaffolding_ext.workers.huggingface.sampling import GREEDY, SamplingParams
from scaffolding_ext.workers.shared.id_stops import special_ids
from scaffolding_ext.workers.shared.sampling_defaults import GreedyWatch
from scaffolding_ext.workers.shared.task_reading import TaskReader, integer, refuse

_LOWEST_TEMPERATURE = 1e-3  # a logit divided by less may exceed float32
_REFUSED = (  # fields that this worker cannot honour
    *("best_of", "echo", "frequency_penalty", "logit_bias", "n", "presence_penalty", "reasoning_effort"),
    *("return_context_logits", "skip_detokenizer", "skip_tokenizer", "suffix"),
)


class RequestBuilder:
    """Builds requests from tasks; an unusable field is an InvalidTaskError. `seed` is for tasks without a seed."""

    def __init__(
        self, reader: TaskReader, loaded: LoadedModel, pool: BlockPool, seed: int | None, watch: GreedyWatch
    ) -> None:
        self._reader, self._defaults, self._pool, self._watch = reader, loaded.defaults, pool, watch
        self._loaded = loaded
        self._rng = np.random.default_rng(seed)

    def generation(self, task: GenerationTask, priority: BlockPriority | None = None) -> EngineRequest:
        """Build the request of a generation task; `priority` is that of its blocks in the cache."""
        refuse(task, _REFUSED, "HuggingFaceWorker")
        prompt = self._reader.prompt(task)
        stops = stop_strings(task.stop)
        ends = Ends(
            self._reader.max_tokens(task, len(prompt)),
            stops,
            integer("min_tokens", getattr(task, "min_tokens", None), 0, 0),
            bool(getattr(task, "ignore_eos", None)),  # younger than 1.2
            special_ids(stops, self._reader.tokenizer),
        )
        wants = Wants(integer("num_logprobs", task.num_logprobs, 0, 0))
        keep = purpose_of(task).written is not Purpose.PROBE  # nothing continues a probe
        return self._request(task, prompt, wants, ends, self._sampling(task, len(prompt)), keep, priority)

    def score(self, task: ScoreTask) -> EngineRequest:
        token_ids, start = self._reader.scored(task)
        return self._request(task, token_ids, Wants(score_from=start))

    def verify(self, task: VerifyTask) -> list[EngineRequest]:
        choices = int(task.yes_token), int(task.no_token)
        wants = Wants(choices=choices, layer_exit=task.layer_exit, verdicts=task.every_layer)
        return [self._request(task, prompt, wants, keep=False) for prompt in self._reader.verified(task)]

    def reads(self, task: BranchTask, prompts: Sequence[list[int]]) -> list[EngineRequest]:
        """Build requests for the hidden states of prompts, before the task's branches are written."""
        read = [self._reader.ids(prompt, None, "input") for prompt in prompts]
        for ids in read:
            self._reader.check_len(len(ids), "prefix and suffix have")
        return [self._request(task, ids, Wants(states=True)) for ids in read]

    def _sampling(self, task: GenerationTask, prompt_len: int) -> SamplingParams:
        temperature, top_p, top_k, min_p = self._defaults.selection(task)
        if temperature and temperature < _LOWEST_TEMPERATURE:
            raise InvalidTaskError(
                f"temperature is {temperature!r}; it must be 0 (greedy) or at least {_LOWEST_TEMPERATURE}"
            )
        self._watch.see(task, temperature)
        seed = int(self._rng.integers(1 << 63)) if task.seed is None else integer("seed", task.seed, None, 0)
        processors = () if task.temperature is not None else self._loaded.processors(prompt_len)
        return SamplingParams(temperature, min(top_k, self._reader.vocab_size), top_p, seed, min_p, processors)

    def _request(
        self,
        task: Task,
        ids: list[int],
        wants: Wants,
        ends: Ends = Ends(),  # noqa: B008  (it cannot change)
        sampling: SamplingParams = GREEDY,
        keep: bool = True,
        priority: BlockPriority | None = None,
    ) -> EngineRequest:
        scope = current_scope.get()
        kv = Kv(keep, priority, cache_salt_of(task), None if scope is None else scope.request_id)
        request = EngineRequest(ids, ends, sampling, wants=wants, kv=kv, urgent=is_urgent(task))
        request.priority = priority_of(task, partial(self._pool.prefix_len, request.sequence))
        return request
