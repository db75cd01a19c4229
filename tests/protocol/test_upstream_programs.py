"""Programs written for upstream: what they read and set on tasks, and what its workers say of chats."""

from __future__ import annotations

from typing import Any, ClassVar

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import (
    AssistantMessage,
    ChatTask,
    Controller,
    GenerationTask,
    TaskStatus,
    UserMessage,
    Worker,
    standins,
)
from scaffolding_ext.testing import ScriptedWorker


class SetsResults(Controller):
    """Hands the worker's result on, as the controllers of upstream's blog do."""

    def process(self, tasks: list[Any], **kwargs: Any) -> Any:
        probe = GenerationTask(worker_tag="generation", input_str=tasks[0].input_str, max_tokens=4)
        yield [probe]
        tasks[0].result = probe.result
        tasks[0].output_str = f"{tasks[0].input_str}: {probe.output_str}"


def test_a_result_may_be_read_and_set_on_a_task() -> None:
    with ScaffoldingLlm(SetsResults(), {"generation": ScriptedWorker("four")}) as llm:
        assert llm.generate("Two and two").outputs[0].text == "Two and two: four"
    first, second = standins.GenerationTask(), standins.GenerationTask()
    first.result = "engine"  # type: ignore[misc]
    assert (first.result, second.result) == ("engine", None)


class UpstreamChats(Worker):
    """Counts chats as upstream's OpenaiWorker does: on request, in the task, each call by itself."""

    async def _chat(self, task: Any) -> TaskStatus:
        num_read = 10 * len(task.messages)
        task.messages.append(AssistantMessage("yes"))
        if task.enable_token_counting:
            task.prompt_tokens_num, task.completion_tokens_num = num_read, 7
        return TaskStatus.SUCCESS

    task_handlers: ClassVar[dict[Any, Any]] = {ChatTask: _chat}


class ChatsTwice(BaseController):
    def process(self, tasks: list[Any], **kwargs: Any) -> Any:
        chat = ChatTask(worker_tag="generation", messages=[UserMessage(tasks[0].input_str)])
        for _ in range(2):
            yield [chat]
            chat.add_message(UserMessage("Sure?"))
        tasks[0].output_str = chat.messages[-2].content


def test_what_upstreams_worker_says_of_chats_is_counted_call_by_call() -> None:
    with ScaffoldingLlm(ChatsTwice(), {"generation": UpstreamChats()}) as llm:
        total = llm.generate("Two and two?").program.ledger.total
    assert (total.decoded, total.prefilled) == (14, 10 + 30)
