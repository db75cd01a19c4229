"""`scaffolding-ext stacks NAME`: stacks, keys, kinds, types and their arguments."""

from __future__ import annotations

import inspect
import json
import re

import pytest
from click.testing import CliRunner, Result

from scaffolding_ext.cli.main import main
from scaffolding_ext.documents import packaged_recipes, packaged_stacks
from scaffolding_ext.stack.described import description, keys, kinds, summary


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["stacks", *arguments])


def test_every_key_type_and_argument_is_explained() -> None:
    assert not [key for key, text in keys() if len(text) < 4]
    for known in kinds().values():
        for factory in map(known.resolve, known.names()):
            if not factory.__module__.startswith("scaffolding_ext."):  # tests register names, too
                continue
            assert len(summary(factory)) > 4
            docs = [
                inspect.getdoc(each) or "" for each in (inspect.getmro(factory) if inspect.isclass(factory) else ())
            ]
            for name in inspect.signature(factory).parameters:
                assert re.search(rf"^    \*{{0,2}}{name}: ", "\n".join(docs), re.MULTILINE), (factory, name)


def test_a_stack_is_printed_as_its_file_stands() -> None:
    texts = {name: path.read_text(encoding="utf-8") for name, path in (packaged_stacks() | packaged_recipes()).items()}
    assert {name: call(name).stdout for name in texts} == texts
    assert call("configs:native").stdout == texts["native"]


def test_a_type_has_its_kind_its_arguments_and_their_meaning() -> None:
    text = call("MajorityVoteController").stdout
    assert text.startswith("MajorityVoteController: controller\n    generation_controller: 'Controller'\n")
    assert "\n    default_sample_num: 'int' = 1\n" in text
    assert "\n    default_sample_num: Samples of a vote; with a rule, the maximum.\n" in text


@pytest.mark.parametrize("name", ["stopping rules", "stopping_rules"])
def test_a_kind_has_its_types(name: str) -> None:
    text = call(name).stdout
    assert "\nconsecutive\n    The last `threshold` answers are equal" in text
    assert kinds().keys() >= {"scheduling policies", "controllers"}


def test_keys_of_all_sections_or_of_one() -> None:
    every, own = call("keys").stdout, call("evaluation").stdout
    assert "evaluation.until\n    End the run when" in own
    assert "evaluation.until\n    End the run when" in every
    assert "max_parallel_requests=64" in every
    assert "max_parallel_requests=64" not in own
    assert call("dataset.source").stdout.startswith("dataset.source\n    A JSONL or CSV file")


def test_an_unknown_name_gets_those_that_are_close() -> None:
    result = call("MajorityVote")
    assert result.exit_code == 2
    assert (
        "no stack, type, kind or key 'MajorityVote'; there are: majority_vote, MajorityVoteController" in result.stderr
    )


def test_a_type_of_ones_own_is_described_as_in_a_stack_file() -> None:
    own = "scaffolding_ext.controllers.vote.majority_vote:MajorityVoteController"
    assert call(own).stdout == call("MajorityVoteController").stdout.replace(
        "MajorityVoteController: controller", f"{own}: a type of your own", 1
    )
    refused = call("nowhere:Class")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "cannot import 'nowhere:Class'" in refused.stderr
    assert "there is no stack" in call("configs:nothing").stderr


def test_json_has_the_text_by_its_name() -> None:
    assert json.loads(call("uniform", "--json").stdout) == {"uniform": description("uniform")}
