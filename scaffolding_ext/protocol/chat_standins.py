"""Stand-ins for TensorRT-LLM Scaffolding's chats, for machines and releases without them: messages, and tasks on them.

Names, fields and defaults are upstream's. Import them through `scaffolding_ext.protocol`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from scaffolding_ext.protocol.standins import StreamGenerationTask, Task


@dataclass
class RoleMessage:
    """A message of a chat."""

    role: str | None = None
    content: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As chat templates and servers take it."""
        return {"role": self.role, "content": self.content}


class UserMessage(RoleMessage):
    """What the user says."""

    def __init__(self, content: str) -> None:
        super().__init__("user", content)


class SystemMessage(RoleMessage):
    """What the system says."""

    def __init__(self, content: str) -> None:
        super().__init__("system", content)


@dataclass
class AssistantMessage(RoleMessage):
    """What the model said."""

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
    """What a tool returned."""

    def __init__(self, content: str, tool_call_id: str, name: str) -> None:
        super().__init__("tool", content)
        self.tool_call_id, self.name = tool_call_id, name

    def to_dict(self) -> dict[str, Any]:
        """As servers take it."""
        return {**super().to_dict(), "tool_call_id": self.tool_call_id, "name": self.name}


@dataclass
class ChatTask(StreamGenerationTask):
    """The next message of a chat; it is appended to `messages`, so that the chat goes on with the same task."""

    messages: list[Any] = field(default_factory=list)
    tools: Any = None
    enable_token_counting: bool = False
    prompt_tokens_num: int = 0
    completion_tokens_num: int = 0
    sub_request_markers: list[tuple[str, int]] = field(default_factory=list)
    unique_id: int | None = None

    def messages_to_dict_content(self, start_index: int = 0) -> list[dict[str, Any]]:
        """The messages that have a content, as chat templates and servers take them."""
        return [message.to_dict() for message in self.messages[start_index:] if message.content is not None]

    def add_message(self, message: Any) -> None:
        """Go on with a message."""
        self.messages.append(message)

    def add_messages(self, messages: list[Any]) -> None:
        """Go on with several."""
        self.messages.extend(messages)

    def last_assistant_content(self) -> str | None:
        """What the model said last; None where it has said nothing yet."""
        return next((each.content for each in reversed(self.messages) if each.role == "assistant"), None)

    @staticmethod
    def create_from_prompt(
        user_prompt: str | None, system_prompts: list[Any] | None = None, tools: Any = None
    ) -> ChatTask:
        """A task for the first answer of a chat."""
        task = ChatTask(messages=list(system_prompts or ()), tools=tools)
        if user_prompt is not None:
            task.add_message(UserMessage(user_prompt))
        return task

    @staticmethod
    def create_from_messages(messages: list[Any], tools: Any = None) -> ChatTask:
        """A task for the next message of a chat."""
        return ChatTask(messages=messages, tools=tools)


@dataclass
class DropKVCacheTask(Task):
    """Says that a chat's KV is of no more use, but for what its system and user said."""

    messages_to_retain: list[Any] = field(default_factory=list)
    chat_task: Any = None

    def __init__(self, chat_task: Any, worker_tag: Any) -> None:
        super().__init__(worker_tag)
        self.chat_task = chat_task
        self.messages_to_retain = [message for message in chat_task.messages if message.role in ("system", "user")]


@dataclass
class TokenizeTask(Task):
    """Asks how many tokens a text has."""

    content: str | None = None
    event: Any = None
    token_count: int | None = None
    tokenize_error: str | None = None
