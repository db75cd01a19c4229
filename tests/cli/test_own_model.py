"""`OwnModel`: the user's own model, by options of the commands, in the place of a stack file's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scaffolding_ext.cli.main import main
from scaffolding_ext.cli.options import SUFFIX, OwnModel
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.testing import ScriptedWorker
from tests.servers.openai_server import OpenAIServer

pytest.importorskip("openai")


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    """A server of a kind that nobody knows, with a model that has no tokenizer."""
    with ScriptedWorker("It is \\boxed{4}.") as worker, OpenAIServer(worker, "mine", flavor="openai") as found:
        yield found


@pytest.fixture
def questions(tmp_path: Path) -> str:
    path = tmp_path / "questions.jsonl"
    path.write_text('{"question": "2+2?", "answer": "4"}\n{"question": "1+3?", "answer": "4"}\n')
    return str(path)


def own(model: str | None = None, **server: str) -> OwnModel:
    return OwnModel(model, *(server.get(name) for name in OwnModel._fields[1:]))


@pytest.mark.parametrize("name", ["native", "majority_vote", "budget_forcing", "models/qwen3"])
def test_a_model_takes_the_place_of_the_generation_worker(name: str) -> None:
    config = own("org/mine", base_url="http://localhost:1/v1").load(f"configs:{name}")
    worker = config.workers["generation"]
    assert (worker.type, worker.args["model"], worker.args["endpoint"]) == ("OpenAIWorker", "org/mine", "auto")
    assert config.prompt is not None
    assert "boxed" in (config.prompt.prompt_suffix or "")
    here = own("org/mine").load(f"configs:{name}").workers["generation"]
    assert (here.type, here.args) == ("HuggingFaceWorker", {"model": "org/mine"})


def test_the_tokenizer_of_a_servers_model_is_named() -> None:
    given = own("alias", base_url="http://localhost:1/v1", tokenizer="org/mine", endpoint="completions")
    args = given.load("configs:native").workers["generation"].args
    assert (args["tokenizer"], args["model"]) == ("org/mine", "alias")


def test_a_stacks_own_prompt_stays_and_its_model_goes(tmp_path: Path) -> None:
    path = tmp_path / "stack.yaml"
    worker = {"type": "HuggingFaceWorker", "args": {"model": "tinylm/target"}}
    prompt = {"model": "tinylm/target", "family": "tinylm", "system_prompt": "Be brief.", "prompt_suffix": "!"}
    stack = {"controller": {"type": "NativeGenerationController"}, "workers": {"generation": worker}, "prompt": prompt}
    path.write_text(json.dumps(stack))
    config = own("org/mine").load(str(path))
    assert config.prompt is not None
    assert config.prompt.model_dump(exclude_unset=True) == {"system_prompt": "Be brief.", "prompt_suffix": "!"}
    embedded = own("tinylm/draft").load(str(path))
    assert embedded.prompt is not None
    assert embedded.prompt.model == "tinylm/target"


def test_an_address_alone_changes_a_stack_that_asks_a_server() -> None:
    worker = own(base_url="http://other:1/v1").load("configs:models/qwen3").workers["generation"]
    assert worker.args == {"model": "Qwen/Qwen3-8B", "base_url": "http://other:1/v1"}


@pytest.mark.parametrize(
    ("name", "model", "key", "says"),
    [
        ("native", own(base_url="http://localhost:1/v1"), "base_url", "give --model NAME"),
        ("native", own("mine", endpoint="chat"), "endpoint", "give the server's address"),
        ("conformal_draft_target", own("mine"), "model", "it has draft, target"),
    ],
)
def test_what_cannot_be_replaced_is_refused_by_name(name: str, model: OwnModel, key: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        model.load(f"configs:{name}")
    assert refused.value.key == key


@pytest.mark.parametrize("config", ["configs:native", "configs:majority_vote"])
def test_a_chat_server_without_a_tokenizer_gets_suffix_and_system_prompt_as_messages(
    server: OpenAIServer, questions: str, config: str
) -> None:
    arguments = ["--config", config, "--model", "mine", "--base_url", server.url, "--dataset", questions]
    more = ["--set", "prompt.system_prompt=Be brief.", "--json"]
    result = CliRunner().invoke(main, ["eval", *arguments, *more])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["summary"]["accuracy"] == 1.0
    asked = [request for request in server.requests if request.method == "POST"]
    assert {request.path for request in asked} == {"/v1/chat/completions"}
    told = {json.dumps(request.body["messages"]) for request in asked}
    wanted = [
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": q + SUFFIX}] for q in ("2+2?", "1+3?")
    ]
    assert told >= set(map(json.dumps, wanted))  # beside a test chat
    assert len(told) == len(wanted) + 1


def test_completions_without_a_tokenizer_get_the_prompt_as_text(server: OpenAIServer) -> None:
    arguments = ["--config", "configs:native", "--model", "mine", "--base_url", server.url, "--endpoint", "completions"]
    result = CliRunner().invoke(main, ["run", "2+2?", *arguments])
    assert result.exit_code == 0, result.output
    (asked,) = (request for request in server.requests if request.body.get("max_tokens", 0) > 1)
    assert asked.body["prompt"] == "2+2?" + SUFFIX


def test_a_chain_that_is_probed_is_refused_where_the_server_cannot_go_on(server: OpenAIServer, tmp_path: Path) -> None:
    worker = {"type": "HuggingFaceWorker", "args": {"model": "tinylm/target"}}
    path = tmp_path / "stack.yaml"
    path.write_text(json.dumps({"controller": {"type": "DynasorCoTController"}, "workers": {"generation": worker}}))
    arguments = ["--config", str(path), "--model", "mine", "--base_url", server.url]
    result = CliRunner().invoke(main, ["run", "2+2?", *arguments])
    assert result.exit_code == 2
    assert "continue an unfinished answer" in result.output
    assert "completions" in result.output


def test_a_gguf_file_is_told_how_it_is_served(tmp_path: Path) -> None:
    path = tmp_path / "model.Q4_1.gguf"
    path.write_bytes(b"GGUF")
    result = CliRunner().invoke(main, ["run", "2+2?", "--config", "configs:native", "--model", str(path)])
    assert result.exit_code == 2
    assert "serve it with llama-server (`pip install xllamacpp`) and use --base_url" in result.output


def test_the_model_answers_under_check_too(server: OpenAIServer) -> None:
    arguments: list[Any] = ["configs:native", "--model", "mine", "--base_url", server.url]
    result = CliRunner().invoke(main, ["check", *arguments])
    assert result.exit_code == 0, result.output
