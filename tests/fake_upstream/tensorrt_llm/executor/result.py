"""Results as the LLM API hands them out: they take in a response whenever somebody awaits the next."""

import asyncio
import queue
import weakref
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tensorrt_llm import HAS_NEWEST_FIELDS
from tensorrt_llm.llmapi.utils import AsyncQueue


class RequestError(RuntimeError):
    """The engine has refused one request."""


class MetricNames(Enum):
    TTFT = "ttft"
    REQUEST_QUEUE_TIME = "request_queue_time"


@dataclass(slots=True)
class Logprob:
    logprob: float
    rank: int | None = None


@dataclass(slots=True)
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list[int] | None = field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list | None = field(default_factory=list)
    prompt_logprobs: list | None = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    generation_logits: Any = None


@dataclass
class Response:
    """The engine's response to a request at one step."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    prompt_logprobs: list | None = None
    context_logits: Any = None
    cached_tokens: int = 0
    finish_reason: str | None = None
    queue_seconds: float | None = None
    error: str | None = None


def has_event_loop():
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


class RequestOutput:
    def __init__(self, request_id, prompt_token_ids, sampling_params, streaming, tokenizer, executor):
        self.request_id = request_id
        self.prompt_token_ids = prompt_token_ids
        self.sampling_params = sampling_params
        self.tokenizer = tokenizer
        self.streaming = streaming
        self.aqueue = AsyncQueue() if has_event_loop() else None
        self.queue = queue.Queue() if self.aqueue is None else self.aqueue
        self.outputs = [CompletionOutput(0)]
        self.context_logits = None
        self.cached_tokens = 0
        self.metrics_dict = {}
        self._executor = weakref.ref(executor)
        self._done = False
        self._aborted = False
        self._error_msg = None

    @property
    def error(self):
        return self._error_msg

    @property
    def finished(self):
        return self._done

    def abort(self):
        self._executor().abort_request(self.request_id)  # after a shutdown of the LLM there is none
        self._aborted = True

    def aborted(self):
        return self._aborted

    def _result_step(self):
        self._handle_response(self.queue.get())

    async def _aresult_step(self):
        assert self.aqueue is not None, "The asyncio event loop was not present during initialization"
        self._handle_response(await self.aqueue.get())

    def _handle_response(self, response):
        if response.error is not None and HAS_NEWEST_FIELDS:  # the newest end the result, and raise nothing here
            self._done, self._error_msg = True, response.error
            return
        if response.error is not None:
            raise RequestError(response.error)
        output = self.outputs[0]
        output.token_ids.extend(response.token_ids)
        output.logprobs += response.logprobs
        self.cached_tokens = response.cached_tokens
        if response.prompt_logprobs is not None:
            output.prompt_logprobs = response.prompt_logprobs
        if response.context_logits is not None:
            self.context_logits = response.context_logits
        if response.queue_seconds is not None and self.sampling_params.return_perf_metrics:
            self.metrics_dict = {MetricNames.REQUEST_QUEUE_TIME: response.queue_seconds}
        self._done = response.finish_reason is not None
        output.finish_reason = "stop" if response.finish_reason == "stop_words" else response.finish_reason
        stops = self.sampling_params._get_stop_reasons_and_words()
        if response.finish_reason == "stop_words":  # ids are cut off, their log-probabilities are not
            reason, ids = next((reason, ids) for reason, ids in stops if output.token_ids[-len(ids) :] == ids)
            output.stop_reason, output.token_ids = reason, output.token_ids[: -len(ids)]
        output.text = self.tokenizer.decode(output.token_ids, skip_special_tokens=True)
        for string, _ in stops:
            if isinstance(string, str) and string in output.text:
                output.text = output.text[: output.text.find(string)]
                output.finish_reason, output.stop_reason, self._done = "stop", string, True
                if not HAS_NEWEST_FIELDS:  # the newest forget to
                    self.abort()
                return

    def result(self):
        while not self._done:
            self._result_step()
        return self

    async def aresult(self):
        while not self._done:
            await self._aresult_step()
        return self

    def __await__(self):
        return self.aresult().__await__()

    def __aiter__(self):
        return self

    async def __anext__(self):
        if self._done:
            raise StopAsyncIteration
        await self._aresult_step()
        return self
