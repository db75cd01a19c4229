"""A request's calls in the shape of upstream's traces."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext import DynasorCoTController, MajorityVoteController, NativeGenerationController, ScaffoldingLlm
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.protocol import (
    AssistantMessage,
    ChatTask,
    DropKVCacheTask,
    GenerationTask,
    ParallelProcess,
    Task,
    TokenizeTask,
    UserMessage,
)
from scaffolding_ext.protocol.meta import TokenCounts, note
from scaffolding_ext.protocol.tasks import CompareTask, ScoreTask
from scaffolding_ext.request.execution_trace import ExecutionRecorder
from scaffolding_ext.testing import FakeClock, ScriptedWorker
from scaffolding_ext.testing.controller_contract import contract_reply


def recorded(controller: Any, **workers: Any) -> Any:
    stack = {"generation": ScriptedWorker(contract_reply), **workers}
    with ScaffoldingLlm(controller, stack, record_execution=True) as llm:
        result = llm.generate("Question 17")
    return result.program, result.execution.to_json(result.id)["events"]


@pytest.mark.parametrize("mode", ["stream", "chunk"])
@pytest.mark.parametrize("num_samples", [1, 5])
def test_its_tokens_are_those_of_the_ledger(mode: Any, num_samples: int) -> None:
    chain = DynasorCoTController(rule="consecutive", chunk_size=24, mode=mode)
    program, events = recorded(chain if num_samples == 1 else MajorityVoteController(chain, num_samples))
    total = program.ledger.total
    assert sum(event.get("completion_tokens", 0) for event in events) == total.decoded
    assert sum(event.get("tokens", 0) for event in events) == total.prefilled + total.reused


def test_forks_are_well_formed_and_number_their_branches_anew() -> None:
    votes = MajorityVoteController(
        MajorityVoteController(DynasorCoTController(rule="consecutive", chunk_size=24), 3), 3
    )
    _, events = recorded(votes)
    known, forks = {()}, []
    for event in events:
        path = tuple(event["branch_path"])
        assert path in known
        if event["event_type"] == "parallel_start":
            forks.append({(*path, index) for index in range(event["num_branches"])})
            assert not known & forks[-1]
            known |= forks[-1]
        elif event["event_type"] == "parallel_end":
            assert {child[:-1] for child in forks[-1]} == {path}  # the one that began last ends first
            known -= forks.pop()
    assert known == {()}
    assert max(len(event["branch_path"]) for event in events) == 2  # votes and their samples


def play(steps: Any, answer: Any) -> list[dict[str, Any]]:
    """The events of a controller that yields these steps, each of which takes 2 seconds."""
    clock = FakeClock()
    recorder = ExecutionRecorder(clock)

    def branch(tasks: Any, **kwargs: Any) -> Any:
        yield tasks

    class Branch(BaseController):
        process = staticmethod(branch)  # type: ignore[assignment]

    def drive(work: Any) -> None:
        for step in work:
            if isinstance(step, ParallelProcess):
                for each in step.sub_gens:
                    drive(each)
                continue
            clock.advance(2.0)
            for task in step:
                answer(task)

    made = (
        ParallelProcess([Branch() for _ in step], [[task] for task in step], [{} for _ in step])
        if isinstance(step, tuple)
        else step
        for step in steps
    )
    drive(recorder.watch(made))
    events: list[dict[str, Any]] = recorder.to_json("x", full=True)["events"]
    return events


def serve(task: Task) -> None:
    if isinstance(task, ChatTask):
        num_answers = sum(message.role == "assistant" for message in task.messages)
        task.messages.append(AssistantMessage("yes"))
        note(task, counts=TokenCounts(1, 10, 10 * num_answers))
    elif isinstance(task, GenerationTask):
        task.output_str, task.output_tokens, task.input_tokens = "7", [7], [1, 2, 3]
    elif isinstance(task, ScoreTask):
        note(task, counts=TokenCounts(0, 6, 2))


def test_every_kind_of_task_has_its_event() -> None:
    chat = ChatTask(messages=[UserMessage("a"), UserMessage("b")])
    steps = [[chat], [ScoreTask()], [CompareTask()], [TokenizeTask()], [DropKVCacheTask(chat, "generation")]]
    events = play(steps, serve)
    assert [event["event_type"] for event in events] == ["message"] * 5 + ["tool_call", "drop_kv_cache"]
    first, second, answer, scored, score, call, _ = events
    assert (first.get("tokens"), second["tokens"], answer["prompt_tokens"]) == (None, 10, 10)
    assert [event["message_index"] for event in (first, second, answer)] == [0, 1, 2]
    assert (scored["tokens"], score["completion_tokens"]) == (8, 1)  # replay takes none for less than one
    assert (call["tool_name"], call["duration_ms"]) == ("CompareTask", 2000.0)


def test_a_chat_goes_on_in_its_conversation() -> None:
    chat = ChatTask(messages=[UserMessage("a")])

    def steps() -> Any:
        yield [chat]
        chat.add_message(UserMessage("b"))
        yield [chat]

    events = play(steps(), serve)
    assert {event["conversation_id"] for event in events} == {0}
    assert [event.get("content") for event in events] == ["a", "yes", "b", "yes"]
    assert [event.get("tokens") for event in events] == [10, None, 20 - 11, None]  # of what was not told before
    assert [event["message_index"] for event in events if event["role"] == "assistant"] == [1, 3]


def test_tasks_side_by_side_are_branches_and_those_of_branches_theirs() -> None:
    pair = [GenerationTask(input_str="a"), GenerationTask(input_str="b")]
    forked = tuple(GenerationTask(input_str=name) for name in "cd")
    events = play([pair, forked], serve)
    told = [(event["event_type"], event["branch_path"]) for event in events if event.get("role") != "user"]
    fork = [("parallel_start", []), ("message", [0]), ("message", [1]), ("parallel_end", [])]
    assert told == fork * 2
    assert len({event["conversation_id"] for event in events if "conversation_id" in event}) == 4


def test_a_compact_file_has_no_texts_and_a_full_one_has(tmp_path: Path) -> None:
    recorder = ExecutionRecorder(FakeClock())
    for task in recorder.watch([[GenerationTask(input_str="héllo")]]):
        serve(task[0])
    path = tmp_path / "trace.json"
    recorder.save(path, "request")
    compact = json.loads(path.read_text())
    recorder.save(path, "request", full=True)
    full = json.loads(path.read_text(encoding="utf-8"))
    assert compact["trace_id"] == full["trace_id"] == "request"
    assert {"content", "llm_duration_ms"} <= set().union(*full["events"]) - set().union(*compact["events"])
    assert full["events"][0]["content"] == "héllo"


def test_nothing_is_recorded_unless_it_is_asked_for() -> None:
    with ScaffoldingLlm(NativeGenerationController(), {"generation": ScriptedWorker("x")}) as llm:
        assert llm.generate("Question 17").execution is None
