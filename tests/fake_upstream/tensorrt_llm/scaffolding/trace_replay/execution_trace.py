"""A request's calls as events, and the file that they are read from."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field, fields
from typing import Any

from tensorrt_llm import HAS_NEWEST_FIELDS

if HAS_NEWEST_FIELDS:

    @dataclass
    class TraceEvent:
        event_type: str = ""
        branch_path: list[int] = field(default_factory=list)
        conversation_id: int | None = None
        role: str | None = None
        message_index: int | None = None
        tool_calls: list[str] | None = None
        prompt_tokens: int | None = None
        completion_tokens: int | None = None
        reasoning_tokens: int | None = None
        finish_reason: str | None = None
        llm_duration_ms: float | None = None
        llm_request_params: dict[str, Any] | None = None
        llm_request_messages: list[dict[str, Any]] | None = None
        llm_request_tools: list[dict[str, Any]] | None = None
        tool_calls_detail: list[dict[str, Any]] | None = None
        reasoning: str | None = None
        reasoning_content: str | None = None
        tool_call_id: str | None = None
        tool_name: str | None = None
        duration_ms: float | None = None
        tool_arguments: Any | None = None
        tool_result: str | None = None
        tool_stdout: str | None = None
        tool_stderr: str | None = None
        num_branches: int | None = None
        content: str | None = None
        system_prompt_id: str | None = None
        tokens: int | None = None
        tokens_source: str | None = None
        tokenize_error: str | None = None

    @dataclass
    class ExecutionTrace:
        trace_id: str = field(default_factory=lambda: str(uuid.uuid4()))
        events: list[TraceEvent] = field(default_factory=list)

        @classmethod
        def load(cls, path):
            """What it does not know is dropped."""
            with open(path, encoding="utf-8") as file:
                document = json.load(file)
            names = {each.name for each in fields(TraceEvent)}
            events = [{name: value for name, value in event.items() if name in names} for event in document["events"]]
            return cls(document["trace_id"], [TraceEvent(**event) for event in events])
