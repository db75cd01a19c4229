"""Inherited by every controller: cheap clones, binding to workers, branches for several tasks."""

import contextvars
from enum import Enum
from typing import ClassVar

import pytest

from scaffolding_ext.controllers.base import BaseController, finish
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.controllers.prompting import encode, prompt_family
from scaffolding_ext.errors import ConfigError, NoOutputError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, TaskCollection, Worker, with_task_collection
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.request.program import current_program, record
from scaffolding_ext.testing import ScriptedWorker


class Uncopyable:
    def __deepcopy__(self, memo):
        raise AssertionError("a clone must not copy this")

    __copy__ = __reduce__ = __deepcopy__


class Leaf(BaseController):
    def __init__(self):
        super().__init__()
        self.large = Uncopyable()

    def run(self, task, suffix="", **kwargs):
        record("leaf", prompt=task.input_str, suffix=suffix)
        piece = GenerationTask(worker_tag=WorkerTag.GENERATION, input_str=task.input_str)
        yield [piece]
        finish(task, piece.output_str + suffix, piece.output_tokens, answer=suffix, exit_reason="leaf")


class Outer(BaseController):
    needs = Needs(tags=())

    def __init__(self, inner, reward=None):
        super().__init__()
        self.inner = inner
        self.reward = reward
        self.settings = {"list": [Uncopyable()]}

    def process(self, tasks, **kwargs):
        yield from self.inner.process(tasks, **kwargs)


class Scorer(BaseController):
    needs = Needs(
        tags=(WorkerTag.GENERATION, WorkerTag.REWARD),
        tasks=((WorkerTag.GENERATION, ScoreTask), (WorkerTag.REWARD, ScoreTask)),
    )


class PlainWorker(ScriptedWorker):
    task_handlers: ClassVar = {GenerationTask: ScriptedWorker.task_handlers[GenerationTask]}


# ---- clone


def test_clone_shares_attributes_and_clones_sub_controllers():
    controller = Outer(Outer(Leaf()))
    twin = controller.clone()
    assert type(twin) is Outer
    assert twin is not controller
    assert twin.settings is controller.settings
    assert twin.inner is not controller.inner
    assert twin.inner.inner is not controller.inner.inner
    assert twin.inner.inner.large is controller.inner.inner.large
    twin.settings = {}
    twin.inner.reward = 5
    assert (controller.settings != {}, controller.inner.reward) == (True, None)


def test_clone_copies_task_collections():
    class Seen(TaskCollection):
        def __init__(self):
            super().__init__()
            self.tasks = []

        def after_yield(self, tasks):
            self.tasks += tasks

    controller = with_task_collection("seen", Seen)(type("Observed", (Leaf,), {}))()
    twin = controller.clone()
    twin.task_collections["seen"].tasks.append(1)
    assert controller.task_collections["seen"].tasks == []


def test_clones_of_a_bound_controller_are_bound():
    controller = Outer(Leaf())
    controller.bind({"generation": ScriptedWorker("")})
    assert controller.clone().inner.can_serve(WorkerTag.GENERATION, StreamGenerationTask)


# ---- bind


def test_unbound_only_plain_generation_is_assumed():
    controller = Leaf()
    assert controller.can_serve(WorkerTag.GENERATION, GenerationTask)
    assert not controller.can_serve(WorkerTag.GENERATION, StreamGenerationTask)
    assert not controller.can_serve(WorkerTag.REWARD, ScoreTask)


@pytest.mark.parametrize("key", [WorkerTag.GENERATION, "generation"])
def test_bind_learns_what_the_workers_serve(key):
    able, plain = Leaf(), Leaf()
    able.bind({key: ScriptedWorker("")})
    plain.bind({key: PlainWorker("")})
    assert able.can_serve(WorkerTag.GENERATION, StreamGenerationTask)
    assert not plain.can_serve(WorkerTag.GENERATION, StreamGenerationTask)
    assert plain.can_serve(WorkerTag.GENERATION, GenerationTask)


class UpstreamTag(Enum):
    """As upstream's controllers have one each: its members equal neither our tags nor their values."""

    GENERATION = "generation"
    REWARD = "reward"


def test_a_bound_controllers_tasks_carry_the_keys_that_the_workers_have():
    """Upstream's host looks a tag up in the dict that it was given, where no other enum's member is found."""
    workers = {UpstreamTag.GENERATION: ScriptedWorker("text")}
    controller = NativeGenerationController()
    for expected in (WorkerTag.GENERATION, UpstreamTag.GENERATION):
        (task,) = contextvars.copy_context().run(next, controller.clone().generate("q"))
        assert task.worker_tag is expected
        controller.bind(workers)
    with ScaffoldingLlm(controller, workers) as llm:
        assert llm.generate("q").outputs[0].text == "text"


def test_capabilities_are_those_of_the_worker_object():
    class Wrapping(Worker):
        def __init__(self, inner):
            self.task_handlers = inner.task_handlers
            self.max_seq_len = 100

    controller = Leaf()
    controller.bind({"generation": Wrapping(PlainWorker(""))})
    assert not controller.can_serve(WorkerTag.GENERATION, StreamGenerationTask)
    controller.bind({"generation": Wrapping(ScriptedWorker(""))})
    assert controller.can_serve(WorkerTag.GENERATION, StreamGenerationTask)
    task = GenerationTask(input_tokens=[0] * 30)
    assert controller.budget_within_context(WorkerTag.GENERATION, task, budget=90, reserved=10) == 60


def test_a_second_host_on_a_controller_changes_nothing_in_the_first():
    class Asking(BaseController):
        def run(self, task, **kwargs):
            yield []
            finish(task, str(self.can_serve(WorkerTag.GENERATION, StreamGenerationTask)), None)

    controller = Asking()
    with (
        ScaffoldingLlm(controller, {"generation": ScriptedWorker("")}) as streaming,
        ScaffoldingLlm(controller, {"generation": PlainWorker("")}) as plain,
    ):
        assert [llm.generate("q").outputs[0].text for llm in (streaming, plain, streaming)] == ["True", "False", "True"]
    assert not controller.can_serve(WorkerTag.GENERATION, StreamGenerationTask)


def test_bind_learns_of_a_compare_worker_that_nobody_requires():
    controller = Leaf()
    controller.bind({"generation": PlainWorker(""), WorkerTag.COMPARE: ScriptedWorker("")})
    assert controller.can_serve(WorkerTag.COMPARE, ScoreTask)


def test_a_missing_worker_refuses_the_stack():
    with pytest.raises(ConfigError, match="Scorer needs a worker 'reward'; the stack has: draft, generation") as caught:
        Scorer().bind({"generation": ScriptedWorker(""), WorkerTag.DRAFT: ScriptedWorker("")})
    assert caught.value.key == "workers"
    with pytest.raises(ConfigError, match="the stack has: none"):
        Leaf().bind({})


@pytest.mark.parametrize("wrap", [lambda controller: controller, Outer, lambda c: Outer(Leaf(), reward=Outer(c))])
def test_an_unserved_task_refuses_the_stack_however_deep(wrap):
    with pytest.raises(ConfigError, match="PlainWorker cannot serve ScoreTask, which Scorer needs") as caught:
        wrap(Scorer()).bind({"generation": ScriptedWorker(""), "reward": PlainWorker("")})
    assert caught.value.key == "workers.reward"


# ---- process and generate


def test_several_tasks_run_in_branches_with_the_same_arguments():
    class Split(BaseController):
        def __init__(self):
            super().__init__()
            self.inner = Leaf()

        def run(self, task, **kwargs):
            tasks = [GenerationTask(input_str=f"{task.input_str}{i}") for i in range(3)]
            yield from self.inner.process(tasks, **kwargs)
            yield from self.inner.process([], **kwargs)
            task.output_str = "|".join(t.output_str for t in tasks)

    with ScaffoldingLlm(Split(), {"generation": ScriptedWorker(lambda task: task.input_str.upper())}) as llm:
        result = llm.generate("q", suffix="!")
    assert result.outputs[0].text == "Q0!|Q1!|Q2!"
    seen = sorted((event["branch"], event["prompt"], event["suffix"]) for event in result.program.trace)
    assert seen == [([0], "q0", "!"), ([1], "q1", "!"), ([2], "q2", "!")]


def test_the_completion_carries_answer_and_exit_reason():
    with ScaffoldingLlm(Leaf(), {"generation": ScriptedWorker("text")}) as llm:
        result = llm.generate("q", suffix="7")
    assert (result.outputs[0].text, result.answer, result.exit_reason) == ("text7", "7", "leaf")


def test_a_controller_must_implement_something_and_give_an_output():
    class Silent(BaseController):
        def run(self, task, **kwargs):
            yield []

    def exhaust(controller):  # in a context of its own: what `generate` opens without a host stays open
        contextvars.copy_context().run(list, controller.generate("q"))

    with pytest.raises(TypeError, match=r"BaseController must implement run\(\) or process\(\)"):
        exhaust(BaseController())
    with pytest.raises(NoOutputError, match="Silent ended without an output"):
        exhaust(Silent().clone())


def test_family_and_encoding_are_those_of_the_requests_prompting():
    class Asking(BaseController):
        def run(self, task, **kwargs):
            yield []
            assert current_program().question.prompting is self.prompting
            finish(task, str(family_named("tinylm") is prompt_family()), encode("</think>"))

    controller = Asking()
    with ScaffoldingLlm(controller, {"generation": ScriptedWorker("")}) as llm:
        plain = llm.generate("q").outputs[0]
        llm.prototype_controller.prompting = Prompting.for_model("tinylm/draft")
        prompted = llm.generate("q").outputs[0]
    assert (plain.text, plain.token_ids) == ("False", None)
    assert (prompted.text, len(prompted.token_ids)) == ("True", 1)
    assert prompt_family() is family_named("deepseek_r1")  # outside any request
    assert encode("x") is None


@pytest.mark.parametrize("hold", [list, tuple, lambda subs: dict(enumerate(subs))])
def test_sub_controllers_in_a_container_are_cloned_bound_and_asked_for_their_workers(hold):
    class Holding(BaseController):
        needs = Needs(tags=())

        def __init__(self):
            super().__init__()
            self.subs = hold([Leaf(), Leaf()])

    controller = Holding()
    twin = controller.clone()
    held = [list(each.subs.values()) if isinstance(each.subs, dict) else list(each.subs) for each in (controller, twin)]
    assert type(twin.subs) is type(controller.subs)
    assert not {*map(id, held[0])} & {*map(id, held[1])}
    twin.bind({"generation": ScriptedWorker("")})
    assert [leaf.can_serve(WorkerTag.GENERATION, StreamGenerationTask) for leaf in held[1]] == [True, True]
    with pytest.raises(ConfigError, match="needs a worker 'generation'"):
        controller.check_roles({})
