"""Client of an `LLM`. A field that the installed release lacks is refused or recorded, never dropped."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from scaffolding_ext.answers.stop_strings import StopStrings, stop_strings
from scaffolding_ext.errors import EngineError, InvalidTaskError
from scaffolding_ext.protocol import GenerationTask, Task
from scaffolding_ext.protocol.meta import TokenCounts, meta_of, note
from scaffolding_ext.request.program import next_seed, record
from scaffolding_ext.workers.shared.id_stops import IdStops, special_ids
from scaffolding_ext.workers.shared.sampling_defaults import GreedyWatch
from scaffolding_ext.workers.shared.streaming import NEVER
from scaffolding_ext.workers.shared.task_reading import TaskReader
from scaffolding_ext.workers.trtllm.arguments import (
    end_ids,
    hinted_arguments,
    lowest_retention,
    off_in,
    request_keywords,
    sampling_arguments,
)
from scaffolding_ext.workers.trtllm.call import SHUT_DOWN, Call, LlmLoop
from scaffolding_ext.workers.trtllm.engine_config import EngineNeeds
from scaffolding_ext.workers.trtllm.loading import LoadedLlm
from scaffolding_ext.workers.trtllm.scores import from_context_logits, from_prompt_logprobs

_LIKELIEST = 20  # log-probabilities to request per prompt position if a release only reports the likeliest
_num_salts = itertools.count()  # one counter per process: two workers may share an LLM


class LlmClient:
    """One worker's client of its LLM.

    Args:
        request_timeout: Seconds that one request may take; None is unlimited.
        seed: Seeds sampled tasks without a seed; None draws fresh entropy.

    Attributes:
        why_no_scores: Reason why the LLM cannot score given tokens; empty if it can.
    """

    def __init__(self, loaded: LoadedLlm, reader: TaskReader, request_timeout: float | None, seed: int | None) -> None:
        self._loaded = loaded
        self._reader = reader
        self._request_timeout = request_timeout
        self._rng = np.random.default_rng(seed)
        self._watch = GreedyWatch(loaded.model)
        self._calls: set[Call] = set()
        self._is_shut_down = False
        self._loop = LlmLoop.enter(loaded.llm)
        self.why_no_scores = _why_no_scores(loaded)

    def open(self, task: GenerationTask, *, streaming: bool, end_at: int | None = None, retention: Any = None) -> Call:
        """Create a request for a generation task; its first wait submits it.

        Args:
            streaming: True if tokens are wanted as they arrive.
            end_at: Tokens at which it ends with reason `PAUSED`; None is the task's budget.
            retention: `KvCacheRetentionConfig` of its KV; None is the engine's default.

        Raises:
            InvalidTaskError: A field is unusable or cannot be honoured.
            EngineError: The worker has been shut down.
        """
        token_ids = self._reader.prompt(task)
        max_tokens = self._reader.max_tokens(task, len(token_ids))
        budget = max_tokens if end_at is None else min(end_at, max_tokens)
        release = self._loaded.release
        arguments = sampling_arguments(
            task,
            budget,
            self._loaded.defaults,
            release.sampling_fields,
            release.version,
            self._loaded.vocab_size,
        )
        arguments |= hinted_arguments(task, self._loaded)
        stops = self._stops(task)
        if arguments.get("top_k") != 1 and "seed" not in arguments:  # without one the engine uses a fixed seed
            seed = next_seed()
            arguments["seed"] = int(self._rng.integers(1 << 63)) if seed is None else seed
        self._watch.see(task, arguments.get("temperature", 0.0))
        if "logprobs" in arguments and self._loaded.why_no_logprobs:
            raise InvalidTaskError(f"num_logprobs is {task.num_logprobs}, but {self._loaded.why_no_logprobs}")
        streaming = streaming or stops is not None
        keywords = request_keywords(task, self._loaded)
        if retention is not None:
            keywords["kv_cache_retention_config"] = retention
        if task.return_context_logits:
            if self.why_no_scores:
                raise InvalidTaskError(f"return_context_logits is True, but {self.why_no_scores}")
            keywords |= self._unshared()
        if task.temperature is not None and self._loaded.argument("generation_config") == "auto":
            arguments = off_in(release) | arguments
        return self._call(token_ids, arguments, keywords, streaming, budget < max_tokens, stops)

    async def scores(self, task: Task, token_ids: list[int], start: int) -> list[float]:
        """Natural-log probabilities of the tokens from `start`; prefilling them is charged to the task.

        Raises:
            EngineError: The engine failed, or did not report some tokens.
        """
        if self._loaded.engine is None:
            call = await self._score(task, token_ids, self._wanted_of_prompts())
            scores = from_prompt_logprobs(call.output.prompt_logprobs, token_ids, start)
            if scores is not None:
                return scores
            reason = f"TensorRT-LLM {self._loaded.release.version} reports only the {_LIKELIEST} likeliest tokens"
            record("fallback", what="prompt_logprobs", to="context logits", reason=reason)
        call = await self._score(task, token_ids, {"return_context_logits": True})
        return from_context_logits(call.result.context_logits, token_ids, start)

    def shutdown(self) -> None:
        """End the requests in flight with an EngineError, and shut down an LLM loaded by this package."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        for call in list(self._calls):
            self._loop.run_blocking(call.end, EngineError(SHUT_DOWN))
        self._loop.leave(self._loaded.llm)
        if self._loaded.is_own:
            self._loaded.llm.shutdown()

    def _wanted_of_prompts(self) -> dict[str, Any]:
        """Request fields for the log-probabilities of a prompt's tokens."""
        if "prompt_logprobs_simple_format" in self._loaded.release.sampling_fields:
            return {"prompt_logprobs": 0, "prompt_logprobs_simple_format": True}
        return {"prompt_logprobs": min(_LIKELIEST, self._loaded.vocab_size)}

    async def _score(self, task: Task, token_ids: list[int], wanted: Mapping[str, Any]) -> Call:
        """Let the engine read a prompt; its one new token is not counted, since it comes without a decoding step."""
        spent = meta_of(task).counts or TokenCounts()  # spent on an attempt that reported too little
        keywords = request_keywords(task, self._loaded) | self._unshared()
        call = self._call(token_ids, {"max_tokens": 1, "top_k": 1, **wanted}, keywords, streaming=False)
        try:
            await call.wait(NEVER)
            return call
        finally:
            await call.close()
            own = call.counts._replace(decoded=0)
            note(task, counts=TokenCounts(*map(sum, zip(spent, own, strict=True))))

    def _call(
        self,
        token_ids: list[int],
        arguments: Mapping[str, Any],
        keywords: dict[str, Any],
        streaming: bool,
        is_piece: bool = False,
        stops: IdStops | None = None,
    ) -> Call:
        if self._is_shut_down:
            raise EngineError(SHUT_DOWN)
        release = self._loaded.release
        for name in keywords.keys() - release.request_keywords:
            del keywords[name]
            record("fallback", what=name, reason=f"TensorRT-LLM {release.version} does not take it")
        if "return_perf_metrics" in release.sampling_fields:
            arguments = {**arguments, "return_perf_metrics": True}

        def submit() -> Any:
            params = release.setting("SamplingParams")(**arguments)
            return self._loop(token_ids, sampling_params=params, streaming=streaming, **keywords)

        prompt_len = len(token_ids)
        return Call(self._loop, self._calls, submit, prompt_len, self._request_timeout, is_piece, stops)

    def _stops(self, task: GenerationTask) -> IdStops | None:
        strings = stop_strings(task.stop)
        ends = special_ids(strings, self._reader.tokenizer) | end_ids(task, self._loaded.vocab_size)
        return IdStops(StopStrings(strings), self._decoded, ends) if strings or ends else None

    def _decoded(self, token_ids: list[int]) -> str:
        return str(self._reader.tokenizer.decode(token_ids, skip_special_tokens=True))

    def _unshared(self) -> dict[str, Any]:
        """Keywords that prevent reuse of KV, for which the engine reports nothing; its own KV is evicted first."""
        if not self._loaded.reuses_blocks:
            return {}
        retention = lowest_retention(self._loaded.release.setting("KvCacheRetentionConfig"))
        return {"cache_salt": f"score-{next(_num_salts)}", "kv_cache_retention_config": retention}


def _why_no_scores(loaded: LoadedLlm) -> str:
    if loaded.engine is not None and not loaded.engine.gather_context_logits:
        flags = " ".join(loaded.engine.build_flags(EngineNeeds(scores=True)))
        return f"its engine was built without gather_context_logits; rebuild it with trtllm-build {flags}"
    if loaded.reuses_blocks and "cache_salt" not in loaded.release.request_keywords:
        return (
            f"TensorRT-LLM {loaded.release.version} reports no log-probabilities of tokens whose KV it reuses, and has "
            "no cache_salt to prevent reuse; add a worker with enable_block_reuse: false for scores"
        )
    return ""
