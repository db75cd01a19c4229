"""The wheel alone, in an empty environment: every command runs, with the weights and stack files that it brings.

The wheel is tried on the Pythons of SCAFFOLDING_PYTHONS (paths, separated as PATH is), else on the one that runs the
tests. Packages come from pip's index. A worker over HTTP asks `serve` of this environment, so that no torch is needed;
where pip can have the torch that is installed here for that Python as well (a CPU build is not on every index), the
embedded models run in the empty environment, too.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaffolding_ext import __version__
from scaffolding_ext.documents import packaged_stacks

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
PYTHONS = os.environ.get("SCAFFOLDING_PYTHONS", sys.executable).split(os.pathsep)
WAIT = 600.0  # seconds until a hanging command fails its test
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
    "OMP_NUM_THREADS": "1",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
QUESTION = "Start with 16. Apply d-4,e-7,f+5,g+2. Find the total."
STACK = """
controller: {type: NativeGenerationController, args: {sampling_params: {max_tokens: 1200, temperature: 0.7}}}
workers: {generation: {type: OpenAIWorker, args: {base_url: "%s/v1", model: native, endpoint: chat}}}
prompt: null
seed: 0
"""
HOLDS = """
import importlib, importlib.resources, pkgutil, scaffolding_ext
from scaffolding_ext import MissingDependencyError
from scaffolding_ext import load_config
from scaffolding_ext.documents import packaged_stacks
root = importlib.resources.files("scaffolding_ext")
assert "site-packages" in str(root), root
for model in ("target", "draft"):
    assert len((root / "tinylm" / "weights" / model / "model.safetensors").read_bytes()) > 500_000
lacking = set()
for module in pkgutil.walk_packages(scaffolding_ext.__path__, "scaffolding_ext.", onerror=lambda name: None):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        lacking.add(error.name.partition(".")[0])
    except MissingDependencyError as error:
        lacking.add(error.package)
others = {"torch", "transformers", "tokenizers", "opentelemetry", "lm-evaluation-harness", "inspect_ai", "ray[serve]"}
assert lacking <= others, lacking
print(*sorted(name for name in packaged_stacks() if load_config(f"configs:{name}")))
"""


def run(*command: str | Path, folder: Path) -> str:
    process = subprocess.run(
        [*map(str, command)],
        cwd=folder,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=WAIT,
        check=False,
    )
    assert process.returncode == 0, f"{command}\n{process.stdout}{process.stderr}"
    return process.stdout


class Served:
    """`scaffolding-ext serve` on a free port of this machine, until the block ends."""

    def __init__(self, script: Path, *options: str, folder: Path) -> None:
        command = [str(script), "serve", *options, "--port", "0"]
        self._log = (folder / "serve.log").open("w+")
        self._process = subprocess.Popen(
            command, cwd=folder, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def __enter__(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()  # what it says once clients can connect; empty where it has ended
        found = re.search(r"(http://\S+)/v1$", line)
        assert found is not None, line + Path(self._log.name).read_text()
        return found[1]

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.communicate(timeout=60)
        self._log.close()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, ROOT, folder=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module", params=PYTHONS, ids=lambda path: "-".join(Path(path).parts[-3:]))
def scripts(request: pytest.FixtureRequest, wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an empty environment that the wheel alone was installed into, without torch."""
    folder = tmp_path_factory.mktemp("empty")
    run(request.param, "-m", "venv", folder / "venv", folder=folder)
    scripts = folder / "venv" / "bin"
    pip = (scripts / "python", "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt")
    run(*pip, f"{wheel}[openai,serve]", folder=folder)
    return scripts


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an embedded model that this environment serves."""
    folder = tmp_path_factory.mktemp("served")
    script = folder / "scaffolding-ext"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m scaffolding_ext "$@"\n')
    script.chmod(0o755)
    with Served(script, "--config", "configs:native", folder=folder) as address:
        yield address


def test_weights_and_stack_files_are_there(scripts: Path, tmp_path: Path) -> None:
    assert run(scripts / "python", "-W", "error", "-c", HOLDS, folder=tmp_path).split() == sorted(packaged_stacks())
    assert __version__ in run(scripts / "scaffolding-ext", "--version", folder=tmp_path)
    told = json.loads(run(scripts / "scaffolding-ext", "env", "--json", folder=tmp_path))
    assert told["package"] == {"version": __version__, "kernel": True}
    assert not {"torch", "transformers"} & told["packages"].keys()
    assert told["extras"]["openai"] == told["extras"]["serve"] == []


def test_a_stack_without_its_extra_says_which(scripts: Path, tmp_path: Path) -> None:
    command = [scripts / "scaffolding-ext", "run", QUESTION, "--config", "configs:native"]
    process = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert process.returncode == 2
    assert "torch" in process.stderr
    assert "[hf]'" in process.stderr


def test_commands_run_on_a_server(scripts: Path, here: str, tmp_path: Path) -> None:
    (tmp_path / "stack.yaml").write_text(STACK % here)
    rows = [
        {"question": QUESTION, "answer": "12"},
        {"question": "Start with 3. Apply a+4. Find the total.", "answer": 7},
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    command = scripts / "scaffolding-ext"
    assert json.loads(run(command, "run", QUESTION, "--config", "stack.yaml", "--json", folder=tmp_path))["answer"]
    for name, seed in (("runs/a", 0), ("runs/b", 1)):
        options = ("--config", "stack.yaml", "--dataset", "rows.jsonl", "--set", f"seed={seed}", "--output_path", name)
        run(command, "eval", *options, folder=tmp_path)
        assert len((tmp_path / name / "samples.jsonl").read_text().splitlines()) == 2
    compared = run(command, "compare", "runs/a", "runs/b", "--report_path", "report.html", folder=tmp_path)
    assert "correct %" in compared
    assert "<html" in (tmp_path / "report.html").read_text()
    with Served(command, "--config", "stack.yaml", folder=tmp_path) as address:
        body = {"model": "stack", "messages": [{"role": "user", "content": QUESTION}]}
        asked = urllib.request.Request(
            f"{address}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=WAIT) as reply:
            answer = json.load(reply)
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] > 0


def test_the_embedded_models_run(scripts: Path, tmp_path: Path) -> None:
    torch = importlib.metadata.version("torch")  # with the tag of its build: a CPU build brings no CUDA
    pip = [scripts / "python", "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt"]
    had = subprocess.run(
        [*pip, "--only-binary", ":all:", f"torch=={torch}"], env=ENVIRONMENT, capture_output=True, check=False
    )
    if had.returncode != 0:
        pytest.skip(f"pip finds no torch {torch} for this Python")
    run(*pip, "transformers>=4.57,<6", folder=tmp_path)
    command = scripts / "scaffolding-ext"
    told = json.loads(run(command, "run", QUESTION, "--config", "configs:majority_vote", "--json", folder=tmp_path))
    assert told["answer"] == "12"
    for name in ("native", "dynasor_cot"):
        options = ("--config", f"configs:{name}", "--limit", "4", "--output_path", f"runs/{name}")
        run(command, "eval", *options, folder=tmp_path)
    assert "correct %" in run(command, "compare", "runs/native", "runs/dynasor_cot", folder=tmp_path)


@pytest.mark.parametrize(("beside", "runtime"), [((), "4.13.2"), (("omegaconf==2.3.0",), "4.9.3")])
def test_it_installs_beside_omegaconf_and_both_import(
    wheel: Path, tmp_path: Path, beside: tuple[str, ...], runtime: str
) -> None:
    """TensorRT-LLM and Hydra stand on omegaconf, which reads with ANTLR 4.9 alone."""
    run(sys.executable, "-m", "venv", tmp_path / "venv", folder=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", wheel, *beside, folder=tmp_path)
    code = """
import importlib.metadata, importlib.util
if importlib.util.find_spec("omegaconf"):
    from omegaconf import OmegaConf
    assert OmegaConf.create({"a": "${b}", "b": 1}).a == 1
from math_verify import parse, verify
from scaffolding_ext import load_config
assert verify(parse(r"$\\frac{1}{2}$"), parse("0.5"))
print(importlib.metadata.version("antlr4-python3-runtime"))
"""
    assert run(python, "-c", code, folder=tmp_path).strip() == runtime
