"""Every example runs, and says what its page says of it; the notebooks run, and keep their outputs."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NOTEBOOKS = sorted(path.name for path in EXAMPLES.glob("*.ipynb"))
WAIT = 300.0  # seconds until a hanging example fails its test


def run(command: list[str | Path], folder: Path, python: Path) -> str:
    """Run an example in a folder, with Pythons that have imported torch already; its standard output."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PATH": f"{python}{os.pathsep}{os.environ['PATH']}"}
    process = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=WAIT, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


@pytest.fixture
def two_questions(tmp_path: Path) -> Path:
    lines = (EXAMPLES / "problems.jsonl").read_text(encoding="utf-8").splitlines()
    path = tmp_path / "two.jsonl"
    path.write_text("\n".join(line for line in lines if '"p1"' in line or '"p7"' in line), encoding="utf-8")
    return path


def test_a_vote_that_stops_early_draws_the_same_samples(two_questions: Path, warm_torch: Path) -> None:
    script = EXAMPLES / "vote_early_stop.py"
    out = run([warm_torch / "python", script, "tinylm/draft", two_questions], two_questions.parent, warm_torch)
    whole, early = (int(count) for count in re.findall(r"of 2 right, (\d+) tokens decoded", out))
    assert 0 < early <= whole


def test_own_data_are_checked_run_and_compared(tmp_path: Path, warm_torch: Path) -> None:
    out = run(["bash", EXAMPLES / "own_data.sh"], tmp_path, warm_torch)
    folder = tmp_path / "runs" / "own_data"
    assert "No problems found" in out
    assert "open runs/own_data/report.html" in out
    assert (folder / "report.html").stat().st_size > 10_000
    records = [json.loads(line) for line in (folder / "dynasor" / "samples.jsonl").read_text().splitlines()]
    assert {record["id"] for record in records} == {"walk", "run", "climb"}


def test_draft_and_target_with_a_calibration(tmp_path: Path, warm_torch: Path) -> None:
    run(["bash", EXAMPLES / "draft_target.sh", "2"], tmp_path, warm_torch)
    folder = tmp_path / "runs" / "draft_target"
    assert "num_chains: 2" in (folder / "calibration.yaml").read_text().splitlines()
    summary = json.loads((folder / "conformal" / "summary.json").read_text())
    assert "take_over_rate" in json.dumps(summary)


def test_the_best_of_n_is_the_one_that_the_checker_scores_highest(tmp_path: Path, warm_torch: Path) -> None:
    out = run([warm_torch / "python", EXAMPLES / "best_of_n.py"], tmp_path, warm_torch)
    lines = re.findall(r"^answers (\[.*\]), scores (\[.*\]): (\S+) is given$", out, re.MULTILINE)
    assert len(lines) == 2
    for answers, scores, given in lines:
        values = json.loads(scores)
        assert json.loads(answers.replace("'", '"').replace("None", "null"))[values.index(max(values))] == given


def test_a_search_asks_the_checker(tmp_path: Path, warm_torch: Path) -> None:
    out = run([warm_torch / "python", EXAMPLES / "search.py"], tmp_path, warm_torch)
    assert re.search(r"^answer -?\d+ \(\w+\)$", out, re.MULTILINE)
    assert re.search(r"^verify +0 tokens decoded$", out, re.MULTILINE)  # the checker is no model


def test_a_stack_before_vllm_answers_the_openai_client(tmp_path: Path, warm_torch: Path) -> None:
    pytest.importorskip("openai")
    out = run([warm_torch / "python", EXAMPLES / "serve_before_vllm.py"], tmp_path, warm_torch)
    assert re.search(r"^-?\d+ \w+ [1-9]\d*$", out.splitlines()[-1])


@pytest.mark.skipif(importlib.util.find_spec("lm_eval") is None, reason="needs the extra lm-eval")
def test_the_harness_scores_a_stack(tmp_path: Path, warm_torch: Path) -> None:
    run([warm_torch / "python", EXAMPLES / "lm_evaluation_harness.py", tmp_path / "out"], tmp_path, warm_torch)
    (results,) = (tmp_path / "out").rglob("results_*.json")
    assert "exact_match,boxed" in json.loads(results.read_text())["results"]["made_up_arithmetic"]
    assert len((tmp_path / "out" / "ledgers.jsonl").read_text().splitlines()) == 4


def test_upstreams_example_runs_here(tmp_path: Path, warm_torch: Path) -> None:
    out = run([warm_torch / "python", EXAMPLES / "migrate_from_tensorrt_llm.py"], tmp_path, warm_torch)
    assert len(re.findall(r"-> -?\d+ \(\d+ tokens decoded\)$", out, re.MULTILINE)) == 2
    again = "import runpy, sys; runpy.run_path(sys.argv[1], run_name='__mp_main__')"  # as a process of `LLM` does
    assert not run(
        [warm_torch / "python", "-c", again, EXAMPLES / "migrate_from_tensorrt_llm.py"], tmp_path, warm_torch
    )


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    for needed in (name, "problems.jsonl"):
        shutil.copy(EXAMPLES / needed, tmp_path)
    code = (
        "import nbclient, nbformat, sys; book = nbformat.read(sys.argv[1], 4); "
        "nbclient.NotebookClient(book, timeout=280, kernel_name='python3').execute(); nbformat.write(book, sys.argv[1])"
    )
    subprocess.run(
        [sys.executable, "-c", code, name],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1", "IPYTHONDIR": str(tmp_path / "ipython")},
        check=True,
        capture_output=True,
        timeout=WAIT,
    )
    cells = json.loads((tmp_path / name).read_text(encoding="utf-8"))["cells"]
    printed = "".join("".join(out.get("text", ())) for cell in cells for out in cell.get("outputs", ()))
    assert printed.rstrip().splitlines()[-1].count("tokens decoded") == 1


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_keeps_its_outputs_and_names_no_machine(name: str) -> None:
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert sum(bool(cell["outputs"]) for cell in cells) >= 3
    assert not any(out["output_type"] == "error" or out.get("name") == "stderr" for c in cells for out in c["outputs"])
    assert not re.search(r"site-packages|/(home|root)/", text)
