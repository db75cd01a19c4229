"""The lines of `compare`: 80 columns wide, one a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from scaffolding_ext.cli.main import main

STACK = """
controller: {{type: DynasorCoTController, args: {{certainty_threshold: {threshold}, chunk_size: {chunk}}}}}
workers: {{generation: {{type: HuggingFaceWorker, args: {{model: tinylm/target}}}}}}
"""


@pytest.fixture(autouse=True, params=[80, 60])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


def shown(*arguments: object) -> str:
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return str(result.stdout)


@pytest.fixture
def folder(write_run: Callable[..., Path]) -> Path:
    """Nine more runs."""
    for number in range(9):
        path = write_run(f"run{number}", [(f"q{n}", n % 3, 1_234_567 + n) for n in range(40)])
    return path.parent


@pytest.fixture
def runs(write_run: Callable[..., Path]) -> list[Path]:
    rows = {
        "plain_chain_of_thought": [(f"q{n}", n % 2, 12_345 + n) for n in range(40)],
        "dynasor_2_of_32": [(f"q{n}", n % 2 or n == 4, 8_123 + n, {"exit_reason": "certain"}) for n in range(40)],
        "dynasor_3_of_64": [(f"q{n}", n % 2 or n == 4, 9_123 + n, {"exit_reason": "no_answer"}) for n in range(40)],
    }
    configs = (None, STACK.format(threshold=2, chunk=32), STACK.format(threshold=3, chunk=64))
    return [write_run(name, own, config) for (name, own), config in zip(rows.items(), configs, strict=True)]


def test_compare_ends_in_a_line_a_run_and_80_columns(runs: list[Path], tmp_path: Path, folder: Path) -> None:
    lines = shown("compare", *runs, "--report_path", tmp_path / "r.html", "--chrome_trace", tmp_path / "t.json")
    *told, report, trace = lines.splitlines()
    assert (report, trace) == (f"report: {tmp_path / 'r.html'}", f"trace: {tmp_path / 't.json'}")
    assert told[0].split() == ["right", "%", "points", "tokens", "seconds"]
    assert told[1].split() == ["...thought", "50.0", "12,364", "123.6"]
    assert told[2] == "...2_of_32  52.5     +2.5 (+0.0 to +7.5)  8,142   34 % saved (34 to 34)  81.42"
    again = shown("compare", runs[1], runs[0])
    assert "  52 % more (52 to 52)  123.6" in again
    many = shown("compare", *runs, *(folder / f"run{n}" for n in range(9)))
    names = [line.split()[0] for line in many.splitlines()[1:-1]]
    assert names == ["...thought", "...2_of_32", "...3_of_64", *(f"run{n}" for n in range(9))]
    two = shown("compare", *runs[:2]).splitlines()
    assert two[3] == "only the first is right on 0, only the other on 1: p = 1 (McNemar)"
    for text in (lines, many, "\n".join(two)):
        assert max(map(len, text.splitlines()[:-2])) <= 80
