"""The tasks that only TensorRT-LLM's own Scaffolding has: chats and counts of tokens."""

from __future__ import annotations

import sys
from typing import Any

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol import UPSTREAM


def upstream_type(name: str) -> Any | None:
    """A task type of the installed Scaffolding by its name; None where there is none."""
    return getattr(sys.modules["tensorrt_llm.scaffolding.task"], name, None) if UPSTREAM else None


def open_chat(task: Any, tokenizer: Any) -> None:
    """Write a ChatTask's messages into its `input_tokens`, with the assistant's turn opened.

    Raises:
        InvalidTaskError: It brings tools, or the model has no chat template.
    """
    if task.tools:
        raise InvalidTaskError("tools is set; TRTLLMWorker calls none: serve them from trtllm-serve, by OpenAIWorker")
    if tokenizer.chat_template is None:
        raise InvalidTaskError("the model has no chat template; send a GenerationTask with the prompt as text")
    text = tokenizer.apply_chat_template(task.messages_to_dict_content(), tokenize=False, add_generation_prompt=True)
    task.input_str = text
    task.input_tokens = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids


def close_chat(task: Any) -> None:
    """Append what was generated to a ChatTask's messages, and count its tokens where it asks for that."""
    task.messages.append(sys.modules["tensorrt_llm.scaffolding.task"].AssistantMessage(task.output_str))
    if task.enable_token_counting:
        task.prompt_tokens_num = len(task.input_tokens)
        task.completion_tokens_num = len(task.output_tokens)
