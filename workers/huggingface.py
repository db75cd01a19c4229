"""A worker over transformers: any causal LM, on CPU or CUDA, with continuous batching and prefix reuse."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from scaffolding_ext.errors import ConfigError, InvalidTaskError, MissingDependencyError
from scaffolding_ext.prompting import load_tokenizer, model_folder
from scaffolding_ext.protocol import (
    GenerationTask,
    ScaffoldingOutput,
    StreamGenerationTask,
    TaskStatus,
    Worker,
    current_scope,
)
from scaffolding_ext.tasks import Purpose, ScoreTask, purpose_of, set_token_counts
from scaffolding_ext.workers.sampling import SamplingParams
from scaffolding_ext.workers.waiter import NEVER, Waiter

if TYPE_CHECKING:
    from scaffolding_ext.standins import TaskHandler
    from scaffolding_ext.workers.generation_engine import GenerationEngine
    from scaffolding_ext.workers.metrics import EngineMetrics
    from scaffolding_ext.workers.sequence import Sequence

# Fields that this worker cannot honour, with the values that ask for nothing.
_REFUSED: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "best_of": (None, 1),
        "echo": (None, False),
        "frequency_penalty": (None, 0.0),
        "logit_bias": (None, {}),
        "n": (None, 1),
        "presence_penalty": (None, 0.0),
        "suffix": (None, ""),
        "return_context_logits": (None, False),
        "skip_tokenizer": (False,),
        "skip_detokenizer": (False,),
    }
)


class HuggingFaceWorker(Worker):
    """Serves generation, streaming and scoring from a transformers model in this process.

    A sampled text depends on its seed and its prompt, not on what else runs. Where a task gives neither temperature,
    top-p nor top-k, it is decoded greedily. `input_tokens` go before `input_str`. Stop strings are cut off the text,
    not off the token ids.

    Args:
        model: A folder, a hub name, or `tinylm/NAME` for an embedded model.
        dtype: `"float32"`, `"bfloat16"` or `"float16"`.
        device: A torch device.
        threads: Threads of each torch operation. It is a setting of the whole process; where other work shares the
            cores, 1 is often fastest.
        max_batch_size: Requests that run at once.
        max_seq_len: Prompt and generated tokens of one request; None takes the model's context length.
        prefill_chunk: Prompt tokens of one request that one step computes at most.
        prefix_cache_bytes: Memory for the KV of ended requests, which later ones reuse.
        seed: Seeds the tasks that bring none; None draws fresh entropy.
        attn_implementation: How attention is computed, as transformers names it.

    Raises:
        MissingDependencyError: torch or transformers is not installed.
        ConfigError: An argument is outside its range.
    """

    def __init__(
        self,
        model: str,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        threads: int = 1,
        max_batch_size: int = 64,
        max_seq_len: int | None = None,
        prefill_chunk: int = 256,
        prefix_cache_bytes: int = 256 * 2**20,
        seed: int | None = None,
        attn_implementation: str = "sdpa",
    ) -> None:
        for key, value, low in (
            ("threads", threads, 1),
            ("max_batch_size", max_batch_size, 1),
            ("prefill_chunk", prefill_chunk, 1),
            ("prefix_cache_bytes", prefix_cache_bytes, 0),
        ):
            if value < low:
                raise ConfigError(f"is {value}; it must be at least {low}", key)
        if dtype not in ("float32", "bfloat16", "float16"):
            raise ConfigError(f"is {dtype!r}; choose float32, bfloat16 or float16", "dtype")
        try:
            import torch
            from transformers import AutoModelForCausalLM
        except ImportError as error:
            raise MissingDependencyError("torch with transformers", "hf") from error
        from scaffolding_ext.workers.generation_engine import GenerationEngine

        self._tokenizer = load_tokenizer(model)
        with _no_progress_bars():
            network = AutoModelForCausalLM.from_pretrained(
                model_folder(model), dtype=getattr(torch, dtype), attn_implementation=attn_implementation
            )
        network.to(device).eval()
        context_len = getattr(network.config, "max_position_embeddings", None)
        self.max_seq_len = max_seq_len or context_len or 4096
        if context_len is not None and self.max_seq_len > context_len:
            raise ConfigError(f"is {max_seq_len}; the model's context is {context_len} tokens", "max_seq_len")
        self._backend = self._tokenizer.backend_tokenizer
        self._rng = np.random.default_rng(seed)
        self._streams: dict[str, set[Sequence]] = {}
        self._engine: GenerationEngine = GenerationEngine(
            network,
            self._backend,
            _end_ids(network, self._tokenizer),
            max_batch_size=max_batch_size,
            max_seq_len=self.max_seq_len,
            prefill_chunk=prefill_chunk,
            prefix_cache_bytes=prefix_cache_bytes,
            threads=threads,
        )

    @property
    def metrics(self) -> EngineMetrics:
        """A snapshot of the engine."""
        return self._engine.metrics

    def shutdown(self) -> None:
        """Stop the engine; tasks in flight fail with an EngineError."""
        self._engine.shutdown()

    async def on_scope_end(self, scope_id: str) -> None:
        """Cancel the streams that a request or branch has left open."""
        for sequence in self._streams.pop(scope_id, ()):
            self._engine.cancel(sequence)

    async def _generate(self, task: GenerationTask) -> TaskStatus:
        waiter = Waiter()
        sequence = self._sequence(task, waiter)
        self._engine.submit(sequence)
        if not task.streaming_output_flag:
            await self._wait(sequence, waiter, NEVER)
        else:
            while not sequence.ended:
                await self._wait(sequence, waiter, sequence.num_decoded + 1)
                _fill(task, sequence)
                task.streaming_output_list.append(ScaffoldingOutput(task.output_str, task.output_tokens))
        _fill(task, sequence)
        return TaskStatus.SUCCESS

    async def _stream(self, task: StreamGenerationTask) -> TaskStatus:
        if task.end_flag:
            return TaskStatus.SUCCESS
        if task.request_handle is None:
            if task.cancel_flag:
                task.end_flag = True
                return TaskStatus.SUCCESS
            waiter = Waiter()
            task.request_handle = (self._sequence(task, waiter), waiter)
            self._streams.setdefault(_scope_id(), set()).add(task.request_handle[0])
            self._engine.submit(task.request_handle[0])
        sequence, waiter = task.request_handle
        if task.cancel_flag:
            self._engine.cancel(sequence)
            await self._wait(sequence, waiter, NEVER)
        else:
            await self._wait(sequence, waiter, len(task.output_tokens or ()) + (task.streaming_step or 0))
        _fill(task, sequence)
        if task.streaming_output_flag and not sequence.ended:
            task.streaming_output_list.append(ScaffoldingOutput(task.output_str, task.output_tokens))
        if sequence.ended:
            task.end_flag = True
            self._forget_stream(sequence)
        return TaskStatus.SUCCESS

    def _forget_stream(self, sequence: Sequence) -> None:
        streams = self._streams.get(_scope_id(), set())
        streams.discard(sequence)
        if not streams:
            self._streams.pop(_scope_id(), None)

    async def _score(self, task: ScoreTask) -> TaskStatus:
        given = self._ids(task.input_tokens, task.input_str, "input")
        continuation = task.continuation_tokens
        if continuation is None:
            if task.continuation_str is None:
                raise InvalidTaskError("continuation_tokens and continuation_str are both None; give one")
            continuation = self._backend.encode(task.continuation_str, add_special_tokens=False).ids
        waiter = Waiter()
        from scaffolding_ext.workers.sequence import Sequence

        prompt = given + continuation
        self._check_len(len(prompt), 0)
        greedy = SamplingParams(0.0, 0, 1.0, 0)
        sequence = Sequence(prompt, 0, greedy, score_from=len(given), notify=waiter.notify)
        self._engine.submit(sequence)
        await self._wait(sequence, waiter, NEVER)
        task.logprobs = sequence.scores
        set_token_counts(task, sequence.counts)
        return TaskStatus.SUCCESS

    task_handlers: ClassVar[dict[type[Any], TaskHandler]] = {
        GenerationTask: _generate,
        StreamGenerationTask: _stream,
        ScoreTask: _score,
    }

    async def _wait(self, sequence: Sequence, waiter: Waiter, num_tokens: int) -> None:
        """Until the sequence has that many tokens or has ended; a cancelled wait cancels the sequence."""
        try:
            await waiter.wait(sequence, num_tokens)
        except asyncio.CancelledError:
            self._engine.cancel(sequence)
            raise
        if sequence.error is not None:
            raise sequence.error

    def _sequence(self, task: GenerationTask, waiter: Waiter) -> Sequence:
        from scaffolding_ext.workers.sequence import Sequence

        for name, neutral in _REFUSED.items():
            value = getattr(task, name)
            if value not in neutral:
                raise InvalidTaskError(
                    f"{name} is {value!r}; HuggingFaceWorker cannot honour it: leave it at {neutral[0]!r}"
                )
        prompt = self._ids(task.input_tokens, task.input_str, "input")
        room = self.max_seq_len - len(prompt)
        max_tokens = room if task.max_tokens is None else task.max_tokens
        if max_tokens < 1 and room >= 1:
            raise InvalidTaskError(f"max_tokens is {max_tokens}; it must be at least 1")
        self._check_len(len(prompt), max_tokens)
        stop = (task.stop,) if isinstance(task.stop, str) else tuple(task.stop or ())
        return Sequence(
            prompt,
            max_tokens,
            self._sampling(task),
            stop=tuple(filter(None, stop)),
            num_logprobs=task.num_logprobs or 0,
            keep=purpose_of(task).written is not Purpose.PROBE,  # nothing continues a probe
            ignore_end=bool(getattr(task, "ignore_eos", None)),  # younger than 1.2
            min_tokens=getattr(task, "min_tokens", None) or 0,
            notify=waiter.notify,
        )

    def _sampling(self, task: GenerationTask) -> SamplingParams:
        unset = task.temperature is None and task.top_p is None and task.top_k is None
        temperature = 0.0 if unset else 1.0 if task.temperature is None else task.temperature
        top_p, top_k = 1.0 if task.top_p is None else task.top_p, task.top_k or 0
        if temperature < 0 or not 0 < top_p <= 1 or top_k < 0:
            raise InvalidTaskError(
                f"temperature {temperature}, top_p {top_p}, top_k {top_k}: temperature must be >= 0, top_p in (0, 1], "
                "top_k >= 0"
            )
        seed = int(self._rng.integers(1 << 63)) if task.seed is None else task.seed
        return SamplingParams(temperature, top_k, top_p, seed)

    def _ids(self, token_ids: list[int] | None, text: str | None, name: str) -> list[int]:
        if token_ids is None:
            if text is None:
                raise InvalidTaskError(f"{name}_tokens and {name}_str are both None; give one")
            token_ids = self._backend.encode(text, add_special_tokens=True).ids
        if not token_ids:
            raise InvalidTaskError(f"{name} is empty; a prompt needs at least one token")
        return token_ids

    def _check_len(self, prompt_len: int, max_tokens: int) -> None:
        if prompt_len + max_tokens > self.max_seq_len or prompt_len >= self.max_seq_len + (max_tokens == 0):
            raise InvalidTaskError(
                f"the prompt has {prompt_len} tokens and max_tokens is {max_tokens}, but a request may have "
                f"{self.max_seq_len} in all: shorten one of them"
            )


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Keep transformers from drawing bars of its own into the caller's terminal."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _scope_id() -> str:
    scope = current_scope.get()
    return "" if scope is None else scope.scope_id


def _fill(task: GenerationTask, sequence: Sequence) -> None:
    """Write into the task what the sequence has so far, or in the end."""
    if task.output_tokens is None:
        task.output_tokens = []
    task.output_tokens += sequence.holder.token_ids[sequence.prompt_len + len(task.output_tokens) :]
    task.output_str = "".join(sequence.text_parts)
    task.finish_reason = sequence.finish_reason
    if sequence.num_logprobs:
        task.logprobs = list(sequence.logprobs)
    counts = sequence.counts
    set_token_counts(task, counts._replace(decoded=len(task.output_tokens)))
    if hasattr(task, "ttft_s"):  # younger than 1.2
        started = sequence.submitted_at
        task.ttft_s = None if sequence.first_token_at is None else sequence.first_token_at - started
        task.latency_s = time.monotonic() - started
        task.usage_prompt_tokens, task.usage_completion_tokens = sequence.prompt_len, len(task.output_tokens)


def _end_ids(network: Any, tokenizer: Any) -> frozenset[int]:
    """Ids that end a text, from the generation config and the tokenizer."""
    configured = network.generation_config.eos_token_id
    ids = configured if isinstance(configured, list) else [configured, tokenizer.eos_token_id]
    return frozenset(token for token in ids if token is not None)
