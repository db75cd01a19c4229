"""Compares a `trtllm-build` engine's `config.json` with the needs of a stack.

Reading it needs neither TensorRT-LLM nor a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from scaffolding_ext.documents import decoded, parse_json
from scaffolding_ext.errors import ConfigError

_LIMITS = ("max_batch_size", "max_seq_len", "max_num_tokens")


class EngineNeeds(NamedTuple):
    """Requirements of a stack on an engine.

    Attributes:
        scores: Log-probabilities of given tokens (`ScoreTask`).
        prefix_sharing: Requests share the KV of a common beginning.
        max_seq_len: Prompt and generated tokens of one request; None sets no requirement.
        max_num_tokens: Tokens of one step over the whole batch.
        chunked_prefill: True if a prompt may be read over several steps and so exceed `max_num_tokens`. None permits
            it if the engine can.
        logprobs: Log-probabilities of generated tokens; every engine has them if it is loaded so.
    """

    scores: bool = False
    prefix_sharing: bool = False
    max_seq_len: int | None = None
    max_num_tokens: int | None = None
    max_batch_size: int | None = None
    chunked_prefill: bool | None = None
    logprobs: bool = False

    @classmethod
    def of_arguments(cls, args: Mapping[str, Any]) -> EngineNeeds:
        """Needs of a `TRTLLMWorker` with these arguments; missing ones have the worker's defaults."""
        return cls(
            scores=args.get("serve_scores") is True,
            prefix_sharing=args.get("enable_block_reuse", True),
            max_seq_len=args.get("max_seq_len"),
            max_num_tokens=args.get("max_num_tokens"),
            max_batch_size=args.get("max_batch_size"),
            chunked_prefill=(args.get("llm_args") or {}).get("enable_chunked_prefill"),
        )


class EngineConfig(NamedTuple):
    """Build configuration of an engine, in the names of `trtllm-build`; lengths are tokens.

    Attributes:
        paged_context_fmha: True if a prompt may begin on existing KV blocks.
        vocab_size: Exclusive upper bound of token ids; None if unknown.
        context_len: Context length of the model; None if unknown.
    """

    folder: Path
    max_batch_size: int
    max_seq_len: int
    max_num_tokens: int
    gather_context_logits: bool
    gather_generation_logits: bool
    paged_context_fmha: bool
    paged_kv_cache: bool
    vocab_size: int | None
    context_len: int | None

    @classmethod
    def read(cls, folder: str | Path) -> EngineConfig:
        """Read an engine folder's `config.json`.

        Raises:
            ConfigError: The folder holds no engine, or its file does not describe one.
        """
        path = Path(folder) / "config.json"
        try:
            document = parse_json(decoded(path.read_bytes()))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{folder} is not a TensorRT engine: {path} cannot be read ({error})") from error
        if not isinstance(document, Mapping) or not isinstance(document.get("build_config"), Mapping):
            raise ConfigError(
                f"{folder} is not a TensorRT engine: its config.json has no build_config. A model folder is a "
                "checkpoint: give it to TRTLLMWorker, or build an engine from it with trtllm-build"
            )
        build, model = document["build_config"], document.get("pretrained_config") or {}
        plugins = build.get("plugin_config") or {}
        missing = [name for name in _LIMITS if not isinstance(build.get(name), int)]
        if missing:
            raise ConfigError(f"{path}: build_config has no number under {', '.join(missing)}; rebuild the engine")
        kv_cache_type = str(build.get("kv_cache_type") or "").rpartition(".")[2].lower()
        return cls(
            Path(folder),
            **{name: build[name] for name in _LIMITS},
            gather_context_logits=bool(build.get("gather_context_logits")),
            gather_generation_logits=bool(build.get("gather_generation_logits")),
            paged_context_fmha=bool(plugins.get("use_paged_context_fmha")),
            paged_kv_cache=kv_cache_type == "paged" if kv_cache_type else bool(plugins.get("paged_kv_cache")),
            vocab_size=model.get("vocab_size"),
            context_len=model.get("max_position_embeddings"),
        )

    def shortfalls(self, needs: EngineNeeds) -> list[str]:
        """Sentences about missing features."""
        lacking = []
        if needs.scores and not self.gather_context_logits:
            lacking.append("scores need the logits of the prompt, but gather_context_logits is off")
        if needs.prefix_sharing and not self.paged_context_fmha:
            lacking.append("sharing of prefixes needs paged context FMHA, but use_paged_context_fmha is off")
        if needs.prefix_sharing and not self.paged_kv_cache:
            lacking.append("sharing of prefixes needs a KV cache of blocks, but kv_cache_type is not paged")
        for name in _LIMITS:
            needed, built = getattr(needs, name), getattr(self, name)
            if needed is not None and built < needed:
                lacking.append(f"{name} is {built}, but the stack needs {needed}")
        longest, step_len = self._longest_prompt(needs), needs.max_num_tokens or self.max_num_tokens
        if step_len < longest and not self.reads_in_steps(needs.chunked_prefill):
            lacking.append(
                f"max_num_tokens is {step_len}, but a prompt may have {longest} tokens and is read in one step: "
                "chunked prefill is off, or needs use_paged_context_fmha and paged KV"
            )
        return lacking

    def reads_in_steps(self, chunked_prefill: bool | None) -> bool:
        """True if the runtime may read a prompt over several steps; otherwise `max_num_tokens` limits it."""
        return chunked_prefill is not False and self.paged_context_fmha and self.paged_kv_cache

    def build_flags(self, needs: EngineNeeds) -> list[str]:
        """`trtllm-build` flags of an engine with everything that this engine has and the stack needs."""
        limits = {name: max(getattr(self, name), getattr(needs, name) or 0) for name in _LIMITS}
        rebuilt = self._replace(
            gather_context_logits=needs.scores or self.gather_context_logits,
            paged_kv_cache=needs.prefix_sharing or self.paged_kv_cache,
            paged_context_fmha=needs.prefix_sharing or self.paged_context_fmha,
        )
        if not rebuilt.reads_in_steps(needs.chunked_prefill):
            limits["max_num_tokens"] = max(limits["max_num_tokens"], self._longest_prompt(needs))
        switches = (
            (rebuilt.gather_context_logits, "--gather_context_logits"),
            (rebuilt.gather_generation_logits, "--gather_generation_logits"),
            (rebuilt.paged_kv_cache, "--kv_cache_type paged"),
            (rebuilt.paged_context_fmha, "--use_paged_context_fmha enable"),
        )
        return [*(f"--{name} {value}" for name, value in limits.items()), *(flag for is_on, flag in switches if is_on)]

    def check(self, needs: EngineNeeds) -> None:
        """Raise a ConfigError if the engine lacks something; the message has the flags to build it."""
        lacking = self.shortfalls(needs)
        if not lacking:
            return
        message = f"the engine {self.folder} cannot serve this stack: {'; '.join(lacking)}."
        if self.context_len is not None and (needs.max_seq_len or 0) > self.context_len:
            message += f" The model's context is {self.context_len} tokens: no flag makes it longer."
        raise ConfigError(
            f"{message} Rebuild it: trtllm-build --checkpoint_dir CHECKPOINT --output_dir {self.folder} "
            f"{' '.join(self.build_flags(needs))}"
        )

    def _longest_prompt(self, needs: EngineNeeds) -> int:
        """Tokens of the longest prompt: nearly the whole sequence, because probes and scores resend a chain."""
        known = needs.max_seq_len or (self.max_seq_len if needs.scores else 0)
        return max(1, known - 1)


def is_engine(folder: str | Path) -> bool:
    """True if a folder holds an engine instead of a checkpoint."""
    path = Path(folder) / "config.json"
    try:
        return "build_config" in parse_json(decoded(path.read_bytes()))
    except (OSError, ValueError):
        return False
