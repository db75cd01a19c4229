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

pytest.importorskip("torch")
from benchmarks.gpu import check

ROOT = Path(__file__).parents[2]
FAKE = ROOT / "tests" / "fake_upstream"
FAST = ("upstreams_classes", "salts", "two_loops", "samples", "shutdown")


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
    lines = run(warm_torch, "check", release=release)["lines"]
    outcomes = {line["outcome"] for line in lines if "another GPU" not in line["name"]}
    assert outcomes <= ({"passed"} if release == "newest" else {"passed", "not served"}), lines


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


@pytest.mark.slow
def test_shapes_run_on_the_cpu_and_go_on_where_they_were(warm_torch: Path, tmp_path: Path) -> None:
    options = ["--store", str(tmp_path), "--plot_path", str(tmp_path / "shapes.png")]
    document = run(warm_torch, "shapes", *options, release=None)
    figures = document["figures"]
    assert not [name for name in document["setting"] if name.endswith("failed")]
    assert figures["texts equal on the CPU and the device"]["value"] == 1
    assert {"256 + 16 tokens: no KV, to cached blocks", "batch 64: generate, tokens a second"} <= set(figures)
    assert (tmp_path / "shapes.png").stat().st_size > 10_000
    assert len(list(tmp_path.glob("*.json"))) == 6
    assert run(warm_torch, "shapes", *options, release=None)["figures"] == figures
