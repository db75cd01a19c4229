"""The pages on adding a controller and a worker: their commands run, and their code is that of the examples."""

from __future__ import annotations

import importlib.metadata
import json
import pkgutil
import re
import shutil
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scaffolding_ext import MajorityVoteController, NativeGenerationController, ScaffoldingLlm
from scaffolding_ext.evaluation.run.records import read_records
from tests.docs.pages import DOCS, ROOT, blocks, files, run

EXAMPLES = {"controller": ROOT / "examples" / "own_controller", "worker": ROOT / "examples" / "own_worker"}
PAGES = {kind: (DOCS / f"adding_a_{kind}.md").read_text(encoding="utf-8") for kind in EXAMPLES}
COMMANDS = {kind: [block.text for block in blocks(page, "bash")] for kind, page in PAGES.items()}
FAKE_UPSTREAM = str(ROOT / "tests" / "fake_upstream")


@pytest.fixture
def controller(tmp_path: Path) -> Path:
    """A copy of the examples of controllers."""
    return Path(shutil.copytree(EXAMPLES["controller"], tmp_path / "own_controller"))


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    """A copy of the examples of workers."""
    return Path(shutil.copytree(EXAMPLES["worker"], tmp_path / "own_worker"))


def commands(kind: str, word: str) -> str:
    """The page's block of commands that has the word."""
    (found,) = (text for text in COMMANDS[kind] if word in text)
    return found


@pytest.mark.parametrize("kind", EXAMPLES)
def test_the_page_shows_the_examples(kind: str) -> None:
    page = PAGES[kind]
    shown = [(block.title, block.text) for block in blocks(page) if block.title]
    assert [name for name, text in shown if text not in (EXAMPLES[kind] / name).read_text(encoding="utf-8")] == []
    names = {path.name for path in EXAMPLES[kind].iterdir() if path.is_file()}
    assert {name for name in names if f"../examples/own_{kind}/{name}" not in page} == set()
    assert files(page)


def test_the_tests_of_the_controllers_pass(controller: Path, warm_torch: Path) -> None:
    lines = commands("controller", "pytest").replace("pytest", "pytest -p no:cacheprovider", 1)
    assert " passed" in run(lines, controller, warm_torch).stdout


def test_the_tests_of_the_worker_pass(worker: Path, warm_python: Path) -> None:
    lines = commands("worker", "pytest").replace("pytest", "pytest -p no:cacheprovider -W error", 1)
    assert " passed" in run(lines, worker, warm_python).stdout


def test_the_rule_s_stack_file_can_be_built(controller: Path, warm_torch: Path) -> None:
    line = "scaffolding-ext eval --config share.yaml --dataset tinylm:held_out --limit 4 --dry_run"
    assert "stack and dataset are fine" in run(line, controller, warm_torch, PYTHONPATH=".").stdout


def test_the_controller_runs_from_python_and_under_upstreams_host(controller: Path, warm_torch: Path) -> None:
    pytest.importorskip("torch")
    output = run(["python", "ask.py"], controller, warm_torch).stdout
    assert "'by_purpose'" in output.replace('"', "'")
    assert "'event': 'glance'" in output
    output = run(["python", "upstream.py"], controller, warm_torch, PYTHONPATH=FAKE_UPSTREAM).stdout.strip()
    assert output not in ("", "None")


def test_the_controller_runs_on_the_command_line(controller: Path, warm_torch: Path) -> None:
    pytest.importorskip("torch")
    output = run(commands("controller", "scaffolding-ext run"), controller, warm_torch).stdout
    assert "stack and dataset are fine: 4 questions, 4 requests" in output
    assert re.search(r"^probe +[1-9]\d* decoded", output, re.MULTILINE)
    records = read_records(controller / "runs" / "glance" / "samples.jsonl")
    assert [record.error for record in records] == [None] * 4
    summary = json.loads((controller / "runs" / "glance" / "summary.json").read_text())["summary"]
    assert summary["mean_tokens_by_purpose"]["probe"]["decoded"] >= 2
    assert summary["sections"]["GlanceController"]["guesses"]["value"] == 2
    assert summary["sections"]["GlanceController"]["agreed"]["of"] == 4


def test_the_decorator_gives_it_a_name(controller: Path, warm_python: Path) -> None:
    code = (
        "import patient\n"
        "from scaffolding_ext import load_stack\n"
        "args = {'generation_controller': {'type': 'NativeGenerationController'}}\n"
        "workers = {'generation': {'type': 'ScriptedWorker', 'args': {'respond': '7}'}}}\n"
        "controller = {'type': 'PatientGlanceController', 'args': args}\n"
        "with load_stack({'controller': controller, 'workers': workers}) as llm:\n"
        "    result = llm.generate('How many?')\n"
        "print(result.answer, result.exit_reason, *result.program.trace[0]['answers'])\n"
    )
    assert run(["python", "-W", "error", "-c", code], controller, warm_python).stdout == "7 glance 7 7 7 7 7\n"


def test_the_entry_point_gives_it_a_name(controller: Path, warm_python: Path, tmp_path: Path) -> None:
    if int(importlib.metadata.version("setuptools").split(".")[0]) < 71:
        pytest.skip("this setuptools builds no wheel by itself")
    site = tmp_path / "site"
    pip = f"{sys.executable} -m pip install --quiet --no-deps --no-build-isolation --target {site} ."
    run(pip, controller, warm_python, PIP_DISABLE_PIP_VERSION_CHECK="1")
    code = (
        "import sys\n"
        "from scaffolding_ext import registry\n"
        "print('GlanceController' in registry.controllers.names(), 'glance' in sys.modules)\n"
        "print(registry.controllers.resolve('GlanceController').__module__)\n"
    )
    done = run(["python", "-W", "error", "-c", code], tmp_path, warm_python, PYTHONPATH=str(site))
    assert done.stdout == "True False\nglance\n"


def test_the_worker_answers_the_second_time_from_memory(worker: Path, warm_torch: Path) -> None:
    pytest.importorskip("torch")
    lines = run(["python", "-W", "error", "ask.py"], worker, warm_torch).stdout.splitlines()
    for first, second in (lines[:2], lines[2:]):  # plain generation, and a controller that would stream
        assert re.search(r"decoded=[1-9]", first)
        assert re.search(r"decoded=0, prefilled=0, reused=[1-9]", second)
        assert first.split()[0] == second.split()[0]


def test_the_worker_runs_on_the_command_line(worker: Path, warm_torch: Path) -> None:
    pytest.importorskip("torch")
    output = run(commands("worker", "scaffolding-ext"), worker, warm_torch).stdout
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

    monkeypatch.syspath_prepend(str(EXAMPLES["worker"]))
    kind = pkgutil.resolve_name("http_api:HttpWorker")
    vote = MajorityVoteController(NativeGenerationController({"temperature": 0.7, "max_tokens": 100}), 4)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with ScaffoldingLlm(vote, {"generation": kind(f"http://127.0.0.1:{server.server_port}")}, seed=0) as llm:
            result = llm.generate("what?")
        server.shutdown()
    assert result.answer == "5"
    (vote_event,) = (event for event in result.program.trace if event["event"] == "vote")
    assert result.program.ledger.total.decoded == 9 * vote_event["num_samples"]
