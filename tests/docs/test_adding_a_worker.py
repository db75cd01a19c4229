"""The page on adding a worker is true: its commands run, and its code is that of the example that it names."""

from __future__ import annotations

import json
import os
import pkgutil
import re
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scaffolding_ext import MajorityVoteController, NativeGenerationController, ScaffoldingLlm

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding_a_worker.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "own_worker"
FENCE = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXCERPTS = [(title, text) for _, title, text in FENCE.findall(PAGE) if title]
COMMANDS = [text for language, _, text in FENCE.findall(PAGE) if language == "bash"]
WAIT = 300.0  # seconds until a hanging process fails its test


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the example."""
    shutil.copytree(EXAMPLE, tmp_path, dirs_exist_ok=True)
    return tmp_path


def run(command: list[str], folder: Path, python: Path) -> str:
    """Run a command in the folder, where the page's files are found, with a warm Python; gives what it wrote."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"PATH": os.pathsep.join([str(python), environment["PATH"]]), "OMP_NUM_THREADS": "1"}
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=WAIT, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def test_the_code_on_the_page_is_that_of_the_example() -> None:
    assert {title for title, _ in EXCERPTS} == {"caching.py", "http_api.py"}
    assert [title for title, text in EXCERPTS if text not in (EXAMPLE / title).read_text(encoding="utf-8")] == []
    names = {path.name for path in EXAMPLE.iterdir() if path.is_file()}
    assert {name for name in names if f"../examples/own_worker/{name}" not in PAGE} == set()
    assert len(COMMANDS) == 2


def test_it_passes_the_contract(folder: Path, warm_python: Path) -> None:
    (command,) = (text for text in COMMANDS if "pytest" in text)
    output = run(["bash", "-ec", command.replace("pytest", "pytest -p no:cacheprovider -W error")], folder, warm_python)
    assert " passed" in output
    assert "failed" not in output


def test_it_runs_from_python_and_answers_the_second_time_from_memory(folder: Path, warm_torch: Path) -> None:
    pytest.importorskip("torch")
    lines = run(["python", "-W", "error", "ask.py"], folder, warm_torch).splitlines()
    assert len(lines) == 4  # plain generation, and a controller that would stream
    for first, second in (lines[:2], lines[2:]):
        assert re.search(r"decoded=[1-9]", first)
        assert re.search(r"decoded=0, prefilled=0, reused=[1-9]", second)
        assert first.split()[0] == second.split()[0]


def test_it_runs_from_yaml_on_the_command_line(folder: Path, warm_torch: Path) -> None:
    pytest.importorskip("torch")
    (commands,) = (text for text in COMMANDS if "scaffolding-ext" in text)
    output = run(["bash", "-ec", commands], folder, warm_torch)
    assert "stack and dataset are fine: 4 questions, 4 requests" in output
    assert re.search(r"^answer +-?\d+", output, re.MULTILINE)  # the prompt was put into the model's own template


def test_the_worker_of_an_http_interface_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told = {"text": f"\\boxed{{{len(asked['prompt'])}}}", "num_tokens": 9, "num_prompt_tokens": 4}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(told).encode())

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    monkeypatch.syspath_prepend(str(EXAMPLE))
    worker = pkgutil.resolve_name("http_api:HttpWorker")
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        native = NativeGenerationController({"temperature": 0.7, "max_tokens": 100})
        vote = MajorityVoteController(native, 4)
        with ScaffoldingLlm(vote, {"generation": worker(f"http://127.0.0.1:{server.server_port}")}, seed=0) as llm:
            result = llm.generate("what?")
        server.shutdown()
    assert result.answer == "5"
    (vote_event,) = (event for event in result.program.trace if event["event"] == "vote")
    assert result.program.ledger.total.decoded == 9 * vote_event["num_samples"]
