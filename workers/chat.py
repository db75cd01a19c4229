"""Chats on a generating worker: the model's template renders the prompt, and the answer becomes a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol import AssistantMessage, ChatTask, DropKVCacheTask, TaskStatus, TokenizeTask
from scaffolding_ext.protocol.meta import token_counts_of
from scaffolding_ext.protocol.worker import BaseWorker
from scaffolding_ext.request.program import record

if TYPE_CHECKING:
    from scaffolding_ext.protocol.standins import TaskHandler


class ChatWorker(BaseWorker):
    """Serves `ChatTask` and its companions, given a `_generate` that serves `GenerationTask`."""

    def chat_tokenizer(self) -> Any:
        """Return the model's transformers tokenizer; None if the server applies the chat template."""
        raise NotImplementedError  # every worker that serves chats has one

    async def _generate(self, task: Any) -> TaskStatus:
        raise NotImplementedError  # as above

    async def _chat(self, task: Any) -> TaskStatus:
        name = type(self).__name__
        if task.tools:
            raise InvalidTaskError(
                f"tools is set, but {name} takes no tools in a ChatTask: describe them in a message, or use upstream's "
                "worker"
            )
        if not task.messages:
            raise InvalidTaskError("messages is empty: give at least one message of the user")
        tokenizer = self.chat_tokenizer()
        if tokenizer is not None:
            if tokenizer.chat_template is None:
                raise InvalidTaskError("the model has no chat template: send a GenerationTask with the prompt as text")
            messages = task.messages_to_dict_content()
            task.input_str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            task.input_tokens = tokenizer.backend_tokenizer.encode(task.input_str, add_special_tokens=False).ids
        status = await self._generate(task)
        task.messages.append(AssistantMessage(task.output_str))
        counts = token_counts_of(task)
        if task.enable_token_counting and counts is not None:
            task.prompt_tokens_num, task.completion_tokens_num = counts.prefilled + counts.reused, counts.decoded
        return status

    async def _tokenize(self, task: Any) -> TaskStatus:
        tokenizer = self.chat_tokenizer()
        if tokenizer is None:
            raise InvalidTaskError(
                "the worker does not know the tokenizer of a chat server: set endpoint='completions'"
            )
        task.token_count = len(tokenizer.backend_tokenizer.encode(task.content or "", add_special_tokens=True).ids)
        task.tokenize_error = None
        return TaskStatus.SUCCESS

    async def _drop(self, task: Any) -> TaskStatus:
        record(
            "ignored",
            task=type(task).__name__,
            reason="the worker drops no KV on request; its cache evicts the least recently used KV first",
        )
        return TaskStatus.SUCCESS

    task_handlers: ClassVar[dict[type[Any], TaskHandler]] = {
        ChatTask: _chat,
        TokenizeTask: _tokenize,
        DropKVCacheTask: _drop,
    }
