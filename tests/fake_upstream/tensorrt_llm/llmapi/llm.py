"""`LLM` with upstream's keyword signatures."""

import json
import os
from pathlib import Path

from transformers import AutoTokenizer

from tensorrt_llm import HAS_NEWEST_FIELDS
from tensorrt_llm._sampling import SamplingParams
from tensorrt_llm.executor.engine import Engine, Executor
from tensorrt_llm.executor.result import RequestError, RequestOutput
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs, TrtLlmArgs


class TransformersTokenizer:
    """Upstream's wrapper: what transformers has is one attribute further."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer


class _Base:
    args_class = TorchLlmArgs

    def __init__(
        self,
        model,
        tokenizer=None,
        tokenizer_mode="auto",
        skip_tokenizer_init=False,
        trust_remote_code=False,
        tensor_parallel_size=1,
        dtype="auto",
        revision=None,
        tokenizer_revision=None,
        **kwargs,
    ):
        self.args = self.args_class(model=model, **kwargs)
        self.tokenizer = TransformersTokenizer(AutoTokenizer.from_pretrained(str(tokenizer or model)))
        os.environ.update(getattr(self.args, "env_overrides", None) or {})  # of the whole process, for good
        self._folder = Path(str(tokenizer or model))
        self.executor = Engine(
            str(self._folder),
            self.args.kv_cache_config,
            is_complete=HAS_NEWEST_FIELDS or self.args_class is TrtLlmArgs,
        )
        self._executor = Executor(self.executor)  # the one strong reference
        self.requests = []

    if HAS_NEWEST_FIELDS:

        def generate_async(
            self,
            inputs,
            sampling_params=None,
            lora_request=None,
            prompt_adapter_request=None,
            streaming=False,
            kv_cache_retention_config=None,
            disaggregated_params=None,
            trace_headers=None,
            _postproc_params=None,
            scheduling_params=None,
            conversation_params=None,
            cache_salt=None,
            priority=0.5,
        ):
            return self._submit(inputs, sampling_params, streaming, cache_salt, kv_cache_retention_config, priority)

    else:

        def generate_async(
            self,
            inputs,
            sampling_params=None,
            lora_request=None,
            prompt_adapter_request=None,
            streaming=False,
            kv_cache_retention_config=None,
            disaggregated_params=None,
            trace_headers=None,
            _postproc_params=None,
            scheduling_params=None,
            cache_salt=None,
        ):
            return self._submit(inputs, sampling_params, streaming, cache_salt, kv_cache_retention_config, None)

    def _submit(self, inputs, params, streaming, cache_salt, retention, priority):
        if self._executor is None:
            raise RuntimeError("LLM is shutting down")
        params = params or SamplingParams()
        tokenizer = self.tokenizer.tokenizer
        params._setup(tokenizer, self.executor.generation_config)
        if getattr(self.args, "generation_config", None) == "auto":
            params._apply_generation_config_defaults(json.loads((self._folder / "generation_config.json").read_text()))
        if getattr(params, "thinking_token_budget", None) is not None and self.args.reasoning_parser is None:
            raise ValueError("thinking_token_budget requires a configured reasoning_parser")
        token_ids = tokenizer(inputs).input_ids if isinstance(inputs, str) else list(inputs)
        self._check(token_ids, params)
        if priority is not None and not 0 <= priority <= 1:
            raise ValueError(f"priority must be in [0.0, 1.0], got {priority}")
        output = RequestOutput(len(self.requests), token_ids, params, streaming, tokenizer, self._executor)
        self.requests.append({"params": params, "salt": cache_salt, "retention": retention, "priority": priority})
        self.executor.submit(output, cache_salt, retention)
        return output

    def _check(self, token_ids, params):
        if not self.args.enable_chunked_prefill and len(token_ids) > self.args.max_num_tokens:
            raise RequestError(f"The sum of prompt length ({len(token_ids)}) should not exceed max_num_tokens")

    def get_stats(self, timeout=2):
        return [{"numActiveRequests": self.executor.num_active}]

    def shutdown(self):
        if self._executor is not None:
            self.executor.shutdown()
            self._executor = None


class LLM(_Base):
    """Serves a checkpoint."""


class _TrtLLM(_Base):
    """Serves an engine folder by the checkpoint of its tokenizer."""

    args_class = TrtLlmArgs

    def __init__(self, model, tokenizer=None, **kwargs):
        super().__init__(model, tokenizer, **kwargs)
        config = json.loads((Path(model) / "config.json").read_text())
        self.build_config = config["build_config"]
        if self.args.enable_chunked_prefill and not self.build_config["plugin_config"]["use_paged_context_fmha"]:
            raise RuntimeError("chunked context requires use_paged_context_fmha")

    def _check(self, token_ids, params):
        """The runtime's rule of prompts; the build's max_input_len is not read."""
        longest = self.build_config["max_seq_len"]
        if len(token_ids) + params.max_tokens > longest:
            raise ValueError(f"The sum of prompt length ({len(token_ids)}) should not exceed max_seq_len ({longest})")
        step_len = min(self.args.max_num_tokens, self.build_config["max_num_tokens"])
        most = longest - 1 if self.args.enable_chunked_prefill else min(longest - 1, step_len)
        if len(token_ids) > most:
            raise RequestError(f"Prompt length ({len(token_ids)}) exceeds maximum input length ({most})")
        if params.logprobs is not None and not self.args.gather_generation_logits:
            raise ValueError("`sampling_params.logprobs` requires `gather_generation_logits=True`")
        if (params.prompt_logprobs or params.return_context_logits) and not self.build_config["gather_context_logits"]:
            raise ValueError("requires `gather_context_logits=True` in the `BuildConfig`")
