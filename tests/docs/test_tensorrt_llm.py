"""docs/tensorrt_llm.md: its scripts and commands run in order on the double, and its stack files are right."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext import plain_yaml
from scaffolding_ext.stack.build import missing_here, plan_stack
from scaffolding_ext.stack.load import load_config
from tests.docs.pages import DOCS, ROOT, blocks, files, run

pytest.importorskip("openai")

PAGE = (DOCS / "tensorrt_llm.md").read_text(encoding="utf-8")
STACKS = [block.text for block in blocks(PAGE, "yaml") if block.text.startswith("controller:")]
EXAMPLES = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "examples" / "tensorrt_llm").iterdir()}
SHOWN = files(PAGE)
FILES = EXAMPLES | SHOWN
README = (ROOT / "README.md").read_text(encoding="utf-8")
NOT_HERE = ("pip install", "benchmarks.gpu.check")  # the latter has tests of its own
COMMANDS = [
    command
    for block in blocks(PAGE, "bash")
    for command in block.text.replace("\\\n", " ").splitlines()
    if not any(part in command for part in NOT_HERE)
]
PROBLEMS = "".join(
    json.dumps({"id": f"{start}", "prompt": f"Start with {start}. Apply a+3,b-2. Find the total.", "answer": f"{end}"})
    + "\n"
    for start, end in ((5, 6), (6, 7))
)
OF_ENGINES = ("convert_checkpoint", "trtllm-build", "engine check")
FROM_1_3 = ("extra_1.3.yaml", "prioritize=true")
SMALL = {"4096": "160", "8192": "1024", "sample_num=8": "sample_num=2", "sample_num: 8": "sample_num: 2"}


@pytest.fixture(scope="module")
def target() -> Iterator[Any]:
    pytest.importorskip("torch")
    from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

    with HuggingFaceWorker("tinylm/target") as worker:
        yield worker


@pytest.fixture
def served(target: Any, release: str) -> Iterator[str]:
    """Address of the page's trtllm-serve: the release's, with steps shorter than a chain."""
    from tests.servers.openai_server import OpenAIServer

    step_len = None if "enable_chunked_prefill: true" in FILES["extra.yaml"] else 64
    with OpenAIServer(target, "target", flavor="trtllm", is_older=release != "newest", step_len=step_len) as server:
        yield server.url


@pytest.mark.parametrize(
    "release", ["1.2.1", *(pytest.param(name, marks=pytest.mark.slow) for name in ("1.3.0rc", "newest"))]
)
def test_the_page_runs_in_order(release: str, served: str, tmp_path: Path, warm_torch: Path) -> None:
    """From 1.3 on with the checkpoint, as it says; the server of trtllm-serve runs already."""
    from scaffolding_ext.prompts.tokenizers import model_folder

    has_engines = release == "1.2.1"
    folder = str(model_folder("tinylm/target"))
    here = SMALL | {"http://localhost:8000/v1": served, "/models/target": folder}
    if not has_engines:
        named = "model: engines/target, tokenizer: /models/target"
        assert named in FILES["stack.yaml"]
        here = {named: f"model: {folder}"} | here

    def adapted(text: str) -> str:
        for part, own in here.items():
            text = text.replace(part, own)
        return text

    (readme,) = (block.text for block in blocks(README) if "TRTLLMWorker" in block.text)
    for title, text in (FILES | {"readme.py": readme}).items():
        (tmp_path / title).write_text(adapted(text), encoding="utf-8")
    (tmp_path / "problems.jsonl").write_text(PROBLEMS)
    (tmp_path / "convert_checkpoint.py").write_text("")  # writes what only trtllm-build reads
    programs = {f"trtllm-{name}": f"exec python $FAKE/scripts/trtllm_{name}.py" for name in ("build", "serve")}
    programs["curl"] = "exit 0"
    (tmp_path / "bin").mkdir()
    for name, script in programs.items():
        path = tmp_path / "bin" / name
        path.write_text(f'#!/bin/sh\n{script} "$@"\n')
        path.chmod(0o755)
    fake = str(ROOT / "tests" / "fake_upstream")
    environment = {"PYTHONPATH": fake, "FAKE": fake, "FAKE_UPSTREAM_RELEASE": release, "SCAFFOLDING_EXT_STANDINS": ""}
    absent = FROM_1_3 if has_engines else OF_ENGINES
    commands = [line for line in COMMANDS if not any(part in line for part in absent)]
    lines = f"export PATH={tmp_path / 'bin'}:$PATH\n" + adapted("\n".join([*commands, "python readme.py"]))
    done = run(lines, tmp_path, warm_torch, **environment)
    assert ("meets all needs of the worker" in done.stdout) is has_engines
    answers = re.findall(r"^\S+ \w+ \d+$", done.stdout, re.MULTILINE)
    assert len(answers) >= 3  # two of answer.py, one of upstream_host.py
    assert re.search(r"^\d+$", done.stdout.splitlines()[-1])  # the README's answer
    for name in ("early", "all", "served"):
        assert len((tmp_path / "runs" / name / "samples.jsonl").read_text(encoding="utf-8").splitlines()) == 2
    assert (tmp_path / "report.html").exists()


def test_the_example_folder_has_the_files_of_the_page() -> None:
    both = EXAMPLES.keys() & SHOWN.keys()
    assert both == {"answer.py", "stack.yaml"}
    assert {name: EXAMPLES[name] for name in both} == {name: SHOWN[name] for name in both}


def test_each_stack_can_be_planned() -> None:
    for stack in STACKS:
        plan = plan_stack(load_config(plain_yaml.parse(stack, "the page")))
        is_served = plan.workers[0].factory.__name__ == "OpenAIWorker"
        assert bool(missing_here(plan)) != is_served
