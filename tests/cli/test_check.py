"""`scaffolding-ext check`: its exit code, its report and its help; on the embedded model for real."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scaffolding_ext.cli.main import main
from scaffolding_ext.evaluation.run.progress_bar import Heartbeat
from scaffolding_ext.testing import ScriptedWorker
from tests.servers.openai_server import OpenAIServer


def stack(folder: Path, respond: str, **more: object) -> str:
    path = folder / "stack.yaml"
    worker = {"type": "ScriptedWorker", "args": {"respond": respond}}
    content = {"controller": {"type": "NativeGenerationController"}, "workers": {"generation": worker}, **more}
    path.write_text(json.dumps(content))
    return str(path)


def test_the_exit_code_says_whether_something_is_wrong(tmp_path: Path) -> None:
    fine = CliRunner().invoke(main, ["check", stack(tmp_path, "\\boxed{4}")])
    assert (fine.exit_code, fine.stdout.splitlines()[-1].split(".")[0]) == (0, "No problems found")
    bad = CliRunner().invoke(main, ["check", stack(tmp_path, "four")])
    assert (bad.exit_code, bad.stdout.splitlines()[-1]) == (1, "problems found: 1")
    assert "WRONG no_box:" in bad.stdout
    assert "      change: prompt: {prompt_suffix:" in bad.stdout


def test_a_stack_that_cannot_be_built_is_an_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["check", str(tmp_path / "no.yaml")])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: cannot read the stack file")


def test_questions_are_asked_in_the_place_of_the_stacks_own(tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text('{"question": "Mine?", "answer": "4"}\n' * 1)
    path = stack(tmp_path, "\\boxed{4}", dataset=str(tmp_path / "mine.jsonl"))
    of_dataset = json.loads(CliRunner().invoke(main, ["check", path, "--json"]).stdout)
    assert [exchange["question"] for exchange in of_dataset["exchanges"]] == ["Mine?"]
    arguments = ["check", path, "--json", "--question", "One?", "--question", "Two?", "--question", "Three?"]
    asked = json.loads(CliRunner().invoke(main, arguments).stdout)
    assert [exchange["question"] for exchange in asked["exchanges"]] == ["One?", "Two?", "Three?"]
    assert asked["exchanges"][0]["answer"] == "4"


def test_a_line_says_what_comes_while_no_answer_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    told = threading.Event()
    beat = Heartbeat.beat

    def telling(self: Heartbeat) -> str | None:
        line = beat(self)
        told.set()
        return line

    async def hold(task: Any) -> None:
        await asyncio.to_thread(told.wait)

    monkeypatch.setattr(Heartbeat, "beat", telling)
    monkeypatch.setattr("scaffolding_ext.evaluation.run.progress_bar._BEAT_SECONDS", 0.01)
    with ScriptedWorker("\\boxed{4}", before=hold) as worker, OpenAIServer(worker, "mine", flavor="openai") as server:
        generation = {"type": "OpenAIWorker", "args": {"base_url": server.url, "model": "mine", "endpoint": "chat"}}
        done = CliRunner().invoke(main, ["check", stack(tmp_path, "", workers={"generation": generation})])
    assert done.exit_code == 0, done.output
    assert "nothing has come for 0 s" in done.stderr
    assert "nothing has come" not in done.stdout


def test_the_stacks_own_arguments_are_checked(tmp_path: Path) -> None:
    """A limit of the check's own would hide that this stack has none, so that the server's context is the limit."""
    pytest.importorskip("openai")
    with ScriptedWorker("\\boxed{4}") as worker, OpenAIServer(worker, "mine", flavor="openai") as server:
        generation = {"type": "OpenAIWorker", "args": {"base_url": server.url, "model": "mine", "endpoint": "chat"}}
        path = stack(tmp_path, "", workers={"generation": generation})
        limits = []
        for arguments in ([], ["--max_tokens", "64"]):
            server.requests.clear()
            found = CliRunner().invoke(main, ["check", path, *arguments])
            assert found.exit_code == 0, found.output
            limits.append(server.requests[-1].body.get("max_tokens"))
    assert limits == [None, 64]


def test_the_help_has_an_example() -> None:
    assert (
        "Example:\n    scaffolding-ext check configs:models/qwen3 " in CliRunner().invoke(main, ["check", "-h"]).stdout
    )


def test_the_embedded_model_is_fine() -> None:
    pytest.importorskip("torch")
    result = CliRunner().invoke(main, ["check", "configs:dynasor_cot"])
    assert result.exit_code == 0, result.output
    assert "WRONG" not in result.output
