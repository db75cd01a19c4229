"""Worker over transformers: any causal LM, on CPU or CUDA, with continuous batching and prefix reuse."""

from __future__ import annotations

import asyncio
import weakref
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from scaffolding_ext.errors import ConfigError, InvalidTaskError
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, Task, TaskStatus, current_scope
from scaffolding_ext.protocol.branching import LAYER_EXIT, SIMILARITY_GATE, BranchTask, VerifyTask
from scaffolding_ext.protocol.meta import note
from scaffolding_ext.protocol.tasks import KeepKVTask, ScoreTask
from scaffolding_ext.request.program import cache_salt_of, record
from scaffolding_ext.workers.chat import ChatWorker
from scaffolding_ext.workers.huggingface.branches import verify_branches, write_branches
from scaffolding_ext.workers.huggingface.model_loading import check_arguments, check_attention, load_model
from scaffolding_ext.workers.huggingface.request_builder import RequestBuilder, fill
from scaffolding_ext.workers.shared.sampling_defaults import GreedyWatch
from scaffolding_ext.workers.shared.streaming import NEVER, OpenStreams, furthest, is_over, next_len, show
from scaffolding_ext.workers.shared.task_reading import TaskReader

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from scaffolding_ext.protocol.standins import TaskHandler
    from scaffolding_ext.workers.huggingface.block_pool import BlockPriority
    from scaffolding_ext.workers.huggingface.continuous_batch import EngineMetrics
    from scaffolding_ext.workers.huggingface.engine_request import EngineRequest
    from scaffolding_ext.workers.huggingface.generation_engine import GenerationEngine


EvictionPolicy = Literal["lru", "idle_first", "branch_score"]


class HuggingFaceWorker(ChatWorker):
    """Serves generation, streaming, scoring and verification from a transformers model in this process.

    The worker has a thread, which ends with `shutdown()`, with a `with` block, or with the last reference to the
    worker.

    A sampled text depends only on its seed and its prompt. If a task gives no temperature, the model's generation
    config decides, with its penalties and bans; without one, the task is decoded greedily. `input_tokens` take
    precedence over `input_str`. Stop strings are cut off the text, not off the token ids. In a stream, an end that may
    begin a stop string is held back.
    `return_context_logits` takes four bytes per pair of a prompt token and a token of the vocabulary.

    Args:
        model: A folder, a hub name, or `tinylm/NAME` for an embedded model. Or a loaded causal LM of transformers: the
            worker replaces its attention, so from then on it generates only here.
        tokenizer: Of a loaded `model`, with a fast (Rust) version; a name brings its tokenizer.
        dtype: `"float32"`, `"bfloat16"` or `"float16"`, for a model loaded by name.
        device: A torch device, for a model loaded by name.
        threads: Threads of each torch operation of this worker. If other work shares the cores, 1 is often fastest.
        max_batch_size: Maximum requests that a step computes; more are admitted as long as there are blocks.
        max_seq_len: Prompt and generated tokens of one request. None takes the model's context length, or the length
            that fits into `kv_cache_bytes`, if that is less.
        prefill_chunk: Maximum prompt tokens that one step computes, over all requests.
        prefix_cache_bytes: Part of `kv_cache_bytes` for the KV of ended requests, which later requests reuse.
        enable_block_reuse: Reuse the KV of a prefix that other requests have computed.
        kv_cache_bytes: Memory for keys and values. None is 4 GiB, or on a CUDA device 80 % of the memory left by the
            model.
        tokens_per_block: Tokens per block, a power of two. Requests share only whole blocks.
        eviction_policy: `"lru"` evicts the least recently used block, `"idle_first"` first those of requests without
            work in the engine (Certaindex, D.3.2), `"branch_score"` those of the lowest score / (depth + 1) (RKSC,
            algorithm 4), which recomputes more.
        seed: Seeds tasks without a seed; None draws fresh entropy.
        trust_remote_code: Allow Python code among the model's files to run; otherwise a model with such code is
            refused.

    Raises:
        MissingDependencyError: torch or transformers is not installed.
        ConfigError: An argument is outside its range, the model cannot be served, or not even one request of
            `max_seq_len` tokens fits into `kv_cache_bytes`.

    Attributes:
        model: The served model, by its given name.
        chat_template: Template of the model's prompts; None if it has none.
        max_seq_len: Maximum prompt and generated tokens of one request.
        tokens_per_block: Of the KV that requests share; None if `enable_block_reuse` is off.
    """

    def __init__(
        self,
        model: str | PreTrainedModel,
        *,
        tokenizer: PreTrainedTokenizerFast | None = None,
        dtype: str = "float32",
        device: str = "cpu",
        threads: int = 1,
        max_batch_size: int = 64,
        max_seq_len: int | None = None,
        prefill_chunk: int = 512,
        prefix_cache_bytes: int = 256 * 2**20,
        enable_block_reuse: bool = True,
        kv_cache_bytes: int | None = None,
        tokens_per_block: int = 32,
        eviction_policy: EvictionPolicy = "lru",
        seed: int | None = None,
        trust_remote_code: bool = False,
    ) -> None:
        self.check_arguments(**{name: value for name, value in locals().items() if name != "self"})
        loaded = load_model(model, tokenizer, dtype, device, trust_remote_code)
        from scaffolding_ext.workers.huggingface.block_attention import warn_without_kernel
        from scaffolding_ext.workers.huggingface.continuous_batch import ContinuousBatch
        from scaffolding_ext.workers.huggingface.generation_engine import GenerationEngine
        from scaffolding_ext.workers.huggingface.kv_limits import kv_limits
        from scaffolding_ext.workers.huggingface.model_runner import why_not_layer_by_layer

        network, self.tokenizer = loaded.network, loaded.tokenizer
        self.model, self.trust_remote_code = loaded.name, trust_remote_code
        self.chat_template = loaded.tokenizer.chat_template
        if threads == 1 and (network.device.type, str(network.dtype)) == ("cpu", "torch.float32"):
            warn_without_kernel()
        why_not = why_not_layer_by_layer(network)
        needed_by = {LAYER_EXIT: "layer_exit", SIMILARITY_GATE: "least_similarity"}
        self.refused = {name: f"{why_not}; leave {field} out" for name, field in needed_by.items() if why_not}
        config = network.config.get_text_config()
        context_len = getattr(config, "max_position_embeddings", None)
        if context_len is not None and (max_seq_len or 0) > context_len:
            raise ConfigError(
                f"is {max_seq_len}, but the model's context is {context_len} tokens: set at most {context_len}",
                "max_seq_len",
            )
        check_attention(config, max_seq_len or context_len or 4096)
        limits = kv_limits(
            network,
            max_batch_size=max_batch_size,
            max_seq_len=max_seq_len,
            context_len=context_len or 4096,
            tokens_per_block=tokens_per_block,
            kv_cache_bytes=kv_cache_bytes,
            prefix_cache_bytes=prefix_cache_bytes,
        )
        self.max_seq_len = limits.max_seq_len
        self.tokens_per_block = tokens_per_block if enable_block_reuse else None
        vocab_size = network.get_input_embeddings().weight.shape[0]
        self.default_temperature = loaded.defaults.temperature
        backend = loaded.tokenizer.backend_tokenizer
        self._reader = TaskReader(backend, vocab_size, self.max_seq_len, limits.limited_by)
        self._streams: OpenStreams[EngineRequest] = OpenStreams(self._cancel)
        sizes = max_batch_size, prefill_chunk, enable_block_reuse, eviction_policy == "idle_first"
        batch = ContinuousBatch(network, backend, loaded.end_ids, limits, *sizes)
        self._builder = RequestBuilder(self._reader, loaded, batch.pool, seed, GreedyWatch(self.model))
        self._engine: GenerationEngine = GenerationEngine(batch, threads)
        self._by_score = eviction_policy == "branch_score"
        self._prioritized: set[str] = set()  # requests whose blocks may have a priority
        weakref.finalize(self, self._engine.close).atexit = False  # when the interpreter exits, the engine ends itself

    @staticmethod
    def check_arguments(**given: Any) -> None:
        """Refuse wrong arguments with a ConfigError without loading the model, as a dry run of a stack does."""
        check_arguments(given)

    @cached_property
    def tokenizer_fingerprint(self) -> str:  # type: ignore[override]  # hashed on first use
        """Equal for workers whose token ids mean the same, so that controllers may pass them on."""
        return self._reader.tokenizer_fingerprint

    @property
    def metrics(self) -> EngineMetrics:
        return self._engine.metrics

    def shutdown(self) -> None:
        """Stop the engine; tasks in flight fail with an EngineError."""
        self._engine.shutdown()

    async def on_scope_end(self, scope_id: str) -> None:
        """Cancel the open streams of a request or branch; end the priorities of an ended request's blocks."""
        await self._streams.end(scope_id)
        if scope_id in self._prioritized:
            self._prioritized.remove(scope_id)
            self._engine.call(partial(self._engine.pool.end, scope_id))

    async def _cancel(self, request: EngineRequest) -> None:
        self._engine.cancel(request)

    def chat_tokenizer(self) -> Any:
        return self.tokenizer

    async def _generate(self, task: GenerationTask, priority: BlockPriority | None = None) -> TaskStatus:
        """Serve a generation task; `priority` is that of its blocks in the cache."""
        request = self._builder.generation(task, priority)
        task.output_tokens = None
        self._engine.submit(request)
        ended = False
        while not ended:
            num_tokens = len(task.output_tokens or ()) + 1 if task.streaming_output_flag else NEVER
            await self._wait(task, request, num_tokens)
            ended = fill(task, request)
            if task.streaming_output_flag:
                show(task)
        return TaskStatus.SUCCESS

    async def _stream(self, task: StreamGenerationTask) -> TaskStatus:
        if is_over(task):
            return TaskStatus.SUCCESS
        if task.request_handle is None:
            task.request_handle = self._builder.generation(task)
            task.output_tokens = None
            self._engine.submit(task.request_handle)
            self._streams.add(task.request_handle)
        request: EngineRequest = task.request_handle
        num_tokens = next_len(task)
        if task.cancel_flag:
            self._engine.cancel(request)
            num_tokens = NEVER
        limit = furthest(task)
        if limit != request.may_run_to:
            if request.paused:
                record("paused", position=len(task.output_tokens or ()), arrived=request.num_decoded)
            self._engine.let_run_to(request, limit)
        try:
            await self._wait(task, request, num_tokens)
            task.end_flag = fill(task, request)
        except BaseException:
            self._streams.discard(request)
            raise
        if task.end_flag:
            self._streams.discard(request)
        elif task.streaming_output_flag:
            show(task)
        return TaskStatus.SUCCESS

    async def _branch(self, task: BranchTask) -> TaskStatus:
        if task.least_similarity is not None and SIMILARITY_GATE in self.refused:
            raise InvalidTaskError(f"least_similarity is {task.least_similarity}, but {self.refused[SIMILARITY_GATE]}")
        if self._by_score and (scope := current_scope.get()) is not None:
            self._prioritized.add(scope.request_id)
        await write_branches(task, self._engine, self._builder, self._generate, self._by_score)
        return TaskStatus.SUCCESS

    async def _keep_kv(self, task: KeepKVTask) -> TaskStatus:
        scope = current_scope.get()
        if scope is not None:  # otherwise the request's blocks are unknown
            keep = partial(self._engine.pool.keep, scope.request_id, cache_salt_of(task), task.sequences)
            self._engine.call(keep)
        return TaskStatus.SUCCESS

    async def _score(self, task: ScoreTask) -> TaskStatus:
        request = self._builder.score(task)
        self._engine.submit(request)
        await self._wait(task, request, NEVER)
        task.logprobs = request.scores
        return TaskStatus.SUCCESS

    async def _verify(self, task: VerifyTask) -> TaskStatus:
        if (task.layer_exit is not None or task.every_layer) and LAYER_EXIT in self.refused:
            raise InvalidTaskError(f"layer_exit is {task.layer_exit}, but {self.refused[LAYER_EXIT]}")
        await verify_branches(task, self._engine, self._builder)
        return TaskStatus.SUCCESS

    task_handlers: ClassVar[dict[type[Any], TaskHandler]] = {
        **ChatWorker.task_handlers,
        GenerationTask: _generate,
        StreamGenerationTask: _stream,
        BranchTask: _branch,
        KeepKVTask: _keep_kv,
        ScoreTask: _score,
        VerifyTask: _verify,
    }

    async def _wait(self, task: Task, request: EngineRequest, num_tokens: int) -> None:
        """Wait until the request has that many tokens or has ended; a cancelled wait cancels the request."""
        try:
            await request.waiter.wait(request, num_tokens)
        except asyncio.CancelledError:
            self._engine.cancel(request)
            raise
        finally:
            note(task, counts=request.counts)  # a failed request also has a cost
        if request.error is not None:
            raise request.error
