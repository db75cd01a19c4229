"""The kit for the first hour on a GPU, on the double of TensorRT-LLM and on the embedded models."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import types
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("torch")
from benchmarks.gpu import check, shapes
from scaffolding_ext.workers.huggingface import kv_blocks

ROOT = Path(__file__).parents[2]
FAKE = ROOT / "tests" / "fake_upstream"
FAST = ("upstreams_classes", "two_loops", "samples", "shutdown")


def run(warm_torch: Path, script: str, *arguments: str, release: str | None = "newest", code: int = 0) -> Any:
    path = os.pathsep.join([str(ROOT), *([str(FAKE)] if release else [])])
    environment = {name: value for name, value in os.environ.items() if name != "SCAFFOLDING_EXT_STANDINS"}
    environment |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "FAKE_UPSTREAM_RELEASE": release or ""}
    command = [warm_torch / "python", "-m", f"benchmarks.gpu.{script}", "--json", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def only(*names: str) -> list[str]:
    return [part for name in names for part in ("--only", name)]


def test_checks_that_need_no_second_model_pass_on_the_double(warm_torch: Path) -> None:
    document = run(warm_torch, "check", *only(*FAST))
    assert [line["outcome"] for line in document["lines"]] == ["passed"] * len(FAST)
    assert len(run(warm_torch, "check", *only("upstreams_classes"), release=None, code=1)["lines"]) == 1
    assert document["setting"]["tensorrt_llm"] == "newest"


def test_what_a_release_lacks_is_no_failure_and_what_fails_has_its_cause(warm_torch: Path, tmp_path: Path) -> None:
    (line,) = run(warm_torch, "check", *only("priority"), release="1.2.1")["lines"]
    assert (line["outcome"], line["cause"]) == ("not served", "generate_async has no priority")
    (line,) = run(warm_torch, "check", *only("samples"), "--model", str(tmp_path), code=1)["lines"]
    assert line["outcome"] == "failed"
    assert str(tmp_path) in line["cause"]


def test_the_page_lists_the_scripts_and_says_that_no_gpu_has_run_them() -> None:
    page = (ROOT / "benchmarks" / "gpu" / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"benchmarks\.gpu\.(\w+)", page)) == {
        path.stem for path in (ROOT / "benchmarks" / "gpu").glob("*.py")
    }
    assert "On a GPU none of them has been run yet" in page


@pytest.mark.slow
@pytest.mark.parametrize("release", ["1.2", "1.2.1", "1.3.0rc", "newest"])
def test_no_check_fails_on_the_double(warm_torch: Path, release: str) -> None:
    """Older releases draw a batch with its first request's seed, so `seeds` depends on the order of arrival there."""
    lines = run(warm_torch, "check", release=release)["lines"]
    others = {line["check"]: line["outcome"] for line in lines if line["outcome"] != "passed"}
    assert len(lines) == 22
    assert others.items() <= ({} if release == "newest" else dict.fromkeys(("priority", "seeds"), "not served")).items()


# TensorRT-LLM's C++ logger writes on descriptor 1.
NOISE = "import os, scaffolding_ext.protocol; import tensorrt_llm.llmapi.llm as llm; own = llm._Base.__init__\n"
NOISE += "def init(self, *a, **k): os.write(1, b'[TensorRT-LLM][INFO] here\\n'); print('there'); own(self, *a, **k)\n"
NOISE += "llm._Base.__init__ = init; import sys; from benchmarks.gpu.check import main; main(sys.argv[1:])"


def test_a_run_that_is_cut_off_leaves_its_lines_and_goes_on_from_its_store(warm_torch: Path, tmp_path: Path) -> None:
    """The second run has JSON alone on stdout, whatever libraries print on descriptor 1."""
    store = tmp_path / "runs" / "check.jsonl"
    options = ["--store", str(store), *only("upstreams_classes", "prefix_reuse", "two_loops")]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{FAKE}", "FAKE_UPSTREAM_RELEASE": "newest"}
    command = [warm_torch / "python", "-m", "benchmarks.gpu.check", *options]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        while not (first := process.stdout.readline()).startswith("passed"):
            assert first, "no line came"
        process.kill()
    assert "The protocol stands on TensorRT-LLM's own classes" in first
    before = store.read_text(encoding="utf-8").splitlines()
    command = [warm_torch / "python", "-c", NOISE, "--json", *options]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    document = json.loads(done.stdout, parse_constant=pytest.fail)  # no Infinity
    assert [line["outcome"] for line in document["lines"]] == ["passed"] * 3
    assert "passed" in done.stderr
    after = store.read_text(encoding="utf-8").splitlines()
    assert after[: len(before)] == before
    assert len(after) == 3


def broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError("CUDA out of memory")


def test_a_model_that_cannot_load_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[Any] = []
    monkeypatch.setattr(check, "TRTLLMWorker", lambda *args, **_: loads.append(args) or broken())
    monkeypatch.setattr(check.Bench, "_with_stats", lambda _: {})
    found = CliRunner().invoke(check.main, ["--model", "mine"])
    assert len(loads) == 1
    assert "RuntimeError: CUDA out of memory" in found.output
    assert re.search(r"2 failed, 0 not served, 20 not run$", found.output.strip())
    assert found.exit_code == 1


def test_the_needs_of_ones_own_model_are_arithmetic(tmp_path: Path) -> None:
    """Qwen2.5-7B, without its weights: what a card of 40 GB has left by the default is less than a long score takes."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    sizes = dict(zip((*names, "num_key_value_heads"), (152064, 3584, 18944, 28, 28, 4), strict=True))
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 32768, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(config))
    needs = check.ModelNeeds.of(str(tmp_path))
    assert needs.weights == pytest.approx(15.2e9, rel=0.01)
    assert (needs.token, needs.score) == (2 * 2 * 28 * 4 * 128, 2 * 4 * 8192 * 152064)
    assert "kv_cache_fraction: 0.56 leaves" in needs.on(40e9)
    assert "no room for the longest score; with serve_scores: false" in needs.on(24e9)
    assert "the default leaves" in needs.on(80e9)
    assert "the weights do not fit" in needs.on(15e9)
    told = CliRunner().invoke(check.main, ["--only", "upstreams_classes", "--for_model", str(tmp_path)]).output
    assert f"{tmp_path}: 15.2 GB of weights, 57,344 bytes of KV a token, 10.0 GB for the longest score" in told


def test_loading_counts_in_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that takes longer to load than a check may take is loaded once, and no line fails."""
    bench, loads = check.Bench("a model", 0.3), []

    def slow(*_: Any, **__: Any) -> Any:
        loads.append(time.sleep(1.0))
        return types.SimpleNamespace(task_handlers={"a": 1})

    monkeypatch.setattr(check, "TRTLLMWorker", slow)
    monkeypatch.setattr(check.Bench, "_with_stats", lambda _: {})
    assert check.line_of(check.loading, bench, 0.2).outcome == "passed"
    assert check.line_of(check.loading, bench, 0.2).outcome == "passed"
    assert len(loads) == 1

    def hang(_: check.Bench) -> None:
        """It hangs"""
        time.sleep(2.0)

    assert "no end within 0.2" in check.line_of(hang, bench, 0.2).cause


@pytest.mark.slow
def test_speed_runs_on_the_cpu(warm_torch: Path) -> None:
    assert "TRTLLMWorker: microseconds more a request" in run(warm_torch, "speed", "--quick")["figures"]


def test_the_kv_of_a_cell_is_what_is_allocated_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pools: dict[str, int] = {}
    now = ""

    def run(options: Any, switch: str, *args: Any) -> float:
        nonlocal now
        now, pools[switch] = switch, 0
        return measured(options, switch, *args)

    def zeros(shape: tuple[int, ...], like: Any) -> Any:
        made = allocate(shape, like)
        pools[now] += made.nbytes
        return made

    allocate, measured = kv_blocks._zeros, shapes.branch_and_judge
    monkeypatch.setattr(kv_blocks, "_zeros", zeros)
    monkeypatch.setattr(shapes, "branch_and_judge", run)
    figures = shapes.Parts("cpu", "tiny", 0).sharing(128, 8)
    for switch in shapes.SWITCHES:
        written = 1e9 * figures[f"128 + 8 tokens: {switch}, KV written, GB"]
        assert pools[switch] == pytest.approx(written, rel=0.05), switch


@pytest.mark.slow
def test_shapes_run_on_the_cpu_and_go_on_where_they_were(warm_torch: Path, tmp_path: Path) -> None:
    options = ["--store", str(tmp_path)]
    document = run(warm_torch, "shapes", *options, release=None)
    figures = document["figures"]
    assert not [name for name in document["setting"] if name.endswith("failed")]
    assert figures["texts equal on the CPU and the device"]["value"] == 1
    assert {"256 + 16 tokens: no KV, to cached blocks", "batch 64: generate, tokens a second"} <= set(figures)
    assert len(list(tmp_path.glob("*.json"))) == 7  # cells and batches apart
    assert run(warm_torch, "shapes", *options, release=None)["figures"] == figures
