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


def test_tables_hold_what_was_found(runs: list[Path]) -> None:
    result = compare(*runs, "--verbose")
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "only quick is right: q4" in lines
    assert "only plain is right: none" in lines
    assert "plain 100.0 -" in lines
    for told in ("against plain quick", "points +2.5 (+0.0 to +7.5)", "only first right 0", "only it right 1", "p 1"):
        assert told in lines
    assert any(line.startswith("decoded 0.582× (") for line in lines)


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


def test_a_second_model_pays_if_it_is_quicker_and_no_worse(write_run: Callable[..., Path]) -> None:
    def rows(seconds: float, right: Callable[[int], bool]) -> list[Any]:
        return [(f"q{n}", right(n), 100, {"seconds": {"total": seconds}}) for n in range(60)]

    def workers(**models: str) -> str:
        return json.dumps({"workers": {tag: {"args": {"model": model}} for tag, model in models.items()}})

    target = write_run("target", rows(4.0, lambda n: n % 3 > 0), workers(generation="large"))
    quick = write_run("quick", rows(2.0, lambda n: n % 3 > 0), workers(draft="small", target="large"))
    slow = write_run("slow", rows(8.0, lambda n: n % 3 > 0 or n < 30), workers(draft="small", target="large"))
    told = compare(target, quick, slow).stdout
    assert "second model: quick pays: +0.0 points, 0.50 times the seconds" in told
    assert "second model: slow does not pay: +16.7 points, 2.00 times the seconds" in told
    found = json.loads(compare(target, quick, "--json").stdout)["second_models"]
    assert [each["pays"] for each in found] == [True]
    assert "second model" not in compare(quick, target).stdout
