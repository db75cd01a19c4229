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
        chunked_prefill: True if a prompt may be read over several steps and so exceed `max_num_tokens`.
        logprobs: Log-probabilities of generated tokens; every engine has them.
    """

    scores: bool = False
    prefix_sharing: bool = False
    max_seq_len: int | None = None
    max_num_tokens: int | None = None
    max_batch_size: int | None = None
    chunked_prefill: bool = False
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
            chunked_prefill=bool((args.get("llm_args") or {}).get("enable_chunked_prefill")),
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
    max_input_len: int
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
                "checkpoint: give it to TRTLLMWorker.from_checkpoint, or build an engine from it with trtllm-build"
            )
        build, model = document["build_config"], document.get("pretrained_config") or {}
        plugins = build.get("plugin_config") or {}
        missing = [name for name in (*_LIMITS, "max_input_len") if not isinstance(build.get(name), int)]
        if missing:
            raise ConfigError(f"{path}: build_config has no number under {', '.join(missing)}; rebuild the engine")
        kv_cache_type = str(build.get("kv_cache_type") or "").rpartition(".")[2].lower()
        return cls(
            Path(folder),
            **{name: build[name] for name in ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens")},
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
        longest = self._longest_prompt(needs)
        if needs.max_seq_len is not None and self.max_input_len < longest:
            lacking.append(f"max_input_len is {self.max_input_len}, but a prompt may have {longest} tokens")
        if needs.scores and not needs.chunked_prefill and self.max_num_tokens < longest:
            lacking.append(
                f"max_num_tokens is {self.max_num_tokens}, but a text of {longest} tokens is scored in one step"
            )
        return lacking

    def build_flags(self, needs: EngineNeeds) -> list[str]:
        """`trtllm-build` flags of an engine with everything that this engine has and the stack needs."""
        limits = {name: max(getattr(self, name), getattr(needs, name) or 0) for name in _LIMITS}
        longest = self._longest_prompt(needs)
        if needs.scores and not needs.chunked_prefill:
            limits["max_num_tokens"] = max(limits["max_num_tokens"], longest)
        limits["max_input_len"] = max(self.max_input_len, longest if needs.max_seq_len is not None else 0)
        flags = [f"--{name} {value}" for name, value in limits.items()]
        if needs.scores or self.gather_context_logits:
            flags.append("--gather_context_logits")
        if self.gather_generation_logits:
            flags.append("--gather_generation_logits")
        if needs.prefix_sharing or self.paged_kv_cache:
            flags.append("--kv_cache_type paged")
        if needs.prefix_sharing or self.paged_context_fmha:
            flags.append("--use_paged_context_fmha enable")
        return flags

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
        return max(1, (needs.max_seq_len or self.max_seq_len) - 1)


def is_engine(folder: str | Path) -> bool:
    """True if a folder holds an engine instead of a checkpoint."""
    path = Path(folder) / "config.json"
    try:
        return "build_config" in parse_json(decoded(path.read_bytes()))
    except (OSError, ValueError):
        return False
