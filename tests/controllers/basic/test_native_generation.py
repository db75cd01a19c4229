"""Plain generation: every sampling field can be set, a task's own values win, seeds, streaming, exit reasons."""

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.errors import ConfigError, NoOutputError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.sampling_params import SAMPLING_FIELDS
from scaffolding_ext.protocol import GenerationTask, TaskStatus, Worker
from scaffolding_ext.protocol.meta import PROBE, purpose_of
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.request.program import Program
from scaffolding_ext.testing import ScriptedWorker

VALUES = {
    "skip_tokenizer": (True, True),
    "skip_detokenizer": (True, True),
    "best_of": (2, 3),
    "echo": (True, True),
    "frequency_penalty": (0.5, 0.7),
    "logit_bias": ({"1": 2.0}, {"2": 1.0}),
    "num_logprobs": (3, 4),
    "max_tokens": (2, 3),
    "n": (2, 3),
    "presence_penalty": (0.5, -0.5),
    "seed": (11, 12),
    "stop": (["a"], "b"),
    "suffix": ("x", "y"),
    "temperature": (0.6, 0.0),
    "top_p": (0.9, 1.0),
    "user": ("me", "you"),
    "top_k": (5, 1),
    "min_tokens": (1, 2),
    "reasoning_effort": ("high", "low"),
    "ignore_eos": (True, True),
    "return_context_logits": (True, True),
}
"""For each field a value for the controller, and one that a task sets itself."""


def sent(controller, **options):
    """The task that reached the worker, and the request's result."""
    worker = ScriptedWorker(r"so \boxed{7}")
    with ScaffoldingLlm(controller, {"generation": worker}, **options) as llm:
        result = llm.generate("q", sample_id="s")
    return worker.tasks[0], result


def processed(controller, tasks):
    for work in controller.process(tasks):
        for task in work:
            task.output_str = "done"
    return tasks


def test_every_sampling_field_can_be_set_and_a_tasks_own_value_wins():
    assert set(VALUES) == SAMPLING_FIELDS
    lost = []
    for name, (value, own) in VALUES.items():
        task, _ = sent(NativeGenerationController({name: value}))
        (other,) = processed(NativeGenerationController({name: value}), [GenerationTask(input_str="q", **{name: own})])
        lost += [] if getattr(task, name) == value else [(name, getattr(task, name))]
        if name != "stop":  # a model that may think is not sent it
            lost += [] if getattr(other, name) == own else [(name, getattr(other, name))]
    assert not lost


@pytest.mark.parametrize("name", ["temprature", "input_str"])
def test_other_names_are_refused(name):
    with pytest.raises(
        ConfigError, match=f"has '{name}', which is not a sampling field; allowed: .*temperature"
    ) as caught:
        NativeGenerationController({name: 1})
    assert caught.value.key == "sampling_params"


def test_parameters_are_copied():
    params = {"temperature": 0.5}
    controller = NativeGenerationController(params)
    params["temperature"] = 0.9
    assert controller.sampling_params == {"temperature": 0.5}


def test_seeds_are_drawn_from_the_program():
    task, _ = sent(NativeGenerationController(), seed=3)
    assert task.seed == Program(3, "s").seeds.next()
    assert sent(NativeGenerationController())[0].seed is None
    assert sent(NativeGenerationController({"seed": 5}), seed=3)[0].seed == 5


@pytest.mark.parametrize("streaming", [True, False])
def test_streaming_sets_the_flag_of_the_task(streaming):
    task, _ = sent(NativeGenerationController(streaming=streaming))
    assert task.streaming_output_flag is streaming
    assert task.worker_tag is WorkerTag.GENERATION


@pytest.mark.parametrize(("max_tokens", "answer", "reason"), [(None, "7", "end"), (5, None, "length")])
def test_answer_and_exit_reason(max_tokens, answer, reason):
    _, result = sent(NativeGenerationController({"max_tokens": max_tokens}))
    assert (result.answer, result.exit_reason) == (answer, reason)
    assert result.outputs[0].text == r"so \boxed{7}"[:max_tokens]
    assert result.outputs[0].token_ids == [ord(c) for c in result.outputs[0].text]


def test_several_tasks_go_in_one_batch():
    tasks = [GenerationTask(input_str=str(i)) for i in range(3)]
    works = []
    for work in NativeGenerationController().process(tasks):
        works.append(list(work))
        for task in work:
            task.output_str = ""
    assert works == [tasks]


def test_a_worker_that_writes_nothing_is_an_error():
    class Silent(Worker):
        async def run_task(self, task):
            return TaskStatus.SUCCESS

    with ScaffoldingLlm(NativeGenerationController(), {"generation": Silent()}) as llm, pytest.raises(NoOutputError):
        llm.generate("q")


@pytest.mark.parametrize("max_tokens", [30, 41, 400])
@pytest.mark.parametrize("num_thinking", [None, 0, 39])
@pytest.mark.parametrize("own", [{}, {"max_tokens": 700}])
def test_a_requests_limit_holds_for_thinking_and_answer_together(max_tokens, num_thinking, own):
    closing = "" if num_thinking is None else "h" * num_thinking + "</think>"
    written = closing + "r" * 4000  # a model that never comes to an answer
    worker = ScriptedWorker(
        lambda task: "r" * 4000 if purpose_of(task) == PROBE else written[len(task.input_str) - 1 :]
    )
    with ScaffoldingLlm(NativeGenerationController(own), {"generation": worker}) as llm:
        result = llm.generate("q", thinking_budget=40, max_tokens=max_tokens)
    used_up = num_thinking is not None and max_tokens > 40  # a last answer of at most 64 tokens comes in addition
    decoded = result.program.ledger.total.decoded
    assert min(max_tokens, 40) <= decoded <= max_tokens + (64 if used_up else 0)


def test_the_controllers_own_limit_holds_beside_a_thinking_budget():
    worker = ScriptedWorker(lambda task: "r" * 4000)
    with ScaffoldingLlm(NativeGenerationController({"max_tokens": 50}), {"generation": worker}) as llm:
        assert llm.generate("q", thinking_budget=40).program.ledger.total.decoded == 50
        assert llm.generate("q", thinking_budget=50).program.ledger.total.decoded == 50
