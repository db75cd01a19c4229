"""`scaffolding-ext stacks NAME`: stacks, keys, kinds, types and their arguments."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from scaffolding_ext.cli.main import main
from scaffolding_ext.documents import packaged_recipes, packaged_stacks
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.stack.described import Described, arguments, description, keys, kinds, summary


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["stacks", *arguments])


def test_every_key_type_and_argument_is_explained() -> None:
    rows: list[Described] = list(keys(StackConfig))
    for known in kinds().values():
        for factory in map(known.resolve, known.names()):
            if factory.__module__.startswith("scaffolding_ext."):  # tests register names, too
                rows += [*arguments(factory), Described(factory.__name__, summary(factory))]
    assert len(rows) > 300
    assert not [row for row in rows if len(row.text) < 4]
    assert not [row for row in rows if "FieldInfo" in row.written or "Annotated" in row.written], (
        "a type as YAML has it"
    )


@pytest.mark.parametrize("name", [*packaged_stacks(), *packaged_recipes()])
def test_a_stack_is_printed_as_its_file_stands(name: str) -> None:
    text = (packaged_stacks() | packaged_recipes())[name].read_text(encoding="utf-8")
    assert call(name).stdout == call(f"configs:{name}").stdout == text


def test_a_type_has_its_kind_its_defaults_and_what_is_needed() -> None:
    lines = call("MajorityVoteController").stdout.splitlines()
    assert lines[0] == "MajorityVoteController: controller"
    assert {"generation_controller: Controller", "default_sample_num=1", 'allocation="LeaderChange"'} <= set(lines)
    assert max(map(len, lines)) <= 100


def test_a_name_of_several_kinds_is_told_of_each() -> None:
    text = call("mean_logprob").stdout
    assert text.startswith("mean_logprob: vote weight\n")
    assert "\n\nno arguments\n\nmean_logprob: search scorer\n" in text


@pytest.mark.parametrize("name", ["stopping rules", "stopping_rules"])
def test_a_kind_has_its_types(name: str) -> None:
    text = call(name).stdout
    assert "\nconsecutive\n    The last `threshold` answers are equal" in text
    assert kinds().keys() >= {"scheduling policies", "controllers"}


def test_keys_of_all_sections_or_of_one() -> None:
    every, own = call("keys").stdout, call("evaluation").stdout
    assert own.rstrip() in every
    assert "evaluation.until: str=null\n    End the run when" in own
    assert "max_parallel_requests=64" in every
    assert "max_parallel_requests=64" not in own
    assert "Names in `sampling` and `sampling_params`: " in every
    assert call("dataset.source").stdout.startswith("dataset.source: str\n    A JSONL or CSV file")


def test_an_unknown_name_gets_those_that_are_close() -> None:
    result = call("MajorityVote")
    assert result.exit_code == 2
    assert (
        "no stack, type, kind or key 'MajorityVote'; there are: majority_vote, MajorityVoteController" in result.stderr
    )


def test_json_has_the_text_by_its_name() -> None:
    assert json.loads(call("uniform", "--json").stdout) == {"uniform": description("uniform")}
