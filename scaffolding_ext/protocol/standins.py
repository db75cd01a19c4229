"""Stand-ins for TensorRT-LLM Scaffolding's protocol, for machines without it.

Names, fields, defaults and semantics are those of TensorRT-LLM 1.2 and newer, so controllers and workers written on
them run there unchanged. Import them through `scaffolding_ext.protocol`, which takes the real ones if they exist.
"""

from __future__ import annotations

import contextvars
import copy
import functools
from abc import ABC
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar


@dataclass
class ScaffoldingOutput:
    text: str | None
    token_ids: list[int] | None
    data: Any = None
    metadata: Any = None


@dataclass(frozen=True)
class ExecutionScope:
    """A point in a request's execution tree: the root has an empty branch path, each parallel fork appends an index."""

    request_id: str
    branch_path: tuple[int, ...] = ()

    @property
    def scope_id(self) -> str:
        return f"{self.request_id}:{'.'.join(map(str, self.branch_path))}" if self.branch_path else self.request_id

    @property
    def branch_path_list(self) -> list[int]:
        return list(self.branch_path)

    def child(self, branch_index: int) -> ExecutionScope:
        return ExecutionScope(self.request_id, (*self.branch_path, branch_index))

    def with_branch_path(self, branch_path: Sequence[int]) -> ExecutionScope:
        return ExecutionScope(self.request_id, tuple(branch_path))


current_scope: contextvars.ContextVar[ExecutionScope | None] = contextvars.ContextVar("current_scope", default=None)


class TaskStatus(Enum):
    """Outcome of a task. (The third name is misspelt upstream, too.)"""

    SUCCESS = "success"
    WORKER_NOT_SUPPORTED = "worker_not_supported"
    WORKER_EXECEPTION = "worker_exception"


@dataclass
class Task:
    """One unit of work for the worker of its tag, which writes the results into it."""

    worker_tag: Any = field(default=None)
    streaming_output_flag: bool = field(default=False)
    streaming_output_list: list[Any] = field(default_factory=list)
    custom_input_params: dict[str, Any] | None = None
    custom_output_params: dict[str, Any] | None = None

    @staticmethod
    def create_from_prompt(prompt: str) -> Task:
        raise TypeError("this task type cannot be made from a prompt; use GenerationTask.create_from_prompt")

    def create_scaffolding_output(self) -> ScaffoldingOutput:
        raise TypeError(f"{type(self).__name__} has no scaffolding output")


@dataclass
class GenerationTask(Task):
    """Generation from a prompt; if both are given, `input_tokens` are the exact ids of `input_str`."""

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
    reasoning_effort: str | None = None
    min_tokens: int | None = None
    ignore_eos: bool = False
    return_context_logits: bool | None = False

    output_str: str | None = None
    output_tokens: list[int] | None = None
    finish_reason: str | None = None
    context_logits: Any = None
    logprobs: Any = None
    customized_result_fields: dict[str, Any] = field(default_factory=dict)
    ttft_s: float | None = None
    latency_s: float | None = None
    usage_prompt_tokens: int | None = None
    usage_completion_tokens: int | None = None
    request_id: str | None = None
    llm_request_params: dict[str, Any] | None = None
    result: ClassVar[Any] = None  # not a field: controllers of upstream's blog and contrib use it

    @staticmethod
    def create_from_prompt(prompt: str) -> GenerationTask:
        return GenerationTask(input_str=prompt)

    def create_scaffolding_output(self) -> ScaffoldingOutput:
        return ScaffoldingOutput(self.output_str, self.output_tokens)


@dataclass
class StreamGenerationTask(GenerationTask):
    """Generation in steps: yield the same task again for at least `streaming_step` more tokens."""

    cancel_flag: bool | None = field(default=False)
    streaming_step: int | None = field(default=1)
    request_handle: Any = field(default=None)
    end_flag: bool = field(default=False)

    @staticmethod
    def create_from_generation_task(task: GenerationTask, streaming_step: int) -> StreamGenerationTask:
        stream_task = StreamGenerationTask()
        stream_task.__dict__.update(task.__dict__)
        stream_task.streaming_step = streaming_step
        return stream_task


@dataclass
class RewardTask(Task):
    """Asks a reward model for a score."""

    input_tokens: list[int] | None = field(default=None)
    input_str: str | None = field(default=None)


ControllerGenerator = Generator[Any, None, Any]


class Controller(ABC):  # noqa: B024  (upstream's is an ABC without abstract methods, too)
    """Decides what is generated: a generator of task lists and ParallelProcesses."""

    def __init__(self) -> None:
        self.task_collections: dict[str, TaskCollection] = {}

    def clone(self) -> Controller:
        return copy.deepcopy(self)

    def generate(self, prompt: str, **kwargs: Any) -> ControllerGenerator:
        task = GenerationTask.create_from_prompt(prompt)
        yield from self.process([task], **kwargs)
        return task.create_scaffolding_output()

    def process(self, tasks: list[Any], **kwargs: Any) -> ControllerGenerator:
        raise NotImplementedError  # upstream's contract: subclasses override it


class ParallelProcess:
    """Several controllers' generators in parallel; the host continues when all have ended."""

    def __init__(
        self,
        controllers: Sequence[Controller],
        tasks_list: Sequence[list[Task]],
        kwargs_list: Sequence[Mapping[str, Any]],
        branch_paths: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.sub_gens: list[Iterable[Any]] = [
            controller.process(tasks, **kwargs)
            for controller, tasks, kwargs in zip(controllers, tasks_list, kwargs_list, strict=True)
        ]
        self.branch_paths = branch_paths


TaskHandler = Callable[[Any, Any], Awaitable[Any]]


class Worker(ABC):  # noqa: B024  (upstream's is an ABC without abstract methods, too)
    """Runs tasks, dispatched by their exact type."""

    task_handlers: ClassVar[dict[type[Any], TaskHandler]] = {}

    def register_task_handler(self, task_cls: type[Task], handler: TaskHandler) -> None:
        """Add a handler for a task type to every instance of the worker's class."""
        type(self).task_handlers[task_cls] = handler

    async def run_task(self, task: Task) -> TaskStatus | None:
        """Run one task; handlers set on an instance are ignored (see `scaffolding_ext.protocol.worker`)."""
        handler = type(self).task_handlers.get(type(task))
        if handler is None:
            return TaskStatus.WORKER_NOT_SUPPORTED
        status: TaskStatus | None = await handler(self, task)
        return status

    async def on_scope_end(self, scope_id: str) -> None:  # noqa: B027  (a hook, as upstream)
        """Free resources of a request or parallel branch that has ended."""

    def shutdown(self) -> None:  # noqa: B027  (a hook, as upstream)
        """Free all resources of the worker."""

    async def async_shutdown(self) -> None:  # noqa: B027  (a hook, as upstream)
        """Free resources on the event loop."""

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()


class TaskCollection:
    """Observes the tasks that a controller yields."""

    def before_yield(self, tasks: list[Task]) -> None:
        """Handle tasks before they go to their workers."""

    def after_yield(self, tasks: list[Task]) -> None:
        """Handle tasks that have come back."""

    def on_parallel_start(self, num_branches: int) -> None:
        """Handle the start of a fork."""

    def on_parallel_end(self, num_branches: int) -> None:
        """Handle the end of all branches of a fork."""


class _Observed:
    """A generator whose yields, and those of its branches, are seen by a task collection."""

    def __init__(self, collection: TaskCollection, generator: Iterable[Any]) -> None:
        self._collection = collection
        self._generator = generator

    def __iter__(self) -> Iterator[Any]:
        for work in self._generator:
            if isinstance(work, ParallelProcess):
                work.sub_gens = [_Observed(self._collection, branch) for branch in work.sub_gens]
                self._collection.on_parallel_start(len(work.sub_gens))
                yield work
                self._collection.on_parallel_end(len(work.sub_gens))
            else:
                self._collection.before_yield(work)
                yield work
                self._collection.after_yield(work)


def with_task_collection(
    name: str, task_collection_cls: type[TaskCollection], **task_collection_kwargs: Any
) -> Callable[[type[Controller]], type[Controller]]:
    """Class decorator that gives every instance a task collection observing what its `process` yields."""

    def decorate(controller_cls: type[Controller]) -> type[Controller]:
        original_init, original_process = controller_cls.__init__, controller_cls.process

        @functools.wraps(original_init)  # stack files are checked against its signature
        def init(self: Controller, *args: Any, **kwargs: Any) -> None:
            original_init(self, *args, **kwargs)
            self.task_collections[name] = task_collection_cls(**task_collection_kwargs)

        def process(self: Controller, tasks: list[Task], **kwargs: Any) -> Iterator[Any]:
            return iter(_Observed(self.task_collections[name], original_process(self, tasks, **kwargs)))

        controller_cls.__init__ = init  # type: ignore[method-assign]
        controller_cls.process = process  # type: ignore[method-assign,assignment]
        return controller_cls

    return decorate


@dataclass
class RoleMessage:
    role: str | None = None
    content: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"role": self.role, "content": self.content}


class UserMessage(RoleMessage):
    def __init__(self, content: str) -> None:
        super().__init__("user", content)


class SystemMessage(RoleMessage):
    def __init__(self, content: str) -> None:
        super().__init__("system", content)


@dataclass
class AssistantMessage(RoleMessage):
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Any] | None = None
    finish_reason: str | None = None

    def __init__(
        self,
        content: str | None,
        reasoning: str | None = None,
        reasoning_content: str | None = None,
        tool_calls: list[Any] | None = None,
        finish_reason: str | None = None,
    ) -> None:
        super().__init__("assistant", content)
        self.reasoning, self.reasoning_content = reasoning, reasoning_content
        self.tool_calls, self.finish_reason = tool_calls, finish_reason


class ToolMessage(RoleMessage):
    def __init__(
        self, content: str, tool_call_id: str, *, trace_stdout: str | None = None, trace_stderr: str | None = None
    ) -> None:
        super().__init__("tool", content)
        self.tool_call_id, self.trace_stdout, self.trace_stderr = tool_call_id, trace_stdout, trace_stderr

    def to_dict(self) -> dict[str, Any]:
        traces = {"trace_stdout": self.trace_stdout, "trace_stderr": self.trace_stderr}
        told = {name: text for name, text in traces.items() if text is not None}
        return {**super().to_dict(), "tool_call_id": self.tool_call_id, **told}


class OpenAIToolDescription:
    """A tool of a chat; upstream's `ToolDescription` in OpenAI's format."""

    def __init__(self, name: str, description: str, parameters: dict[str, Any]) -> None:
        self.name, self.description, self.parameters = name, description, parameters

    def to_dict(self) -> dict[str, Any]:
        schema = {"type": "object", "properties": self.parameters}
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": schema},
        }


@dataclass
class ChatTask(StreamGenerationTask):
    """Generation of a chat's next message, appended to `messages`; the same task can continue the chat."""

    messages: list[Any] = field(default_factory=list)
    tools: Any = None
    enable_token_counting: bool = False
    prompt_tokens_num: int = 0
    completion_tokens_num: int = 0
    reasoning_tokens_num: int = 0
    sub_request_markers: list[tuple[str, int]] = field(default_factory=list)
    unique_id: int | None = None

    def messages_to_dict_content(self, start_index: int = 0) -> list[dict[str, Any]]:
        return [message.to_dict() for message in self.messages[start_index:] if message.content is not None]

    def add_message(self, message: Any) -> None:
        self.messages.append(message)

    def add_messages(self, messages: list[Any]) -> None:
        self.messages.extend(messages)

    def last_assistant_content(self) -> str:
        return next((each.content for each in reversed(self.messages) if each.role == "assistant"), None) or ""

    @staticmethod
    def create_from_prompt(
        user_prompt: str | None, system_prompts: list[Any] | None = None, tools: Any = None
    ) -> ChatTask:
        task = ChatTask(messages=list(system_prompts or ()), tools=tools)
        if user_prompt is not None:
            task.add_message(UserMessage(user_prompt))
        return task

    @staticmethod
    def create_from_messages(messages: list[Any], tools: Any = None) -> ChatTask:
        return ChatTask(messages=messages, tools=tools)


@dataclass
class MCPCallTask(Task):
    """Calls a tool of an MCP server."""

    tool_call_id: str | None = None
    tool_name: str | None = None
    args: Any = None
    result_str: str | None = None
    result_stdout: str | None = None
    result_stderr: str | None = None

    @staticmethod
    def create_mcptask(tool_call_id: str, tool_name: str, args: Any, worker_tag: Any) -> MCPCallTask:
        return MCPCallTask(worker_tag, tool_call_id=tool_call_id, tool_name=tool_name, args=args)


@dataclass
class DropKVCacheTask(Task):
    """Marks a chat's KV as unneeded, except for its system and user messages."""

    messages_to_retain: list[Any] = field(default_factory=list)
    chat_task: Any = None

    def __init__(self, chat_task: Any, worker_tag: Any) -> None:
        super().__init__(worker_tag)
        self.chat_task = chat_task
        self.messages_to_retain = [message for message in chat_task.messages if message.role in ("system", "user")]


@dataclass
class TokenizeTask(Task):
    content: str | None = None
    event: Any = None
    token_count: int | None = None
    tokenize_error: str | None = None
