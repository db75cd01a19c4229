"""Tasks: the sampling fields of an OpenAI completion request, and the results beside them."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tensorrt_llm import HAS_FINISH_REASON, HAS_NEWEST_FIELDS
from tensorrt_llm.scaffolding.result import ScaffoldingOutput


class TaskStatus(Enum):
    SUCCESS = "success"
    WORKER_NOT_SUPPORTED = "worker_not_supported"
    WORKER_EXECEPTION = "worker_exception"


@dataclass
class Task:
    worker_tag: Any = None
    streaming_output_flag: bool = False
    streaming_output_list: list[Any] = field(default_factory=list)
    custom_input_params: dict | None = None
    custom_output_params: dict | None = None


@dataclass
class GenerationTask(Task):
    input_tokens: list[int] | None = None
    input_str: str | None = None
    skip_tokenizer: bool = False
    skip_detokenizer: bool = False
    best_of: int | None = None
    echo: bool | None = False
    frequency_penalty: float | None = 0.0
    logit_bias: dict[str, float] | None = None
    num_logprobs: int | None = None
    max_tokens: int | None = None
    n: int = 1
    presence_penalty: float | None = 0.0
    seed: int | None = None
    stop: str | list[str] | None = field(default_factory=list)
    suffix: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    user: str | None = None
    top_k: int | None = None
    return_context_logits: bool | None = False
    output_str: str | None = None
    output_tokens: list[int] | None = None
    if HAS_FINISH_REASON:
        finish_reason: str | None = None
    context_logits: Any = None
    logprobs: Any = None
    customized_result_fields: dict[str, Any] = field(default_factory=dict)
    if HAS_NEWEST_FIELDS:
        reasoning_effort: str | None = None
        min_tokens: int | None = None
        ignore_eos: bool = False
        ttft_s: float | None = None
        latency_s: float | None = None
        usage_prompt_tokens: int | None = None
        usage_completion_tokens: int | None = None
        request_id: str | None = None

    @staticmethod
    def create_from_prompt(prompt):
        return GenerationTask(input_str=prompt)

    def create_scaffolding_output(self):
        return ScaffoldingOutput(self.output_str, self.output_tokens)


@dataclass
class StreamGenerationTask(GenerationTask):
    cancel_flag: bool | None = False
    streaming_step: int | None = 1
    request_handle: Any = None
    end_flag: bool = False


@dataclass
class RewardTask(Task):
    input_tokens: list[int] | None = None
    input_str: str | None = None


@dataclass
class RoleMessage:
    role: str | None = None
    content: str | None = None
    prefix: str | None = None

    def to_dict(self):
        return {"role": self.role, "content": self.content}


@dataclass
class UserMessage(RoleMessage):
    def __init__(self, content, prefix=None):
        super().__init__("user", content, prefix)


@dataclass
class AssistantMessage(RoleMessage):
    def __init__(self, content, reasoning=None, reasoning_content=None, tool_calls=None, finish_reason=None):
        super().__init__("assistant", content)


@dataclass
class ChatTask(StreamGenerationTask):
    messages: list[RoleMessage] = field(default_factory=list)
    tools: Any = None
    enable_token_counting: bool = False
    prompt_tokens_num: int = 0
    completion_tokens_num: int = 0
    reasoning_tokens_num: int = 0

    def messages_to_dict_content(self, start_index=0):
        return [message.to_dict() for message in self.messages[start_index:] if message.content is not None]


@dataclass
class DropKVCacheTask(Task):
    chat_task: ChatTask | None = None


if HAS_NEWEST_FIELDS:

    @dataclass
    class TokenizeTask(Task):
        content: str | None = None
        token_count: int | None = None
        tokenize_error: str | None = None
