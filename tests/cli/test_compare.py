"""`scaffolding-ext compare`, on runs that were written before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scaffolding_ext.cli.main import main


def compare(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["compare", *map(str, arguments)])


@pytest.fixture
def runs(write_run: Callable[..., Path]) -> list[Path]:
    return [
        write_run("plain", [(f"q{n}", n % 2, 100 + n) for n in range(40)]),
        write_run("quick", [(f"q{n}", n % 2 or n == 4, 50 + n, {"exit_reason": "certain"}) for n in range(40)]),
    ]


def test_json_is_one_document_and_the_same_for_one_seed(runs: list[Path]) -> None:
    first, again, other = (compare(*runs, "--json", "--seed", seed).stdout for seed in (3, 3, 4))
    assert first == again
    assert first != other
    (found,) = json.loads(first)["comparisons"]
    assert found["only_run_right"] == [{"id": "q4", "epoch": 0}]
    assert found["ratios"]["decoded"]["value"] == pytest.approx(2780 / 4780)


@pytest.mark.parametrize(("count", "says"), [(1, "at least two runs"), (3, "is given twice")])
def test_what_cannot_be_compared_is_refused(runs: list[Path], count: int, says: str) -> None:
    result = compare(*[*runs, runs[0]][:: 1 if count == 3 else 2][:count])
    assert result.exit_code == 2
    assert says in result.stderr


def test_a_report_and_a_trace_are_written(runs: list[Path], tmp_path: Path) -> None:
    report, trace = tmp_path / "report.html", tmp_path / "trace.json"
    result = compare(*runs, "--report_path", report, "--chrome_trace", trace, "--num_traces", 7)
    assert result.stdout.splitlines()[-2:] == [f"report: {report}", f"trace: {trace}"]
    assert report.read_text(encoding="utf-8").count('id="s') >= 7
    assert len({event["pid"] for event in json.loads(trace.read_text())["traceEvents"]}) == 14
