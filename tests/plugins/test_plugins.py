"""The plugs against stand-ins for what they use of their harnesses; the harnesses themselves are under integration."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.errors import ConfigError, DatasetError, EngineError, TaskError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.plugins import behind_thinking
from scaffolding_ext.testing import Gate, ScriptedWorker


class Instance(NamedTuple):
    """A request of lm-evaluation-harness."""

    args: tuple[str, dict[str, Any]]
    task_name: str = "task"
    doc_id: int = 0


class Scored(NamedTuple):
    """A score of inspect_ai."""

    value: str


class Sample(NamedTuple):
    """A sample of inspect_ai, or of its log."""

    id: int
    scores: dict[str, Scored]


class Hook:
    """The harness's cache, which is told of each answer as it comes."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def add_partial(self, attribute: str, request: Any, answer: str) -> None:
        self.kept[request[0]] = answer


class LM:
    """The harness's base class."""

    def __init__(self) -> None:
        self.cache_hook = Hook()


def module(name: str, **attributes: Any) -> types.ModuleType:
    made = types.ModuleType(name)
    vars(made).update(attributes)
    return made


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a plug with stand-ins in the place of its harness."""
    plugs: list[str] = []

    def load(name: str, *modules: types.ModuleType) -> Any:
        for each in modules:
            monkeypatch.setitem(sys.modules, each.__name__, each)
        plugs.append(f"scaffolding_ext.plugins.{name}")
        sys.modules.pop(plugs[-1], None)
        return importlib.import_module(plugs[-1])

    yield load
    for plug in plugs:
        sys.modules.pop(plug, None)


@pytest.fixture
def lm_eval(imported: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    return imported(
        "lm_eval",
        *(module(name) for name in ("lm_eval", "lm_eval.api")),
        module("lm_eval.api.instance", Instance=Instance),
        module("lm_eval.api.model", LM=LM),
        module("lm_eval.api.registry", register_model=lambda name: lambda kind: kind),
    )


@pytest.fixture
def inspect_ai(imported: Any) -> Any:
    names = ("ChatMessage", "ChatMessageUser", "GenerateConfig", "ModelAPI", "ModelOutput", "ModelUsage")
    logs = {
        "plain.eval": types.SimpleNamespace(samples=[Sample(number, {"match": Scored("C")}) for number in range(300)])
    }
    return imported(
        "inspect_ai",
        module("inspect_ai"),
        module("inspect_ai.dataset", Sample=Sample),
        module("inspect_ai.log", EvalSpec=object, read_eval_log=logs.__getitem__),
        module(
            "inspect_ai.scorer", SampleScore=object, Score=Scored, value_to_float=lambda: lambda value: value == "C"
        ),
        module("inspect_ai.util", EarlyStop=types.SimpleNamespace, EarlyStopping=object),
        module("inspect_ai.model", **dict.fromkeys(names, object), modelapi=lambda name: lambda kind: kind),
        module("inspect_ai.solver", Generate=object, Solver=object, TaskState=object, solver=lambda name: lambda f: f),
        module("inspect_ai.tool", ToolChoice=object, ToolInfo=object),
    )


def host(reply: Any, before: Any = None) -> ScaffoldingLlm:
    return ScaffoldingLlm(NativeGenerationController(), {"generation": ScriptedWorker(reply, before=before)})


def test_answers_beside_one_that_fails_are_kept(lm_eval: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def reply(task: Any) -> Any:
        return EngineError("the engine is gone") if task.input_str == "q2" else f"<think>\n</think>\n{task.input_str}!#"

    with host(reply) as llm:
        monkeypatch.setattr(lm_eval, "load_stack", lambda config, overrides: llm)
        model = lm_eval.ScaffoldingExtLM("configs:native", ledger_path=str(tmp_path / "ledgers.jsonl"))
        requests = [Instance((f"q{number}", {"until": ["!#", "#"]}), doc_id=number) for number in range(6)]
        with pytest.raises(TaskError, match="the engine is gone"):
            model.generate_until(requests)
        assert model.cache_hook.kept == {f"q{number}": f"q{number}" for number in (0, 1, 3, 4, 5)}
        rows = [json.loads(line) for line in (tmp_path / "ledgers.jsonl").read_text().splitlines()]
        assert [row["doc_id"] for row in rows] == [0, 1, 3, 4, 5]
        assert model.generate_until(requests[:2]) == ["q0", "q1"]


@pytest.mark.parametrize(
    ("begins", "ends"), [("[THINK]", "[/THINK]"), ("analysis", "assistantfinal"), ("<|channel>thought", "<channel|>")]
)
def test_thinking_of_a_model_without_a_family_is_no_answer(begins: str, ends: str) -> None:
    with host(f"{begins}Perhaps 3.{ends}It is 4.") as llm:
        assert behind_thinking(llm.generate("2+2?")) == "It is 4."


def test_a_cancelled_sample_cancels_its_request(inspect_ai: Any) -> None:
    gate = Gate()

    async def run(llm: ScaffoldingLlm) -> None:
        result = llm.generate_async("2+2?")
        sample = asyncio.create_task(inspect_ai._ended(result))
        await asyncio.to_thread(gate.wait_for)
        sample.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sample
        await asyncio.to_thread(gate.wait_for_cancelled)

    with host("It is 4.", gate) as llm:
        asyncio.run(run(llm))


def stopped(inspect_ai: Any, goal: str, right: str, *, shuffled: bool = True) -> tuple[int, dict[str, Any]]:
    """Run 300 samples as inspect_ai does, one at a time; return how many ran, and what the log would say."""

    async def run() -> tuple[int, dict[str, Any]]:
        manager = inspect_ai.Until(goal)
        settings = types.SimpleNamespace(sample_shuffle=None)
        task = types.SimpleNamespace(dataset=types.SimpleNamespace(shuffled=shuffled), config=settings)
        await manager.start_task(task, [Sample(number, {}) for number in range(300)], 1)
        num_run = 0
        for number in range(300):
            if await manager.schedule_sample(number, 1) is None:
                num_run += 1
                score = types.SimpleNamespace(score=Scored(right[number % len(right)]))
                await manager.complete_sample(number, 1, {"match": score})
        return num_run, await manager.complete_task()

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("goal", "right", "conclusion"),
    [("±7", "CCCCI", "known"), ("vs plain.eval", "CI", "worse"), ("vs plain.eval ±5", "C", "within")],
)
def test_until_ends_a_task_of_inspect_ai(inspect_ai: Any, goal: str, right: str, conclusion: str) -> None:
    num_run, figures = stopped(inspect_ai, goal, right)
    assert figures["conclusion"] == conclusion
    assert figures["num_counted"] == num_run == 300 - figures["num_spared"] < 250


def test_until_refuses_samples_in_their_order_and_a_log_that_lacks_some(inspect_ai: Any) -> None:
    with pytest.raises(ConfigError, match="needs samples in random order: shuffle the dataset"):
        stopped(inspect_ai, "±2", "C", shuffled=False)
    inspect_ai.read_eval_log("plain.eval").samples.pop()
    with pytest.raises(DatasetError, match=r"plain\.eval has no score for 1 of the 300 samples, as '299'"):
        stopped(inspect_ai, "vs plain.eval", "C")
