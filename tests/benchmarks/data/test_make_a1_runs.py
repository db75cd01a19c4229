"""The recorded runs are made from a clone of the authors' repository: on a small clone made by hand."""

import gzip
import hashlib
import json

import pytest
from click.testing import CliRunner

from benchmarks.data import make_a1_runs
from scaffolding_ext.evaluation.run.jsonl import read_rows

HISTORY = [
    {"turn": 0, "model": "small", "output": "a"},
    {"turn": 0, "model": "eval_ppl", "ppl": 1.23456789, "percentile": 0.25},
    {"turn": 1, "model": "small", "output": "é"},
    {"turn": 1, "model": "eval_ppl", "ppl": 2.0, "percentile": 0.75},
    {"turn": 1, "model": "eval_generate", "output": "c"},
    {"turn": 2, "model": "small", "output": "d"},
]
TURNS = [
    {"draft": "a", "ppl": 1.234568, "target": None, "percentile": 0.25},
    {"draft": "é", "ppl": 2.0, "target": "c", "percentile": 0.75},
    {"draft": "d", "ppl": None, "target": None},
]


@pytest.fixture
def run(tmp_path, monkeypatch):
    folder = tmp_path / "clone" / "results" / "runs"
    folder.mkdir(parents=True)
    for chain in range(16):
        found = {"question": "?", "duration_seconds": chain + 0.126, "full_history": HISTORY}
        (folder / f"problem_{16 * 4 + chain:04}.json").write_text(json.dumps(found))
    math500 = tmp_path / "math500.jsonl"
    math500.write_text(json.dumps({"problem": "?", "answer": "7", "level": 2, "subject": "Algebra"}))
    monkeypatch.setattr(make_a1_runs, "QUESTIONS", (4,))

    def run(expected):
        source = make_a1_runs.Source("runs", ("small", "eval_ppl", "eval_generate"), expected)
        monkeypatch.setattr(make_a1_runs, "SOURCES", {"made": source})
        arguments = [str(tmp_path / "clone"), "--math500", str(math500), "--output_path", str(tmp_path / "out")]
        return CliRunner().invoke(make_a1_runs.main, arguments), tmp_path / "out" / "made.jsonl.gz"

    return run


def test_chains_are_regrouped_by_question_and_checked(run):
    result, path = run("0")
    assert (result.exit_code, "SHA-256" in result.output) == (1, True)
    rows = [row.value for row in read_rows(path)]
    assert [row["chain"] for row in rows] == list(range(16))
    expected = {"question": "?", "answer": "7", "level": 2, "subject": "Algebra", "chain": 1, "turns": TURNS}
    assert rows[1] == expected | {"seconds": 1.13}
    digest = hashlib.sha256(gzip.decompress(path.read_bytes())).hexdigest()
    result, path = run(digest)
    assert (result.exit_code, digest in result.output) == (0, True)
