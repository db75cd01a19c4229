"""Worker over transformers: any causal LM, on CPU or CUDA, with continuous batching and prefix reuse."""

from __future__ import annotations

import warnings
import weakref
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from scaffolding_ext.errors import ConfigError, InvalidTaskError
from scaffolding_ext.protocol import GenerationTask, TaskStatus, current_scope
from scaffolding_ext.protocol.branching import LAYER_EXIT, SIMILARITY_GATE, BranchTask, VerifyTask
from scaffolding_ext.protocol.tasks import KeepKVTask, ScoreTask
from scaffolding_ext.request.program import cache_salt_of
from scaffolding_ext.workers.huggingface.model_loading import check_arguments, check_attention, load_model
from scaffolding_ext.workers.huggingface.task_requests import RequestBuilder, run_reads, verify_branches, write_branches
from scaffolding_ext.workers.shared.sampling_defaults import GreedyWatch
from scaffolding_ext.workers.shared.streaming import StreamingWorker
from scaffolding_ext.workers.shared.task_reading import TaskReader

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from scaffolding_ext.protocol.standins import TaskHandler
    from scaffolding_ext.workers.huggingface.block_pool import BlockPriority
    from scaffolding_ext.workers.huggingface.continuous_batch import EngineMetrics
    from scaffolding_ext.workers.huggingface.engine_request import EngineRequest
    from scaffolding_ext.workers.huggingface.generation_engine import GenerationEngine


EvictionPolicy = Literal["lru", "idle_first", "branch_score"]


class HuggingFaceWorker(StreamingWorker):
    """Serves generation, streaming, scoring and verification from a transformers model in this process.

    The worker has a thread, which ends with `shutdown()`, with a `with` block, or with the last reference to the
    worker.

    A sampled text depends only on its seed and its prompt. If a task gives no temperature, the model's generation
    config decides, with its penalties and bans; without one, the task is decoded greedily. `input_tokens` take
    precedence over `input_str`. Stop strings are cut off the text, not off the token ids. In a stream, an end that may
    begin a stop string is held back.

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
        tokens_per_block: Tokens per block, at least 16. Requests share only whole blocks.
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
        self.check_arguments(**{name: value for name, value in locals().items() if name not in ("self", "__class__")})
        super().__init__()
        loaded = load_model(model, tokenizer, dtype, device, trust_remote_code)
        from scaffolding_ext.workers.huggingface.attention import kernel
        from scaffolding_ext.workers.huggingface.continuous_batch import ContinuousBatch
        from scaffolding_ext.workers.huggingface.generation_engine import GenerationEngine
        from scaffolding_ext.workers.huggingface.kv_blocks import kv_limits
        from scaffolding_ext.workers.huggingface.model_runner import token_bytes, why_not_layer_by_layer

        network, self.tokenizer = loaded.network, loaded.tokenizer
        self.model, self.trust_remote_code = loaded.name, trust_remote_code
        self.chat_template = loaded.tokenizer.chat_template
        if kernel is None and threads == 1 and (network.device.type, str(network.dtype)) == ("cpu", "torch.float32"):
            warnings.warn(
                "the installation did not build the C kernel for attention on a CPU, so torch computes attention, with "
                "the same results but slower: install a C compiler, then install the package again",
                stacklevel=2,
            )
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
            token_bytes(network),
            network.device,
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
        sizes = max_batch_size, prefill_chunk, enable_block_reuse, eviction_policy == "idle_first"
        batch = ContinuousBatch(network, backend, loaded.end_ids, limits, *sizes)
        self._builder = RequestBuilder(self._reader, loaded, batch.pool, seed, GreedyWatch(self.model))
        self._engine: GenerationEngine = GenerationEngine(batch, threads)
        self._by_score = eviction_policy == "branch_score"
        self._prioritized: set[str] = set()  # requests whose blocks may have a priority
        weakref.finalize(self, self._engine.close).atexit = False  # when the interpreter exits, the engine ends itself

    check_arguments = staticmethod(check_arguments)

    @cached_property
    def tokenizer_fingerprint(self) -> str:  # type: ignore[override]  # hashed on first use
        """Equal for workers whose token ids mean the same, so that controllers may pass them on."""
        return self._reader.tokenizer_fingerprint

    @property
    def metrics(self) -> EngineMetrics:
        return self._engine.metrics

    @property
    def num_written(self) -> int:
        return self.metrics.num_decoded

    def shutdown(self) -> None:
        """Stop the engine; tasks in flight fail with an EngineError."""
        self._engine.shutdown()

    async def on_scope_end(self, scope_id: str) -> None:
        """Cancel the open streams of a request or branch; end the priorities of an ended request's blocks."""
        await super().on_scope_end(scope_id)
        if scope_id in self._prioritized:
            self._prioritized.remove(scope_id)
            self._engine.call(partial(self._engine.pool.end, scope_id))

    def chat_tokenizer(self) -> Any:
        return self.tokenizer

    def _open(self, task: GenerationTask, end_at: int | None = None, kv: BlockPriority | None = None) -> EngineRequest:
        """Submit a generation task; `kv` is the priority of its blocks in the cache. Streams pause, they do not end."""
        request = self._builder.generation(task, kv)
        self._engine.submit(request)
        return request

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
        (request,) = requests = [self._builder.score(task)]
        await run_reads(task, self._engine, requests)
        task.logprobs = request.scores
        return TaskStatus.SUCCESS

    async def _verify(self, task: VerifyTask) -> TaskStatus:
        if (task.layer_exit is not None or task.every_layer) and LAYER_EXIT in self.refused:
            raise InvalidTaskError(f"layer_exit is {task.layer_exit}, but {self.refused[LAYER_EXIT]}")
        await verify_branches(task, self._engine, self._builder)
        return TaskStatus.SUCCESS

    task_handlers: ClassVar[dict[type[Any], TaskHandler]] = {
        **StreamingWorker.task_handlers,
        BranchTask: _branch,
        KeepKVTask: _keep_kv,
        ScoreTask: _score,
        VerifyTask: _verify,
    }
