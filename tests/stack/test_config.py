"""Stack files are read and validated, and every error names the path of its key."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.stack.build import build_controller, load_stack
from scaffolding_ext.stack.load import load_config


def stack(**changes: Any) -> dict[str, Any]:
    """A small valid stack."""
    return {
        "controller": {"type": "NativeGenerationController"},
        "workers": {"generation": {"type": "ScriptedWorker", "args": {"respond": "fine"}}},
    } | changes


# ---- reading


def test_a_stack_file_runs(tmp_path: Path) -> None:
    path = tmp_path / "stack.yaml"
    path.write_text(json.dumps(stack(seed=3, max_parallel_requests=2)))
    with load_stack(path) as llm:
        assert llm.generate("hello").outputs[0].text == "fine"
        assert (llm.seed, llm.max_parallel_requests, llm.owns_workers) == (3, 2, True)


def test_an_unknown_packaged_stack_lists_the_known() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'native'.*budget_forcing, .*native"):
        load_config("configs:nativ")


@pytest.mark.parametrize(
    ("override", "kept"),
    [
        ("prompt.prompt_suffix= Think.", " Think."),
        ("prompt.prompt_suffix=\nThink. ", "\nThink. "),
        ("prompt.prompt_suffix = Think.", "Think."),  # written with blanks around the sign
        ("prompt.prompt_suffix='Think. '", "Think. "),
    ],
)
def test_a_text_of_an_override_keeps_its_outer_blanks(override: str, kept: str) -> None:
    prompt = load_config("configs:majority_vote", (override,)).prompt
    assert prompt is not None
    assert prompt.prompt_suffix == kept


@pytest.mark.parametrize(
    ("text", "message"), [("a: [", "not valid YAML"), ("- a", "not a mapping"), ("", "not a mapping")]
)
def test_a_file_that_is_no_stack_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "stack.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_config(path)


@pytest.mark.parametrize("text", ["seed: 1\nseed: 2\n", "controller:\n  type: A\n  type: B\n"])
def test_a_key_that_stands_twice_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "stack.yaml"
    path.write_text(text)
    line = text.count("\n")
    with pytest.raises(ConfigError, match=rf'stack.yaml, line {line}: found duplicate key "\w+"; keep one of the two$'):
        load_config(path)


def test_words_that_yaml_once_took_for_booleans_are_text(tmp_path: Path) -> None:
    path = tmp_path / "stack.yaml"
    path.write_text("controller: {type: X, args: {hedge_words: [no, off, yes]}}\nworkers: {generation: {type: Y}}\n")
    assert load_config(path).controller.args == {"hedge_words": ["no", "off", "yes"]}


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
        ({"controller": {"args": {}}}, "controller.type", "is missing"),
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
        ("seed=[", "not valid YAML"),
        ("controller.type.name=3", "cannot be set inside"),
        ("sed=3", "did you mean 'seed'"),
    ],
)
def test_a_wrong_override_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(stack(), (override,))


def test_a_list_index_outside_the_list_is_refused() -> None:
    with pytest.raises(ConfigError, match="not an index of a list with 1 entries"):
        load_config(stack(controller={"type": "X", "args": {"items": [1]}}), ("controller.args.items.1=5",))


def test_the_effective_stack_can_be_written_and_read_again(tmp_path: Path) -> None:
    config = load_config("configs:dynasor_cot", ("seed=5", "dataset=problems.jsonl"))
    path = tmp_path / "config.yaml"
    path.write_text(config.to_yaml())
    assert load_config(path) == config


@pytest.mark.parametrize("key", ["controller", "workers"])
def test_a_file_without_a_controller_or_workers_is_told_the_lines_to_add(key: str) -> None:
    whole = stack()
    del whole[key]
    with pytest.raises(ConfigError, match=f"^{key}: is missing") as caught:
        load_config(whole)
    lines = str(caught.value).partition("\n")[2]
    added = YAML(typ="safe", pure=True).load(lines)
    assert set(added) == {key}
    load_config({**whole, **added})


def test_any_other_key_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^workers\.generation\.type: is missing, and has no default$"):
        load_config(stack(workers={"generation": {"args": {}}}))


def test_the_sampling_of_samples_is_what_the_builder_gives_the_innermost_controller() -> None:
    native = {"type": "NativeGenerationController", "args": {"sampling_params": {"temperature": 0.5}}}
    vote = {"type": "MajorityVoteController", "args": {"generation_controller": native}}
    workers = {"generation": {"type": "OpenAIWorker", "args": {"base_url": "http://localhost:1/v1", "model": "m"}}}
    sampling = {"temperature": 0.9, "top_p": 0.8}
    config = load_config({"controller": vote, "workers": workers, "sampling": sampling})
    assert config.sampling_of_samples() == {"temperature": 0.5, "top_p": 0.8}
    assert build_controller(config).generation_controller.sampling_params == config.sampling_of_samples()
