"""Worker over TensorRT-LLM's LLM API; serves checkpoints, `trtllm-build` engines and a loaded `LLM`."""

from __future__ import annotations

import functools
import os
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from scaffolding_ext import require
from scaffolding_ext.errors import ConfigError, InvalidTaskError
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, TaskStatus
from scaffolding_ext.protocol.branching import LAYER_EXIT, SIMILARITY_GATE, BranchTask, VerifyTask
from scaffolding_ext.protocol.lowering import (
    lower_branch,
    lower_verify,
    prefixes_of,
    run_pieces,
    write_back_branch,
    write_back_verify,
)
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.protocol.worker import ServerBudget
from scaffolding_ext.request.program import record
from scaffolding_ext.workers.shared.streaming import StreamingWorker
from scaffolding_ext.workers.shared.task_reading import TaskReader, block_scores
from scaffolding_ext.workers.trtllm.arguments import MAX_LOGPROBS, NO_ORDER, branch_retention, why_no_retention
from scaffolding_ext.workers.trtllm.call import Call
from scaffolding_ext.workers.trtllm.client import LlmClient
from scaffolding_ext.workers.trtllm.engine_config import EngineNeeds
from scaffolding_ext.workers.trtllm.loading import adopt, kv_fraction, load, memory_share, why_no_model
from scaffolding_ext.workers.trtllm.release import why_not_installed
from scaffolding_ext.workers.trtllm.scores import check_verdicts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scaffolding_ext.protocol.standins import TaskHandler

_REFUSED = MappingProxyType(
    {
        "RewardTask": "its model gives no rewards; use RewardController, which requests a verdict (VerifyTask)",
        LAYER_EXIT: "an engine returns only the logits of its last layer; leave out layer_exit",
        SIMILARITY_GATE: "an engine returns no hidden states; leave out least_similarity",
    }
)


class TRTLLMWorker(StreamingWorker):
    """Serves generation, streaming, scoring, branches and verification from a TensorRT-LLM `LLM`.

    If a task has no temperature, the model's `generation_config.json` decides; without a temperature there, decoding is
    greedy. `input_tokens` take precedence over `input_str`. A field that a release cannot honour is refused by name,
    never dropped. A task's `custom_input_params` may contain `engine_priority` (0 to 1, higher is sooner),
    `cache_salt`, `stop_token_ids` and `guided_decoding` (a mapping).

    Args:
        model: A checkpoint (a folder, a hub name, `tinylm/NAME`), an engine folder, or a loaded `LLM`, which the caller
            shuts down.
        tokenizer: Folder or name of the tokenizer; for a loaded `LLM` also the tokenizer. Required for an engine; a
            checkpoint has its own.
        max_seq_len: Prompt and generated tokens of one request; None takes the limit of the engine or model.
        max_num_tokens: Tokens per step; None takes the release's default or the engine's limit.
        max_batch_size: Concurrent requests; None takes the release's default or the engine's limit.
        kv_cache_fraction: Share of the memory that is free beside the model. Shares above 1 in total on one GPU are
            refused. None is 0.8, or the release's default (0.9) with `serve_scores=False`: the logits of a long score
            need gigabytes.
        enable_block_reuse: If True, requests with a common beginning share KV.
        seed: Seeds sampled tasks without a seed, in a request without one. None draws fresh entropy.
        serve_scores: Serves `ScoreTask` if True, refusing an LLM that cannot. None serves it if the LLM can.
        serve_logprobs: If False, an engine is loaded without `gather_generation_logits`, so that it runs in a process
            of its own and streams faster. Log-probabilities, verdicts and branches are then refused. Checkpoints
            report log-probabilities anyway.
        request_timeout: Seconds that one task may take; None is unlimited.
        llm_args: Further arguments of `LLM`. `kv_cache_config` is a mapping of the fields that no argument here sets.

    Raises:
        MissingDependencyError: TensorRT-LLM is not installed.
        ConfigError: An argument is invalid, or the engine lacks a required feature; the message has the flags to build
            it.

    Attributes:
        model: Name of its tokenizer.
        max_seq_len: Maximum prompt and generated tokens of one request; None if unknown.
        tokens_per_block: Tokens per block of shared KV; None without sharing or if unknown.
        server_budget: State of the engine's thinking budgets; None if the LLM has none.
        max_num_logprobs: Maximum log-probabilities per token; 0 for an engine without them.
        refused: Task types that the worker does not serve, with reasons.
    """

    max_num_logprobs: int | None = MAX_LOGPROBS

    def __init__(
        self,
        model: str | os.PathLike[str] | Any,
        tokenizer: str | Any | None = None,
        *,
        max_seq_len: int | None = None,
        max_num_tokens: int | None = None,
        max_batch_size: int | None = None,
        kv_cache_fraction: float | None = None,
        enable_block_reuse: bool = True,
        seed: int | None = None,
        serve_scores: bool | None = None,
        serve_logprobs: bool = True,
        request_timeout: float | None = None,
        llm_args: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if kv_cache_fraction is not None:
            require.share("kv_cache_fraction", kv_cache_fraction)
        if seed is not None:
            require.whole("seed", seed, 0)
        if request_timeout is not None:
            require.number("request_timeout", request_timeout, above=0)
        own_args = llm_args or {}
        if isinstance(model, str | os.PathLike):
            needs = EngineNeeds(
                scores=serve_scores is True,
                prefix_sharing=enable_block_reuse,
                max_seq_len=max_seq_len,
                max_num_tokens=max_num_tokens,
                max_batch_size=max_batch_size,
                chunked_prefill=own_args.get("enable_chunked_prefill"),
                logprobs=serve_logprobs,
            )
            fraction = kv_fraction(kv_cache_fraction, serve_scores)
            self._loaded = load(os.fspath(model), tokenizer, needs, fraction, own_args)
        else:
            for key, value in (("kv_cache_fraction", kv_cache_fraction), ("llm_args", llm_args)):
                if value is not None:
                    raise ConfigError(
                        f"is {value!r}, but the LLM is already loaded: pass it when you create the LLM", key
                    )
            self._loaded = adopt(model, tokenizer, max_seq_len)
        self.model = self._loaded.model
        self.unordered = None if self._loaded.orders_by_priority else NO_ORDER
        self.max_seq_len = self._loaded.max_seq_len
        self.tokens_per_block = self._loaded.tokens_per_block
        self.default_temperature = self._loaded.defaults.temperature
        backend = self._loaded.tokenizer.backend_tokenizer
        self._reader = TaskReader(backend, self._loaded.vocab_size, self.max_seq_len)
        self._client = LlmClient(self._loaded, self._reader, request_timeout, seed)
        self.server_budget = ServerBudget() if self._loaded.keeps_thinking_budgets else None
        self.guides_json = self._loaded.argument("guided_decoding_backend") is not None
        no_scores = self._client.why_no_scores
        if serve_scores and no_scores:
            self.shutdown()
            raise ConfigError(f"is True, but {no_scores}", "serve_scores")
        self.refused: dict[str, str] = {**_REFUSED, **({"ScoreTask": no_scores} if no_scores else {})}
        if serve_scores is False:
            self.refused["ScoreTask"] = "serve_scores is False; set it to True, or leave it out"
        if self._loaded.why_no_logprobs:
            self.max_num_logprobs = 0
            self.refused |= dict.fromkeys(("VerifyTask", "BranchTask"), self._loaded.why_no_logprobs)
        served = type(self).task_handlers.items()
        handlers = {kind: handler for kind, handler in served if kind.__name__ not in self.refused}
        self.task_handlers = handlers  # type: ignore[misc]  # per class upstream, here per LLM

    @classmethod
    def from_engine(cls, engine_dir: str, tokenizer_dir: str, **arguments: Any) -> TRTLLMWorker:
        """Serve an engine of `trtllm-build`; only with TensorRT-LLM below 1.3.

        Args:
            engine_dir: The engine's folder.
            tokenizer_dir: The engine's checkpoint, or another folder with its tokenizer.
            arguments: Arguments of the constructor.
        """
        return cls(engine_dir, tokenizer=tokenizer_dir, **arguments)

    @classmethod
    def init_with_new_llm(
        cls,
        model_dir: str,
        backend: str = "pytorch",
        max_batch_size: int | None = 32,
        max_num_tokens: int | None = 4096,
        kv_cache_free_gpu_memory_fraction: float | None = None,
        disable_overlap_scheduler: bool = False,
        scheduler_config: Any = None,
    ) -> TRTLLMWorker:
        """Serve a checkpoint with the arguments of upstream's worker, so that its scripts run here.

        `backend` must be `"pytorch"`; an engine is served by `from_engine`. A `kv_cache_free_gpu_memory_fraction` of
        None takes the default of `kv_cache_fraction` instead of upstream's 0.9.
        """
        require.one_of("backend", backend, ("pytorch",))
        llm_args = {"disable_overlap_scheduler": disable_overlap_scheduler, "scheduler_config": scheduler_config}
        return cls(
            model_dir,
            max_batch_size=max_batch_size,
            max_num_tokens=max_num_tokens,
            kv_cache_fraction=kv_cache_free_gpu_memory_fraction,
            llm_args={name: value for name, value in llm_args.items() if value},
        )

    @functools.cached_property
    def tokenizer_fingerprint(self) -> str:  # type: ignore[override]  # hashed on first use
        """Equal for workers whose token ids mean the same, so controllers may pass them on."""
        return self._reader.tokenizer_fingerprint

    def shutdown(self) -> None:
        """End the tasks in flight with an EngineError, and shut down an LLM loaded here."""
        self._client.shutdown()

    def chat_tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self._loaded.tokenizer

    def _open(self, task: GenerationTask, end_at: int | None = None, kv: Any = None) -> Call:
        is_stream = isinstance(task, StreamGenerationTask) or bool(task.streaming_output_flag)
        return self._client.open(task, streaming=is_stream, end_at=end_at, retention=kv)

    async def _score(self, task: ScoreTask) -> TaskStatus:
        token_ids, start = self._reader.scored(task)
        self._reader.check_len(len(token_ids) + 1, "prompt, continuation and the token that must follow have")
        task.logprobs = await self._client.scores(task, token_ids, start)
        return TaskStatus.SUCCESS

    async def _branch(self, task: BranchTask) -> TaskStatus:
        lowered = lower_branch(task)
        config_class = self._loaded.release.setting("KvCacheRetentionConfig")
        reason = why_no_retention(self._loaded)
        if reason is not None:
            record("fallback", what="kv_cache_retention_config", reason=reason)
        configs = [
            branch_retention(config_class, len(prefix), own)
            for prefix, own in zip(prefixes_of(task), block_scores(task), strict=True)
        ]
        await run_pieces(
            task, lowered, [self._generate(piece, own) for piece, own in zip(lowered, configs, strict=True)]
        )
        write_back_branch(task, lowered)
        return TaskStatus.SUCCESS

    async def _verify(self, task: VerifyTask) -> TaskStatus:
        if task.layer_exit is not None:
            raise InvalidTaskError(
                f"layer_exit is {task.layer_exit}; TRTLLMWorker reads only the last layer: leave it None"
            )
        self._reader.verified(task)
        lowered = lower_verify(task)
        await run_pieces(task, lowered, [self._generate(piece) for piece in lowered], decodes=False)
        check_verdicts(task, lowered, self._loaded.vocab_size, self._loaded.release.version)
        write_back_verify(task, lowered)
        return TaskStatus.SUCCESS

    @staticmethod
    def missing_here(args: Mapping[str, Any]) -> list[str]:
        """Sentences about requirements that this machine lacks for a worker with these arguments; nothing is loaded."""
        folders = [name for name in (args.get("model"), args.get("tokenizer")) if isinstance(name, str)]
        return [*why_not_installed(), *(reason for name in folders if (reason := why_no_model(name)))]

    engine_needs = staticmethod(EngineNeeds.of_arguments)
    memory_share = staticmethod(memory_share)
    task_handlers: ClassVar[dict[type[Any], TaskHandler]] = {
        **StreamingWorker.task_handlers,
        ScoreTask: _score,
        BranchTask: _branch,
        VerifyTask: _verify,
    }
