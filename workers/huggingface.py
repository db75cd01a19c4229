"""A worker over transformers: any causal LM, on CPU or CUDA, with continuous batching and prefix reuse."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from scaffolding_ext.errors import ConfigError, MissingDependencyError
from scaffolding_ext.prompting import load_tokenizer, model_folder
from scaffolding_ext.protocol import (
    GenerationTask,
    ScaffoldingOutput,
    StreamGenerationTask,
    Task,
    TaskStatus,
    Worker,
    current_scope,
)
from scaffolding_ext.tasks import ScoreTask, TokenCounts, VerifyTask, set_token_counts
from scaffolding_ext.workers.engine.request import RequestBuilder, fill, probability_of_first
from scaffolding_ext.workers.engine.waiter import NEVER, Waiter

if TYPE_CHECKING:
    from scaffolding_ext.standins import TaskHandler
    from scaffolding_ext.workers.engine.generation_engine import GenerationEngine
    from scaffolding_ext.workers.engine.metrics import EngineMetrics
    from scaffolding_ext.workers.engine.sequence import Sequence


class _Stream(NamedTuple):
    """What a streaming task keeps between its steps."""

    sequence: Sequence
    waiter: Waiter
    scope_id: str


class HuggingFaceWorker(Worker):
    """Serves generation, streaming, scoring and verification from a transformers model in this process.

    A sampled text depends on its seed and its prompt, not on what else runs. Where a task gives neither temperature,
    top-p nor top-k, it is decoded greedily. `input_tokens` go before `input_str`. Stop strings are cut off the text,
    not off the token ids; while a text is streamed, an end that may be the beginning of one is held back.

    Args:
        model: A folder, a hub name, or `tinylm/NAME` for an embedded model.
        dtype: `"float32"`, `"bfloat16"` or `"float16"`.
        device: A torch device.
        threads: Threads of each torch operation of this worker. Where other work shares the cores, another worker's
            included, 1 is often fastest.
        max_batch_size: Requests that run at once, where `kv_cache_bytes` suffices; `metrics.num_rows` tells.
        max_seq_len: Prompt and generated tokens of one request; None takes the model's context length.
        prefill_chunk: Prompt tokens that one step computes at most, all requests together.
        prefix_cache_bytes: Memory for the KV of ended requests, which later ones reuse.
        enable_block_reuse: Whether a request takes the KV of a prefix that others have computed.
        kv_cache_bytes: Memory for the KV of running requests, each of which takes that of `max_seq_len` tokens; where
            `max_batch_size` of them do not fit, fewer run at once. None takes 4 GiB, or on a CUDA device 80 % of what
            is free once the model is loaded.
        seed: Seeds the tasks that bring none; None draws fresh entropy.
        attn_implementation: How attention is computed, as transformers names it (`"eager"`, `"sdpa"`); None takes
            this package's own, which is faster, where the model lets it be chosen.

    Raises:
        MissingDependencyError: torch or transformers is not installed.
        ConfigError: An argument is outside its range, the model's attention is not full within `max_seq_len`, or not
            even one request of that length fits into `kv_cache_bytes`.
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
        prefill_chunk: int = 512,
        prefix_cache_bytes: int = 256 * 2**20,
        enable_block_reuse: bool = True,
        kv_cache_bytes: int | None = None,
        seed: int | None = None,
        attn_implementation: str | None = None,
    ) -> None:
        for key, value, low in (
            ("threads", threads, 1),
            ("max_batch_size", max_batch_size, 1),
            ("max_seq_len", max_seq_len, 1),
            ("prefill_chunk", prefill_chunk, 1),
            ("prefix_cache_bytes", prefix_cache_bytes, 0),
            ("kv_cache_bytes", kv_cache_bytes, 1),
        ):
            if value is not None and value < low:
                raise ConfigError(f"is {value}; it must be at least {low}", key)
        if dtype not in ("float32", "bfloat16", "float16"):
            raise ConfigError(f"is {dtype!r}; choose float32, bfloat16 or float16", "dtype")
        try:
            import torch
            from transformers import AutoModelForCausalLM
        except ImportError as error:
            raise MissingDependencyError("torch with transformers", "hf") from error
        from scaffolding_ext.workers.engine.attention import ATTENTION, register
        from scaffolding_ext.workers.engine.generation_engine import GenerationEngine
        from scaffolding_ext.workers.engine.model_limits import check_attention, fitting_rows

        tokenizer = load_tokenizer(model)
        chosen = {} if attn_implementation is None else {"attn_implementation": attn_implementation}
        with _no_progress_bars():
            network = AutoModelForCausalLM.from_pretrained(model_folder(model), dtype=getattr(torch, dtype), **chosen)
        network.to(device).eval()
        takes_ours = attn_implementation is None and network._supports_attention_backend
        if takes_ours:
            register()
            network.set_attn_implementation(ATTENTION)
            takes_ours = network.config.get_text_config()._attn_implementation == ATTENTION
        config = network.config.get_text_config()
        context_len = getattr(config, "max_position_embeddings", None)
        self.max_seq_len = max_seq_len or context_len or 4096
        if context_len is not None and self.max_seq_len > context_len:
            raise ConfigError(f"is {max_seq_len}; the model's context is {context_len} tokens", "max_seq_len")
        check_attention(config, self.max_seq_len, serves_windows=takes_ours)
        num_rows = fitting_rows(network, max_batch_size, self.max_seq_len, kv_cache_bytes)
        backend = tokenizer.backend_tokenizer
        vocab_size = network.get_input_embeddings().weight.shape[0]
        self._requests = RequestBuilder(backend, vocab_size, self.max_seq_len, seed)
        self._streams: dict[str, set[Sequence]] = {}
        self._engine: GenerationEngine = GenerationEngine(
            network,
            backend,
            frozenset(token for token in _end_ids(network, tokenizer) if token < vocab_size),
            max_batch_size=num_rows,
            max_seq_len=self.max_seq_len,
            prefill_chunk=prefill_chunk,
            prefix_cache_bytes=prefix_cache_bytes,
            enable_block_reuse=enable_block_reuse,
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
        sequence = self._requests.generation(task, waiter.notify)
        task.output_tokens = None
        self._engine.submit(sequence)
        if not task.streaming_output_flag:
            await self._wait(task, sequence, waiter, NEVER)
            fill(task, sequence)
            return TaskStatus.SUCCESS
        ended = False
        while not ended:
            await self._wait(task, sequence, waiter, len(task.output_tokens or ()) + 1)
            ended = fill(task, sequence)
            task.streaming_output_list.append(_output(task))
        return TaskStatus.SUCCESS

    async def _stream(self, task: StreamGenerationTask) -> TaskStatus:
        if task.end_flag:
            return TaskStatus.SUCCESS
        if task.request_handle is None:
            if task.cancel_flag:
                task.end_flag = True
                return TaskStatus.SUCCESS
            self._open_stream(task)
        stream: _Stream = task.request_handle
        num_tokens = len(task.output_tokens or ()) + max(1, task.streaming_step or 1)
        if task.cancel_flag:
            self._engine.cancel(stream.sequence)
            num_tokens = NEVER
        try:
            await self._wait(task, stream.sequence, stream.waiter, num_tokens)
            task.end_flag = fill(task, stream.sequence)
        except BaseException:
            self._forget_stream(stream)
            raise
        if task.end_flag:
            self._forget_stream(stream)
        elif task.streaming_output_flag:
            task.streaming_output_list.append(_output(task))
        return TaskStatus.SUCCESS

    def _open_stream(self, task: StreamGenerationTask) -> None:
        waiter = Waiter()
        sequence = self._requests.generation(task, waiter.notify)
        self._engine.submit(sequence)
        task.output_tokens = None
        task.request_handle = _Stream(sequence, waiter, _scope_id())
        self._streams.setdefault(task.request_handle.scope_id, set()).add(sequence)

    def _forget_stream(self, stream: _Stream) -> None:
        streams = self._streams.get(stream.scope_id, set())
        streams.discard(stream.sequence)
        if not streams:
            self._streams.pop(stream.scope_id, None)

    async def _score(self, task: ScoreTask) -> TaskStatus:
        waiter = Waiter()
        sequence = self._requests.score(task, waiter.notify)
        self._engine.submit(sequence)
        await self._wait(task, sequence, waiter, NEVER)
        task.logprobs = sequence.scores
        set_token_counts(task, sequence.counts)
        return TaskStatus.SUCCESS

    async def _verify(self, task: VerifyTask) -> TaskStatus:
        waiters = [Waiter() for _ in task.branches]
        sequences = self._requests.verify(task, [waiter.notify for waiter in waiters])
        for sequence in sequences:
            self._engine.submit(sequence)
        try:
            for sequence, waiter in zip(sequences, waiters, strict=True):
                await self._wait(task, sequence, waiter, NEVER)
        except BaseException:
            for sequence in sequences:
                self._engine.cancel(sequence)
            raise
        finally:
            set_token_counts(task, TokenCounts(*map(sum, zip(*[s.counts for s in sequences], strict=True))))
        task.scores = [probability_of_first(sequence.choice_logits) for sequence in sequences]
        return TaskStatus.SUCCESS

    task_handlers: ClassVar[dict[type[Any], TaskHandler]] = {
        GenerationTask: _generate,
        StreamGenerationTask: _stream,
        ScoreTask: _score,
        VerifyTask: _verify,
    }

    async def _wait(self, task: Task, sequence: Sequence, waiter: Waiter, num_tokens: int) -> None:
        """Until the sequence has that many tokens or has ended; a cancelled wait cancels the sequence."""
        try:
            await waiter.wait(sequence, num_tokens)
        except asyncio.CancelledError:
            self._engine.cancel(sequence)
            set_token_counts(task, sequence.counts)
            raise
        if sequence.error is not None:
            raise sequence.error


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


def _output(task: GenerationTask) -> ScaffoldingOutput:
    """What the task has so far, for a reader who looks at it later."""
    return ScaffoldingOutput(task.output_str, list(task.output_tokens or ()))


def _end_ids(network: Any, tokenizer: Any) -> frozenset[int]:
    """Ids that end a text, from the generation config and the tokenizer."""
    configured = network.generation_config.eos_token_id
    ids = configured if isinstance(configured, list) else [configured, tokenizer.eos_token_id]
    return frozenset(token for token in ids if token is not None)
