"""Tasks: the sampling fields of an OpenAI completion request, and the results beside them.

Types are upstream's own, spelt as upstream spells them; `Controller` is not imported there either, so that nobody can
resolve them all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Mapping  # noqa: UP035  (as the real one)

from tensorrt_llm import HAS_FINISH_REASON, HAS_NEWEST_FIELDS, HAS_SCOPES
from tensorrt_llm.scaffolding.result import ScaffoldingOutput


class TaskStatus(Enum):
    SUCCESS = "success"
    WORKER_NOT_SUPPORTED = "worker_not_supported"
    WORKER_EXECEPTION = "worker_exception"


@dataclass
class Task:
    worker_tag: str = field(default=None)
    streaming_output_flag: bool = field(default=False)
    streaming_output_list: list[Any] = field(default_factory=list)
    custom_input_params: dict | None = None
    custom_output_params: dict | None = None

    @staticmethod
    def create_from_prompt(prompt: str) -> Task:
        pass

    def create_scaffolding_output(self) -> ScaffoldingOutput:
        pass


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
    if HAS_NEWEST_FIELDS:
        min_tokens: int | None = None
    n: int = 1
    presence_penalty: float | None = 0.0
    seed: int | None = None
    stop: str | list[str] | None = field(default_factory=list)
    suffix: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    user: str | None = None
    if HAS_NEWEST_FIELDS:
        ignore_eos: bool = False
    top_k: int | None = None
    return_context_logits: bool | None = False
    worker_tag: str | Controller.WorkerTag = None  # noqa: F821  (as the real one)
    output_str: str | None = None
    output_tokens: list[int] | None = None
    if HAS_FINISH_REASON:
        finish_reason: str | None = None
    if HAS_NEWEST_FIELDS:
        llm_request_params: dict[str, Any] | None = None
    context_logits: torch.Tensor | None = None  # noqa: F821
    logprobs: TokenLogprobs | None = None  # noqa: F821
    customized_result_fields: dict[str, Any] = field(default_factory=dict)
    if HAS_NEWEST_FIELDS:
        ttft_s: float | None = None
        latency_s: float | None = None
        usage_completion_tokens: int | None = None
        usage_prompt_tokens: int | None = None
        request_id: str | None = None

    @staticmethod
    def create_from_prompt(prompt: str) -> GenerationTask:
        return GenerationTask(input_str=prompt)

    def create_scaffolding_output(self) -> ScaffoldingOutput:
        return ScaffoldingOutput(self.output_str, self.output_tokens)


@dataclass
class StreamGenerationTask(GenerationTask):
    cancel_flag: bool | None = field(default=False)
    streaming_step: int | None = field(default=1)
    request_handle: Any = field(default=None)
    end_flag: bool = field(default=False)

    @staticmethod
    def create_from_generation_task(task: GenerationTask, streaming_step) -> StreamGenerationTask:
        stream_task = StreamGenerationTask()
        stream_task.__dict__.update(task.__dict__)
        stream_task.streaming_step = streaming_step
        return stream_task


@dataclass
class RewardTask(Task):
    input_tokens: list[int] | None = field(default=None)
    input_str: str | None = field(default=None)


@dataclass
class RoleMessage:
    role: str | None = field(default=None)
    content: str | None = field(default=None)
    if not HAS_SCOPES:
        prefix: str | None = field(default=None)

    def to_dict(self) -> dict[str, Any]:
        return {"role": self.role, "content": self.content}


@dataclass
class UserMessage(RoleMessage):
    def __init__(self, content: str):
        super().__init__(role="user", content=content)


@dataclass
class SystemMessage(RoleMessage):
    def __init__(self, content: str):
        super().__init__(role="system", content=content)


@dataclass
class AssistantMessage(RoleMessage):
    reasoning: str | None = field(default=None)
    reasoning_content: str | None = field(default=None)
    tool_calls: list[Any] | None = field(default=None)
    if HAS_SCOPES:
        finish_reason: str | None = field(default=None)

    def __init__(self, content, reasoning=None, reasoning_content=None, tool_calls=None, finish_reason=None):
        super().__init__(role="assistant", content=content)
        self.reasoning, self.reasoning_content, self.tool_calls = reasoning, reasoning_content, tool_calls
        self.finish_reason = finish_reason


if HAS_NEWEST_FIELDS:

    @dataclass
    class ToolMessage(RoleMessage):
        def __init__(self, content, tool_call_id, *, trace_stdout=None, trace_stderr=None):
            super().__init__(role="tool", content=content)
            self.tool_call_id, self.trace_stdout, self.trace_stderr = tool_call_id, trace_stdout, trace_stderr

        def to_dict(self):
            return {"role": "tool", "content": self.content, "tool_call_id": self.tool_call_id}


class OpenAIToolDescription:
    def __init__(self, name, description, parameters):
        self.name, self.description, self.parameters = name, description, parameters

    def to_dict(self):
        return {"type": "function", "function": {"name": self.name, "parameters": self.parameters}}


@dataclass
class ChatTask(StreamGenerationTask):
    messages: list[RoleMessage] = field(default_factory=list)
    tools: Any = field(default=None)
    enable_token_counting: bool = field(default=False)
    prompt_tokens_num: int = field(default=0)
    completion_tokens_num: int = field(default=0)
    if HAS_NEWEST_FIELDS:
        reasoning_tokens_num: int = field(default=0)
    sub_request_markers: list[tuple[str, int]] = field(default_factory=list)
    unique_id: int | None = field(default=None)

    def messages_to_dict_content(self, start_index: int = 0) -> list[Mapping[str, str]]:
        return [message.to_dict() for message in self.messages[start_index:] if message.content is not None]

    def add_message(self, message: RoleMessage):
        self.messages.append(message)

    def add_messages(self, messages: list[RoleMessage]):
        self.messages.extend(messages)

    @staticmethod
    def create_from_prompt(user_prompt, system_prompts=None, tools=None) -> ChatTask:
        task = ChatTask(messages=list(system_prompts or ()), tools=tools)
        if user_prompt is not None:
            task.add_message(UserMessage(user_prompt))
        return task

    @staticmethod
    def create_from_messages(messages: list[RoleMessage], tools: Any | None = None) -> ChatTask:
        return ChatTask(messages=messages, tools=tools)


@dataclass
class MCPCallTask(Task):
    if HAS_SCOPES:
        tool_call_id: str | None = field(default=None)
    tool_name: str | None = field(default=None)
    args: dict | None = field(default=None)
    result_str: str | None = None
    if HAS_NEWEST_FIELDS:
        result_stdout: str | None = None
        result_stderr: str | None = None

    if HAS_SCOPES:

        @staticmethod
        def create_mcptask(tool_call_id, tool_name, args, worker_tag):
            return MCPCallTask(worker_tag, tool_call_id=tool_call_id, tool_name=tool_name, args=args)

    else:

        @staticmethod
        def create_mcptask(tool_name, args, worker_tag):
            return MCPCallTask(worker_tag, tool_name=tool_name, args=args)


@dataclass
class DropKVCacheTask(Task):
    if HAS_SCOPES:
        messages_to_retain: list[RoleMessage] = field(default_factory=list)
        chat_task: ChatTask = field(default=None)
    else:
        prefix: str | None = field(default=None)
        messages: list[RoleMessage] = field(default_factory=list)

    def __init__(self, chat_task: ChatTask, worker_tag: str):
        self.worker_tag = worker_tag
        if HAS_SCOPES:
            self.chat_task = chat_task
            self.messages_to_retain = [message for message in chat_task.messages if message.role in ("system", "user")]
        else:
            self.prefix, self.messages = "", chat_task.messages


if HAS_SCOPES:

    @dataclass
    class TokenizeTask(Task):
        content: str | None = None
        event: TraceEvent | None = None  # noqa: F821
        token_count: int | None = None
        tokenize_error: str | None = None
