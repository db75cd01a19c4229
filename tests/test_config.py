"""Stack files are validated, built recursively, and every error names the path of its key."""

from __future__ import annotations

import importlib
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from scaffolding_ext.config import load_config
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.native_generation import NativeGenerationController
from scaffolding_ext.errors import ConfigError, MissingDependencyError, UnknownNameError
from scaffolding_ext.prompting import Prompting
from scaffolding_ext.protocol import Controller
from scaffolding_ext.stack import build_stack, check_stack, load_stack
from scaffolding_ext.testing import ScriptedWorker

HERE = "config_helpers"  # the module that `helpers` writes
HELPERS = """
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.errors import MissingDependencyError
from scaffolding_ext.protocol import Controller
from scaffolding_ext.tasks import WorkerTag
from scaffolding_ext.testing import ScriptedWorker

shut_down = []

class Outer(BaseController):
    def __init__(self, generation_controller, others=(), sampling_params=None, **options):
        super().__init__()
        self.generation_controller, self.others = generation_controller, others
        self.sampling_params, self.options = sampling_params, options

class Plain(Controller):
    pass

class NeedsDraft(BaseController):
    required_tags = (WorkerTag.DRAFT,)

class Named(ScriptedWorker):
    def __init__(self, name="", model=None):
        super().__init__(name)
        self.name = name
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


# ---- reading


def test_a_stack_file_runs(tmp_path: Path) -> None:
    path = tmp_path / "stack.yaml"
    path.write_text(yaml.safe_dump(stack(seed=3, max_parallel_requests=2)))
    with load_stack(path) as llm:
        assert llm.generate("hello").outputs[0].text == "fine"
        assert (llm.seed, llm.max_parallel_requests, llm.owns_workers) == (3, 2, True)


@pytest.mark.parametrize("name", ["native", "dynasor_cot", "budget_forcing"])
def test_every_packaged_stack_is_valid(name: str) -> None:
    config = load_config(f"configs:{name}")
    assert config.workers["generation"].args["model"] == "tinylm/target"
    check_stack(
        config.model_copy(update={"workers": load_config(stack()).workers})
    )  # the worker itself may need an extra


def test_an_unknown_packaged_stack_lists_the_known() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'native'.*budget_forcing, dynasor_cot, native"):
        load_config("configs:nativ")


@pytest.mark.parametrize(("text", "message"), [("a: [", "no valid YAML"), ("- a", "no mapping"), ("", "no mapping")])
def test_a_file_that_is_no_stack_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "stack.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(path)


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the stack file .*none\.yaml"):
        load_config(tmp_path / "none.yaml")


@pytest.mark.parametrize("name", ["dynasor_cot", "dynasor_cot.yaml", "dynasorcot", "configs/dynasor_cot.yml"])
def test_a_packaged_name_without_its_prefix_is_recognised(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"did you mean configs:dynasor_cot\?"):
        load_config(name)


def test_floats_in_scientific_notation_are_floats(tmp_path: Path) -> None:
    path = tmp_path / "stack.yaml"
    path.write_text(
        textwrap.dedent("""
        controller: {type: NativeGenerationController, args: {sampling_params: {temperature: 1e-3, top_p: 5E-1}}}
        workers: {generation: {type: ScriptedWorker, args: {respond: 1e3x}}}
        """)
    )
    config = load_config(path)
    assert config.controller.args["sampling_params"] == {"temperature": 0.001, "top_p": 0.5}
    assert config.workers["generation"].args["respond"] == "1e3x"


@pytest.mark.parametrize(
    ("changes", "key", "message"),
    [
        ({"worker": {}}, "worker", "did you mean 'workers'"),
        ({"controller": {"type": "X", "arg": {}}}, "controller.arg", "did you mean 'args'"),
        ({"controller": {"args": {}}}, "controller.type", "required"),
        ({"workers": {"generation": {"type": 3}}}, "workers.generation.type", "string, but it is 3"),
        ({"workers": {}}, "workers", "at least 1"),
        ({"prompt": {"famly": "x"}}, "prompt.famly", "family"),
        ({"seed": "one"}, "seed", "integer"),
        ({"max_parallel_requests": 0}, "max_parallel_requests", "greater than or equal to 1"),
        ({"dataset": {"source": "a", "num_samples": 0}}, "dataset.num_samples", "greater than or equal to 1"),
    ],
)
def test_a_wrong_key_or_value_is_named(changes: dict[str, Any], key: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_config(stack(**changes))
    assert caught.value.key == key


def test_every_error_of_a_file_is_told() -> None:
    with pytest.raises(ConfigError, match=r"seed: .*max_parallel_requests: "):
        load_config(stack(seed="x", max_parallel_requests=-1))


def test_a_plain_string_is_a_dataset() -> None:
    dataset = load_config(stack(dataset="problems.jsonl")).dataset
    assert dataset is not None
    assert dataset.source == "problems.jsonl"


# ---- overrides


def test_overrides_set_keys_and_values_are_yaml() -> None:
    source = stack(controller={"type": "DynasorCoTController", "args": {"chunk_size": 64}})
    overrides = (
        "controller.args.chunk_size=32",
        "controller.args.sampling_params.temperature=0.5",
        "controller.args.hedge_words=[wait, hmm]",
        "workers.generation.args.respond=a=b",
        "seed=7",
    )
    config = load_config(source, overrides)
    assert config.controller.args == {
        "chunk_size": 32,
        "sampling_params": {"temperature": 0.5},
        "hedge_words": ["wait", "hmm"],
    }
    assert (config.workers["generation"].args["respond"], config.seed) == ("a=b", 7)
    assert source == stack(controller={"type": "DynasorCoTController", "args": {"chunk_size": 64}})


def test_overrides_reach_into_lists_and_shorthands() -> None:
    source = stack(controller={"type": "X", "args": {"items": [1, {"a": 2}]}}, dataset="tinylm:held_out")
    config = load_config(source, ("controller.args.items.0=5", "controller.args.items.1.a=6", "dataset.num_samples=9"))
    assert config.controller.args["items"] == [5, {"a": 6}]
    assert config.dataset is not None
    assert (config.dataset.source, config.dataset.num_samples) == ("tinylm:held_out", 9)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed", "not of the form"),
        ("=3", "not of the form"),
        ("controller..args=3", "not of the form"),
        ("seed=[", "no valid YAML"),
        ("controller.type.name=3", "cannot be set inside"),
        ("sed=3", "did you mean 'seed'"),
    ],
)
def test_a_wrong_override_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(stack(), (override,))


def test_a_list_index_outside_the_list_is_refused() -> None:
    with pytest.raises(ConfigError, match="no index of a list with 1 entries"):
        load_config(stack(controller={"type": "X", "args": {"items": [1]}}), ("controller.args.items.1=5",))


def test_the_effective_stack_can_be_written_and_read_again(tmp_path: Path) -> None:
    config = load_config("configs:dynasor_cot", ("seed=5", "dataset=problems.jsonl"))
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml())
    assert load_config(path) == config


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
        assert outer.generation_controller.chunk_size == 32
        assert [type(other) for other in outer.others] == [NativeGenerationController] * 2
        assert outer.options["plain"]["type_of"] == "x"
        assert isinstance(outer.options["plain"]["deep"]["generation_controller"], NativeGenerationController)


def test_references_stand_for_live_objects(helpers: Any) -> None:
    live = NativeGenerationController()
    source = stack(controller={"type": f"{HERE}:Outer", "args": {"generation_controller": {"$ref": "live"}}})
    with load_stack(source, references={"live": live}) as llm:
        assert llm.prototype_controller.generation_controller is live  # type: ignore[attr-defined]


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


def test_wrong_arguments_list_the_accepted_ones() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'respond'.*accepts: respond, before, metered"):
        load_stack(stack(workers={"generation": {"type": "ScriptedWorker", "args": {"respnd": "x"}}}))
    with pytest.raises(ConfigError, match=r"needs 'max_thinking_tokens'; it accepts: .*max_answer_tokens"):
        load_stack(stack(controller={"type": "BudgetForcingController"}))


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("max_tokens", "foo", "int"),
        ("max_tokens", 1.5, "int"),
        ("max_tokens", True, "int"),
        ("max_tokens", None, "int"),
        ("max_tokens", [8], "int"),
        ("first_probe", "8", "int | None"),
        ("window_share", "half", "float"),
        ("streaming", 1, "bool"),
        ("effort", 3, "str | None"),
    ],
)
def test_a_scalar_argument_of_a_wrong_type_is_named(key: str, value: Any, expected: str) -> None:
    config = load_config(stack(controller={"type": "DynasorCoTController", "args": {key: value}}))
    with pytest.raises(ConfigError) as caught:
        check_stack(config)
    assert caught.value.key == f"controller.args.{key}"
    assert caught.value.message == f"is {value!r}; it must be of type {expected}"


def test_an_integer_is_a_float_and_what_is_no_scalar_is_left_to_the_constructor(helpers: Any) -> None:
    args = {"window_share": 1, "first_probe": None, "effort": "mild", "sampling_params": {"temperature": 1}}
    check_stack(load_config(stack(controller={"type": "DynasorCoTController", "args": args})))
    args = {"generation_controller": native(), "others": 3, "more": "x"}
    check_stack(load_config(stack(controller={"type": f"{HERE}:Outer", "args": args})))
    helpers.Named.__init__.__annotations__.update(name=str, model="int | None")  # a class, and a text
    with pytest.raises(ConfigError, match=r"workers.generation.args.name: is 3; it must be of type str"):
        check_stack(load_config(stack(workers={"generation": {"type": f"{HERE}:Named", "args": {"name": 3}}})))
    reference = {"generation": {"type": f"{HERE}:Named", "args": {"name": {"$ref": "live"}}}}
    check_stack(load_config(stack(workers=reference)), {"live": object()})


def test_an_unknown_type_keeps_its_error_class() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'NativeGenerationController'") as caught:
        load_stack(stack(controller={"type": "NativeController"}))
    assert caught.value.key == "controller.type"


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
        "torch is not installed; install it with: pip install 'scaffolding-ext[hf]', "
        "or in a clone of the repository: pip install '.[hf]'"
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
    source = stack(controller={"type": f"{HERE}:NeedsDraft"}, workers={"generation": named("a")})
    with pytest.raises(ConfigError, match="needs a worker 'draft'; the stack has: generation"):
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


def test_sampling_is_not_given_to_controllers_that_take_none(helpers: Any) -> None:
    with load_stack(stack(controller={"type": f"{HERE}:Plain"}, sampling={"top_p": 0.5})) as llm:
        assert type(llm.prototype_controller).__name__ == "Plain"


def test_an_unknown_sampling_field_names_the_key() -> None:
    assert key_of(stack(sampling={"temprature": 0.5})) == "sampling"


# ---- prompting


@pytest.fixture
def prompted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Records what prompting is asked for, in place of loading tokenizers."""
    calls: list[tuple[Any, ...]] = []

    def for_model(model: str, family: str | None = None, **options: Any) -> Any:
        calls.append((model, family, options))
        if model == "unloadable":
            raise OSError("no tokenizer")
        return object.__new__(Prompting)

    monkeypatch.setattr(Prompting, "for_model", for_model)
    return calls


def modelled(**tags: str) -> dict[str, Any]:
    return {tag: {"type": f"{HERE}:Named", "args": {"model": model}} for tag, model in tags.items()}


def test_prompting_takes_the_generation_workers_model(helpers: Any, prompted: list[tuple[Any, ...]]) -> None:
    with load_stack(stack(workers=modelled(draft="small", generation="large"))) as llm:
        assert isinstance(llm.prototype_controller, BaseController)
        assert isinstance(llm.prototype_controller.prompting, Prompting)
    assert prompted == [("large", None, {"system_prompt": None, "chat_template": True})]


def test_prompting_is_what_the_stack_says(helpers: Any, prompted: list[tuple[Any, ...]]) -> None:
    prompt = {"model": "other", "family": "tinylm", "system_prompt": "Think.", "chat_template": False}
    load_stack(stack(workers=modelled(generation="large"), prompt=prompt)).shutdown()
    assert prompted == [("other", "tinylm", {"system_prompt": "Think.", "chat_template": False})]


@pytest.mark.parametrize("changes", [{}, {"prompt": None}])
def test_no_model_or_an_explicit_null_means_no_prompting(
    helpers: Any, prompted: list[tuple[Any, ...]], changes: dict[str, Any]
) -> None:
    workers = modelled(generation="large") if changes else stack()["workers"]
    with load_stack(stack(workers=workers, **changes)) as llm:
        assert llm.prototype_controller.prompting is None  # type: ignore[attr-defined]
    assert prompted == []


def test_a_prompt_that_cannot_be_applied_is_refused(helpers: Any, prompted: list[tuple[Any, ...]]) -> None:
    assert key_of(stack(prompt={"family": "tinylm"})) == "prompt.model"
    assert key_of(stack(controller={"type": f"{HERE}:Plain"}, prompt={"model": "a"})) == "prompt"
    assert key_of(stack(workers=modelled(generation="unloadable"))) == "prompt.model"


def test_foreign_controllers_get_no_prompting(helpers: Any, prompted: list[tuple[Any, ...]]) -> None:
    with load_stack(stack(controller={"type": f"{HERE}:Plain"}, workers=modelled(generation="large"))) as llm:
        assert isinstance(llm.prototype_controller, Controller)
    assert prompted == []


def test_an_unknown_embedded_model_names_its_section(helpers: Any) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(ConfigError, match="unknown embedded model") as caught:
        load_stack(stack(workers=modelled(generation="tinylm/none")))
    assert caught.value.key == "prompt"


def test_workers_nest_in_workers() -> None:
    source = stack(workers={"generation": {"type": "ScriptedWorker", "args": {"respond": {"type": "ScriptedWorker"}}}})
    assert key_of(source) == "workers.generation.args.respond.args"
    source["workers"]["generation"]["args"]["respond"]["args"] = {"respond": "inner"}
    with load_stack(source) as llm:
        assert isinstance(llm.workers["generation"], ScriptedWorker)
