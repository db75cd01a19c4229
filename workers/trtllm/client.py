"""Sends requests to an `LLM`; what the installed release does not take is refused or noted, never dropped."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from scaffolding_ext.errors import EngineError, InvalidTaskError
from scaffolding_ext.program import record
from scaffolding_ext.protocol import GenerationTask, Task
from scaffolding_ext.tasks import set_token_counts
from scaffolding_ext.workers.task_reading import TaskReader
from scaffolding_ext.workers.trtllm.call import Call
from scaffolding_ext.workers.trtllm.engine_config import EngineNeeds
from scaffolding_ext.workers.trtllm.loading import LoadedLlm
from scaffolding_ext.workers.trtllm.sampling import sampling_arguments
from scaffolding_ext.workers.trtllm.scores import from_context_logits, from_prompt_logprobs

_HINTS = ("priority", "cache_salt")  # keys of custom_input_params that go to the engine, where the release takes them
_num_salts = itertools.count()  # of the process: two workers may share an LLM


class LlmClient:
    """One worker's way to its LLM.

    Args:
        loaded: The LLM and what is known of it.
        reader: Reads its tasks.
        request_timeout: Seconds that one request may take; None is no limit.

    Attributes:
        why_no_scores: Why the LLM cannot score given tokens; empty where it can.
    """

    def __init__(self, loaded: LoadedLlm, reader: TaskReader, request_timeout: float | None) -> None:
        self._loaded = loaded
        self._reader = reader
        self._request_timeout = request_timeout
        self._by_logits = loaded.engine is not None
        self._calls: set[Call] = set()
        self._is_shut_down = False
        self.why_no_scores = _why_no_scores(loaded)

    def open(self, task: GenerationTask, *, streaming: bool, **late: Any) -> Call:
        """Submit a generation task.

        Args:
            task: The task.
            streaming: Whether its tokens are wanted as they come.
            late: Keywords of `generate_async` that only some releases have.

        Raises:
            InvalidTaskError: A field is unusable, or cannot be honoured.
            EngineError: The engine refuses the request.
        """
        token_ids = self._reader.prompt(task)
        max_tokens = self._reader.max_tokens(task, len(token_ids))
        release = self._loaded.release
        arguments = sampling_arguments(task, max_tokens, release.sampling_fields, release.version)
        if task.return_context_logits:
            if self.why_no_scores:
                raise InvalidTaskError(f"return_context_logits is True, but {self.why_no_scores}")
            late |= self._salt()
        return self._submit(task, token_ids, arguments, streaming, late)

    async def scores(self, task: Task, token_ids: list[int], start: int) -> list[float]:
        """Natural-log probabilities of the tokens from `start` on; the task is charged for reading them.

        Raises:
            EngineError: The engine failed, or says nothing of some tokens.
        """
        while True:
            by_logits = self._by_logits
            wanted = {"return_context_logits": True} if by_logits else {"prompt_logprobs": 1}
            call = self._submit(task, token_ids, {"max_tokens": 1, "top_k": 1, **wanted}, False, self._salt())
            try:
                await call.wait()
            finally:
                self.close(task, call, decodes=False)
            if by_logits:
                return from_context_logits(call.result.context_logits, token_ids, start)
            scores = from_prompt_logprobs(call.output.prompt_logprobs, token_ids, start)
            if scores is not None:
                return scores
            self._by_logits = True  # this release reports the likeliest tokens only

    def close(self, task: Task, call: Call, *, decodes: bool = True) -> None:
        """Forget a request, whatever became of it, and note what it has cost.

        Args:
            task: It was for this one.
            call: The request.
            decodes: False where its only token comes with the prompt, without a step of its own, and is not wanted.
        """
        self.forget(call)
        set_token_counts(task, call.counts if decodes else call.counts._replace(decoded=0))

    def forget(self, call: Call) -> None:
        """Let go of a request."""
        self._calls.discard(call)

    def shutdown(self) -> None:
        """End the requests in flight with an EngineError, and the LLM where it is this package's own."""
        if self._is_shut_down:
            return
        self._is_shut_down = True
        for call in list(self._calls):
            call.fail(EngineError("the worker has been shut down"))
        if self._loaded.is_own:
            self._loaded.llm.shutdown()

    def _submit(
        self, task: Task, token_ids: list[int], arguments: Mapping[str, Any], streaming: bool, late: Mapping[str, Any]
    ) -> Call:
        if self._is_shut_down:
            raise EngineError("the worker has been shut down")
        release = self._loaded.release
        hints = task.custom_input_params or {}
        keywords = {name: hints[name] for name in _HINTS if name in hints} | dict(late)
        for name in keywords.keys() - release.request_keywords:
            del keywords[name]
            record("lowered", what=name, reason=f"TensorRT-LLM {release.version} does not take it")
        if "return_perf_metrics" in release.sampling_fields:
            arguments = {**arguments, "return_perf_metrics": True}
        try:
            params = release.sampling_params(**arguments)
            result = self._loaded.llm.generate_async(token_ids, sampling_params=params, streaming=streaming, **keywords)
        except Exception as error:  # of any type: what the engine refuses at once
            raise EngineError(f"TensorRT-LLM refused a request: {type(error).__name__}: {error}") from error
        call = Call(result, len(token_ids), self._request_timeout)
        self._calls.add(call)
        return call

    def _salt(self) -> dict[str, str]:
        """What keeps a request from KV that is there already, since of reused tokens nothing is reported."""
        return {"cache_salt": f"score-{next(_num_salts)}"} if self._loaded.reuses_blocks else {}


def _why_no_scores(loaded: LoadedLlm) -> str:
    if loaded.engine is not None and not loaded.engine.gather_context_logits:
        flags = " ".join(loaded.engine.build_flags(EngineNeeds(scores=True)))
        return f"its engine was built without gather_context_logits; build it anew with trtllm-build {flags}"
    if loaded.reuses_blocks and "cache_salt" not in loaded.release.request_keywords:
        return (
            f"its KV blocks are reused, of which TensorRT-LLM {loaded.release.version} reports no log-probabilities, "
            "and it has no cache_salt: give scores a worker of their own with enable_block_reuse: false"
        )
    return ""
