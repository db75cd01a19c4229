"""Every benchmark runs quickly on request, and prints one JSON document of the agreed shape."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SHARED = (
    "common.py",
    "conformal_figures.py",
    "draft_target_lab.py",
    "lab.py",
    "model_latency.py",
    "roofline.py",
    "take_over_rules.py",
    "timing_figures.py",
    "timing_lab.py",
)
SCRIPTS = sorted(path.name for path in BENCHMARKS.glob("*.py") if path.name not in SHARED)
PLOTTED = ("conformal.py", "conformal_timing.py", "demo.py", "dynasor.py")
EXTRA = {
    "demo.py": ("--num_problems", "20", "--model", "tinylm/draft"),
    "dynasor.py": ("--num_problems", "12", "--model", "tinylm/draft"),
    "huggingface_worker.py": (
        "--repetitions",
        "1",
        "--num_chains",
        "8",
        "--max_chain_len",
        "32",
        "--model",
        "tinylm/draft",
    ),
    "orchestration.py": ("--repetitions", "1"),
    "tinylm.py": ("--num_problems", "12", "--num_vote_problems", "2", "--target", "tinylm/draft"),
}


# Their quick runs take 20 to 40 seconds of a slow core.
SLOW = ("answers.py", "conformal.py", "conformal_timing.py", "demo.py", "dynasor.py", "openai_parity.py", "tinylm.py")


@pytest.mark.parametrize(
    "script", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in SCRIPTS]
)
def test_quick_run_prints_one_document(script, tmp_path):
    plot = ("--plot_path", str(tmp_path / "plot.png")) if script in PLOTTED else ()
    command = [
        sys.executable,
        str(BENCHMARKS / script),
        "--quick",
        "--json",
        "--seed",
        "1",
        *EXTRA.get(script, ()),
        *plot,
    ]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False)
    assert run.returncode == 0, run.stderr
    document = json.loads(run.stdout)
    assert document.keys() == {"setting", "figures", "bars"}
    assert document["setting"]["seed"] == 1
    assert document["figures"]
    for figure in document["figures"].values():
        assert figure.keys() == {"value", "low", "high"}
    for bar in document["bars"]:
        assert bar.keys() == {"name", "value", "bar", "holds"}
        assert isinstance(bar["holds"], bool)
    if plot:
        assert (tmp_path / "plot.png").stat().st_size > 0


@pytest.mark.parametrize("script", SCRIPTS)
def test_help_has_an_example(script):
    run = subprocess.run(
        [sys.executable, str(BENCHMARKS / script), "--help"], capture_output=True, text=True, timeout=120, check=True
    )
    assert f"python benchmarks/{script}" in run.stdout
