"""Every benchmark runs quickly on request, and prints one JSON document of the agreed shape."""

import importlib
import json
import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks._lib.columns import mismatches
from benchmarks._lib.provenance import commit
from benchmarks.figures import STUDIES

ROOT = Path(__file__).parents[2]
ON_A_SERVER = ("studies.vllm",)  # tests/integration/test_vllm.py runs it
SCRIPTS = sorted(
    {
        f"{folder}.{path.stem}"
        for folder in ("engines", "studies")
        for path in (ROOT / "benchmarks" / folder).glob("*.py")
    }
    - {*ON_A_SERVER}
)
RECORDED = {study.command.split()[0] for study in STUDIES.values() if study.reads}
PLOTTED = {study.command.split()[0] for study in STUDIES.values() if study.draws}
EXTRA = {
    "studies.demo": ("--num_problems", "20", "--model", "tinylm/draft"),
    "engines.eviction": ("--model", "tinylm/draft"),
}


# Their quick runs take 20 to 40 seconds of a slow core.
SLOW = (
    "studies.draft_target_a1",
    "studies.demo",
    "studies.tune",
    "studies.real",
    "studies.peers",
    "studies.orders",
    "studies.search",
)


def run_script(script, *arguments, python, folder):
    command = [python / "python", "-m", f"benchmarks.{script}", *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=folder, env=environment, check=False
    )


def marks(script):
    return (pytest.mark.slow,) if script in SLOW else ()


@pytest.mark.parametrize("script", [pytest.param(name, marks=marks(name)) for name in SCRIPTS])
def test_quick_run_prints_one_document(script, warm_torch, recordings_folder, tmp_path):
    plot = ("--plot_path", str(tmp_path / "plot.png")) if script in PLOTTED else ()
    data = ("--data", str(recordings_folder)) if script in RECORDED else ()
    arguments = ("--quick", "--json", "--seed", "1", *EXTRA.get(script, ()), *data, *plot)
    run = run_script(script, *arguments, python=warm_torch, folder=tmp_path)
    assert run.returncode == 0, run.stderr
    document = json.loads(run.stdout)
    assert document.keys() == {"setting", "figures", "bars", "columns"}
    assert list(mismatches(document)) == []
    assert document["setting"]["seed"] == 1
    assert document["setting"]["commit"] == commit()
    assert document["figures"]
    for figure in document["figures"].values():
        assert figure.keys() - {"of"} == {"value", "low", "high"}
    for bar in document["bars"]:
        assert bar.keys() == {"name", "value", "sign", "bar", "holds"}
        assert isinstance(bar["holds"], bool)
    if plot:
        assert (tmp_path / "plot.png").stat().st_size > 0


def test_help_of_every_script_has_an_example():
    pytest.importorskip("torch")
    mains = {script: importlib.import_module(f"benchmarks.{script}").main for script in SCRIPTS}
    without = [
        script
        for script, main in mains.items()
        if f"python -m benchmarks.{script}" not in CliRunner().invoke(main, ["--help"]).output
    ]
    assert without == []
