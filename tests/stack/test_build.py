"""Stacks are built from their files, recursively; every error names the path of its key, and no worker is left over."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.errors import ConfigError, MissingDependencyError
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import Controller, GenerationTask
from scaffolding_ext.stack.build import build_stack, check_stack, load_stack
from scaffolding_ext.stack.load import load_config
from scaffolding_ext.testing import ScriptedWorker

NATIVE = "NativeGenerationController"
HERE = "stack_helpers"  # the module that `helpers` writes
HELPERS = """
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.errors import MissingDependencyError
from scaffolding_ext.protocol import Controller, TaskCollection, Worker, with_task_collection
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.testing import ScriptedWorker

shut_down = []

class Outer(BaseController):
    def __init__(self, generation_controller, others=(), sampling_params=None, **options):
        super().__init__()
        self.generation_controller, self.others = generation_controller, others
        self.sampling_params, self.options = sampling_params, options

class Plain(Controller):
    pass

class Patient(NativeGenerationController):
    def __init__(self, patience, **kwargs):
        super().__init__(**kwargs)

class Around(Worker):
    def __init__(self, inner):
        self.inner = inner

class NeedsDraft(BaseController):
    needs = Needs(tags=(WorkerTag.DRAFT,))

class NeedsVerdicts(BaseController):
    needs = Needs(tasks=((WorkerTag.GENERATION, VerifyTask),))

@with_task_collection("seen", TaskCollection)
class Observed(NativeGenerationController):
    pass

class Named(ScriptedWorker):
    def __init__(self, name="", model=None):
        super().__init__(name)
        self.name, self.model = name, model
        if name == "broken":
            raise OSError("no such engine")
        if name == "uninstalled":
            raise MissingDependencyError("torch", "hf")

    def shutdown(self):
        shut_down.append(self.name)
"""


@pytest.fixture
def helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / f"{HERE}.py").write_text(HELPERS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, HERE, raising=False)
    return importlib.import_module(HERE)


def stack(**changes: Any) -> dict[str, Any]:
    """A small valid stack."""
    return {
        "controller": {"type": "NativeGenerationController"},
        "workers": {"generation": {"type": "ScriptedWorker", "args": {"respond": "fine"}}},
    } | changes


def native(**args: Any) -> dict[str, Any]:
    return {"type": "NativeGenerationController", "args": args}


def named(name: str) -> dict[str, Any]:
    return {"type": f"{HERE}:Named", "args": {"name": name}}


def key_of(source: Any, overrides: tuple[str, ...] = (), references: Any = None) -> str:
    """The key that loading complains about."""
    with pytest.raises(ConfigError) as caught:
        load_stack(source, overrides, references).shutdown()
    assert str(caught.value).startswith(f"{caught.value.key}: ")
    return caught.value.key


# ---- building


def test_controllers_nest(helpers: Any) -> None:
    source = stack(
        controller={
            "type": f"{HERE}:Outer",
            "args": {
                "generation_controller": {"type": "DynasorCoTController", "args": {"chunk_size": 32}},
                "others": [native(), {"type": "NativeGenerationController"}],
                "plain": {"type_of": "x", "deep": {"generation_controller": native()}},
            },
        }
    )
    with load_stack(source) as llm:
        outer: Any = llm.prototype_controller
        assert isinstance(outer.generation_controller, DynasorCoTController)
        assert outer.generation_controller.schedule.chunk_size == 32
        assert [type(other) for other in outer.others] == [NativeGenerationController] * 2
        assert outer.options["plain"]["type_of"] == "x"
        assert isinstance(outer.options["plain"]["deep"]["generation_controller"], NativeGenerationController)


def test_references_stand_for_live_objects(helpers: Any) -> None:
    live = NativeGenerationController({"stop": ["x"]})
    source = stack(controller={"type": f"{HERE}:Outer", "args": {"generation_controller": {"$ref": "live"}}})
    with load_stack(source, references={"live": live}) as llm:
        inner = llm.prototype_controller.generation_controller  # type: ignore[attr-defined]
        assert inner.sampling_params is live.sampling_params  # the host's own clone of it


def test_a_referenced_function_scripts_a_worker() -> None:
    source = stack(workers={"generation": {"type": "ScriptedWorker", "args": {"respond": {"$ref": "echo"}}}})
    with load_stack(source, references={"echo": lambda task: task.input_str}) as llm:
        assert llm.generate("hello").outputs[0].text == "hello"


@pytest.mark.parametrize("reference", [{"$ref": "other"}, {"$ref": "live", "args": {}}])
def test_a_wrong_reference_names_its_key(helpers: Any, reference: dict[str, Any]) -> None:
    source = stack(controller={"type": f"{HERE}:Outer", "args": {"generation_controller": reference}})
    assert key_of(source, references={"live": 1}) == "controller.args.generation_controller"


def test_errors_inside_nested_components_name_the_full_path(helpers: Any) -> None:
    def outer(inner: dict[str, Any]) -> dict[str, Any]:
        return stack(controller={"type": f"{HERE}:Outer", "args": {"generation_controller": inner}})

    inside = "controller.args.generation_controller"
    dynasor = "DynasorCoTController"
    assert key_of(outer({"type": "Dynasor"})) == f"{inside}.type"
    assert key_of(outer({"type": dynasor, "arg": {}})) == f"{inside}.arg"
    assert key_of(outer({"type": dynasor, "args": 3})) == f"{inside}.args"
    assert key_of(outer({"type": dynasor, "args": {"chunksize": 3}})) == f"{inside}.args.chunksize"
    assert key_of(outer({"type": dynasor, "args": {"chunk_size": 0}})) == f"{inside}.args.chunk_size"
    assert key_of(outer({"type": "BudgetForcingController"})) == f"{inside}.args"
    assert key_of(stack(controller={"type": f"{HERE}:Outer"})) == "controller.args"


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("max_tokens", "foo", "int"),
        ("chunk_size", "8", "int | None"),
        ("streaming", 1, "bool"),
    ],
)
def test_a_scalar_argument_of_a_wrong_type_is_named(key: str, value: Any, expected: str) -> None:
    config = load_config(stack(controller={"type": "DynasorCoTController", "args": {key: value}}))
    with pytest.raises(ConfigError) as caught:
        check_stack(config)
    assert caught.value.key == f"controller.args.{key}"
    assert caught.value.message == f"is {value!r}; it must be of type {expected}"


@pytest.mark.parametrize(
    ("controller", "args", "key", "message"),
    [
        (
            "DynasorCoTController",
            {"probe": {"type": "AnswerProbe", "args": {"hedge_words": "wait"}}},
            "probe.args.hedge_words",
            "must be of type Sequence",
        ),
        (
            NATIVE,
            {"sampling_params": {"temperature": "hot"}},
            "sampling_params.temperature",
            "hot",
        ),
        ("DynasorCoTController", {"max_tokens": 0}, "max_tokens", "at least 1"),
    ],
)
def test_a_wrong_value_is_found_without_a_worker(controller: str, args: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        check_stack(load_config(stack(controller={"type": controller, "args": args})))
    assert caught.value.key == f"controller.args.{key}"


@pytest.mark.parametrize(
    ("key", "value"), [("base_url", "localhost:8000"), ("flavor", "vlm"), ("max_retries", -1), ("timeout_seconds", 0)]
)
def test_a_worker_that_no_server_would_have_is_found_without_asking_one(key: str, value: Any) -> None:
    pytest.importorskip("openai")
    args = {"base_url": "http://localhost:1/v1", "model": "m", key: value}
    with pytest.raises(ConfigError) as caught:
        check_stack(load_config(stack(workers={"generation": {"type": "OpenAIWorker", "args": args}})))
    assert caught.value.key == f"workers.generation.args.{key}"


@pytest.mark.parametrize("name", ["os:getcwd", "os:system", "collections:OrderedDict", f"{HERE}:Named"])
def test_what_is_no_controller_is_not_called(name: str, helpers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getcwd", lambda: pytest.fail("it was called"))
    with pytest.raises(ConfigError, match="not a subclass of Controller, so not a controller") as caught:
        load_stack(stack(controller={"type": name}))
    assert caught.value.key == "controller.type"
    with pytest.raises(ConfigError, match="not a subclass of Worker, so not a worker") as caught:
        load_stack(stack(workers={"generation": {"type": "os:getcwd"}}))
    assert caught.value.key == "workers.generation.type"


def test_sampling_reaches_a_controller_that_a_task_collection_observes(helpers: Any) -> None:
    with load_stack(stack(controller={"type": f"{HERE}:Observed"}, sampling={"top_p": 0.5})) as llm:
        assert llm.prototype_controller.sampling_params == {"top_p": 0.5}  # type: ignore[attr-defined]


def test_a_failing_constructor_is_a_config_error_at_its_path(helpers: Any) -> None:
    with pytest.raises(ConfigError, match="OSError: no such engine") as caught:
        load_stack(stack(workers={"generation": named("broken")}))
    assert caught.value.key == "workers.generation.args"
    assert isinstance(caught.value.__cause__, OSError)


def test_a_missing_package_keeps_its_own_error(helpers: Any) -> None:
    with pytest.raises(MissingDependencyError):
        load_stack(stack(workers={"generation": named("uninstalled")}))


def test_checking_finds_what_a_worker_needs_and_nobody_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = {"type": "HuggingFaceWorker", "args": {"model": "tinylm/draft"}}
    config = load_config(stack(workers={"generation": worker}))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingDependencyError) as caught:
        check_stack(config)
    assert str(caught.value) == (
        "torch is not installed; in a clone of the repository, install it with: pip install '.[hf]'"
    )
    check_stack(load_config(stack()))


def test_a_class_built_on_such_a_worker_needs_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from scaffolding_ext import HuggingFaceWorker\nclass Mine(HuggingFaceWorker):\n    pass\n"
    (tmp_path / "my_worker.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    config = load_config(stack(workers={"generation": {"type": "my_worker:Mine", "args": {"model": "tinylm/draft"}}}))
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingDependencyError, match="transformers is not installed"):
        check_stack(config)


def test_checking_builds_nothing(helpers: Any) -> None:
    check_stack(load_config(stack(workers={"generation": named("broken")})))
    with pytest.raises(ConfigError, match="accepts: name, model"):
        check_stack(load_config(stack(workers={"generation": {"type": f"{HERE}:Named", "args": {"nme": ""}}})))


@pytest.mark.parametrize("inside", [False, True])
def test_checking_finds_the_worker_that_is_missing_however_deep(inside: bool, helpers: Any) -> None:
    controller: dict[str, Any] = {"type": f"{HERE}:NeedsDraft"}
    if inside:
        controller = {"type": f"{HERE}:Outer", "args": {"generation_controller": controller}}
    with pytest.raises(ConfigError, match="NeedsDraft needs a worker 'draft'; the stack has: generation") as caught:
        check_stack(load_config(stack(controller=controller)))
    assert caught.value.key == "workers"


# ---- shutting down


def test_the_host_owns_its_workers(helpers: Any) -> None:
    load_stack(stack(workers={"generation": named("a"), "draft": named("b")})).shutdown()
    assert sorted(helpers.shut_down) == ["a", "b"]


@pytest.mark.parametrize("failing", ["broken", "uninstalled"])
def test_workers_already_built_are_shut_down_when_a_later_one_fails(helpers: Any, failing: str) -> None:
    workers = {"generation": named("a"), "draft": named("b"), "target": named(failing)}
    with pytest.raises((ConfigError, MissingDependencyError)):
        load_stack(stack(workers=workers))
    assert helpers.shut_down == ["b", "a"]


def test_workers_are_shut_down_once_when_the_controller_cannot_be_bound(helpers: Any) -> None:
    source = stack(controller={"type": f"{HERE}:NeedsVerdicts"}, workers={"generation": named("a")})
    with pytest.raises(ConfigError, match="Named cannot serve VerifyTask, which NeedsVerdicts needs"):
        load_stack(source)
    assert helpers.shut_down == ["a"]


def test_one_config_can_be_built_twice() -> None:
    config = load_config(stack(controller=native(sampling_params={"stop": ["x"]})))
    with build_stack(config) as first, build_stack(config) as second:
        assert first.prototype_controller is not second.prototype_controller
        first.prototype_controller.sampling_params["stop"].append("y")  # type: ignore[attr-defined]
        assert second.prototype_controller.sampling_params == {"stop": ["x"]}  # type: ignore[attr-defined]


# ---- sampling


def test_sampling_reaches_the_innermost_controllers_and_their_own_values_win(helpers: Any) -> None:
    source = stack(
        controller={
            "type": f"{HERE}:Outer",
            "args": {
                "generation_controller": native(),
                "others": [native(sampling_params={"temperature": 0.1})],
            },
        },
        sampling={"temperature": 0.9, "top_p": 0.5},
    )
    with load_stack(source) as llm:
        outer: Any = llm.prototype_controller
        assert outer.sampling_params is None  # it takes them, but is not innermost
        assert outer.generation_controller.sampling_params == {"temperature": 0.9, "top_p": 0.5}
        assert outer.others[0].sampling_params == {"temperature": 0.1, "top_p": 0.5}


def test_an_unknown_sampling_field_names_the_key() -> None:
    assert key_of(stack(sampling={"temprature": 0.5})) == "sampling"


# ---- prompting


DRAFT, TARGET = "tinylm/draft", "tinylm/target"


def modelled(**tags: str) -> dict[str, Any]:
    return {tag: {"type": f"{HERE}:Named", "args": {"model": model}} for tag, model in tags.items()}


def prompting_of(source: Any) -> Any:
    with load_stack(source) as llm:
        return llm.prototype_controller.prompting  # type: ignore[attr-defined]


def written_by(prompting: Prompting) -> str | None:
    task = GenerationTask(input_str="Hi")
    prompting.apply(task)
    return task.input_str


def test_prompting_is_what_the_stack_says(helpers: Any) -> None:
    prompt = {"model": DRAFT, "family": "deepseek_r1", "system_prompt": "Think."}
    prompting = prompting_of(stack(workers=modelled(generation="elsewhere"), prompt=prompt))
    assert prompting.family is family_named("deepseek_r1")
    assert "Think." in str(written_by(prompting))
    untemplated = stack(workers=modelled(generation=TARGET), prompt={"chat_template": False})
    assert written_by(prompting_of(untemplated)) == "Hi"


def test_a_worker_without_a_model_gets_prompts_as_they_are() -> None:
    assert prompting_of(stack()) is None


def test_an_explicit_null_means_no_prompting_and_warns(helpers: Any) -> None:
    with pytest.warns(UserWarning, match=r"prompts reach 'tinylm/target' unchanged"):
        assert prompting_of(stack(workers=modelled(generation=TARGET), prompt=None)) is None


def test_a_prompt_that_cannot_be_applied_is_refused(helpers: Any) -> None:
    assert key_of(stack(prompt={"assistant_prefix": "<think>"})) == "prompt.assistant_prefix"  # it has no template
    assert key_of(stack(prompt={"family": "gpt"})) == "prompt.family"
    assert key_of(stack(controller={"type": f"{HERE}:Plain"}, prompt={"model": DRAFT})) == "prompt"
    assert key_of(stack(prompt={"model": "/no/such/folder"})) == "prompt.model"
    templateless = {"model": DRAFT, "system_prompt": "Think.", "chat_template": False}
    assert key_of(stack(prompt=templateless)) == "prompt.system_prompt"


def test_a_family_is_checked_before_a_worker_is_built(helpers: Any) -> None:
    with pytest.raises(ConfigError, match="unknown prompt family 'gpt'"):
        check_stack(load_config(stack(workers={"generation": named("broken")}, prompt={"family": "gpt"})))


def test_foreign_controllers_get_no_prompting(helpers: Any) -> None:
    with load_stack(stack(controller={"type": f"{HERE}:Plain"}, workers=modelled(generation="unloadable"))) as llm:
        assert isinstance(llm.prototype_controller, Controller)


def test_a_model_that_has_no_tokenizer_is_refused_and_its_worker_shut_down(helpers: Any) -> None:
    with pytest.raises(ConfigError, match=r"Named serves '/no/such/folder', but the tokenizer .* `prompt`") as caught:
        load_stack(stack(workers=modelled(generation="/no/such/folder")))
    assert caught.value.key == "prompt"
    assert helpers.shut_down == [""]


def test_a_missing_model_folder_is_the_workers_error() -> None:
    pytest.importorskip("torch")
    worker = {"type": "HuggingFaceWorker", "args": {"model": "/no/such/folder"}}
    assert key_of(stack(workers={"generation": worker})) == "workers.generation.args.model"


def test_workers_nest_in_workers() -> None:
    source = stack(workers={"generation": {"type": "ScriptedWorker", "args": {"respond": {"type": "ScriptedWorker"}}}})
    assert key_of(source) == "workers.generation.args.respond.args"
    source["workers"]["generation"]["args"]["respond"]["args"] = {"respond": "inner"}
    with load_stack(source) as llm:
        assert isinstance(llm.workers["generation"], ScriptedWorker)
