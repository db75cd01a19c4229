"""Every table of the command line at 80 columns: no line is longer, and no figure is cut."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from scaffolding_ext.cli.main import main
from scaffolding_ext.evaluation.compare.compared import compare_runs
from scaffolding_ext.evaluation.report import terminal
from scaffolding_ext.evaluation.tables import PIPE_WIDTH, Table, console

STACK = """
controller: {{type: DynasorCoTController, args: {{certainty_threshold: {threshold}, chunk_size: {chunk}}}}}
workers: {{generation: {{type: HuggingFaceWorker, args: {{model: tinylm/target}}}}}}
"""
INTERVAL = re.compile(r"\([^()]* to [^()]*\)")


@pytest.fixture(autouse=True, params=[80, 60])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


def shown(*arguments: object) -> str:
    result = CliRunner().invoke(main, list(map(str, arguments)))
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def check(text: str, tables: list[Table], width: int) -> None:
    """Every cell of the tables stands in the text whole, each line within the width."""
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    for table in tables:
        for column in table.columns:
            for cell in (column.header, *column.cells):
                assert re.search(rf"(^|\s){re.escape(str(cell))}(\s|$)", text, re.MULTILINE), cell


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


def test_compare(runs: list[Path], width: int) -> None:
    text = shown("compare", *runs, "--verbose").rpartition("\n" + 12 * " ")[0]
    compared = compare_runs(runs)
    tables = [
        terminal.comparison_table({run.name: run.summary for run in compared.runs}),
        terminal.pairs_table(compared.comparisons),
        terminal.reasons_table(compared.runs),
    ]
    check(text, tables, width)
    assert len(INTERVAL.findall(" ".join(text.split()))) >= 2 * 3 + 2 * 2  # of two comparisons, and of the sweep's runs
    [sweep] = compared.sweeps
    for column in terminal.sweep_table(sweep).columns[:-1]:
        assert all(str(cell) in text for cell in column.cells)


def test_eval(tmp_path: Path, width: int) -> None:
    rows = [json.dumps({"question": f"say {n}", "answer": n, "id": f"q{n}"}) for n in range(3)]
    (tmp_path / "data.jsonl").write_text("\n".join(rows))
    stack = {
        "controller": {"type": "NativeGenerationController"},
        "workers": {"generation": {"type": "ScriptedWorker", "args": {"respond": "\\boxed{1}"}}},
        "evaluation": {"price": {"decoded": 1.0}},
    }
    path = tmp_path / "a_stack_with_a_long_name.yaml"
    path.write_text(json.dumps(stack))
    arguments = ("eval", "--config", path, "--dataset", tmp_path / "data.jsonl", "--output_path", tmp_path / "run")
    text, found, _ = shown(*arguments, "--verbose").partition("\na_stack_with_a_long_name: 1 of 3 right")
    assert found
    heads = ("n", "failed", "correct %", "decoded", "discarded", "saved", "computed", "seconds", "cost")
    table = Table("run", *heads)
    table.add_row("a_stack_with_a_long_name", "3", "0", "33.3 (6.1 to 79.2)")
    check(text, [table], width)


def test_compare_ends_in_a_line_a_run_and_80_columns(runs: list[Path], tmp_path: Path, folder: Path) -> None:
    lines = shown("compare", *runs, "--report_path", tmp_path / "r.html", "--chrome_trace", tmp_path / "t.json")
    *told, report, trace = lines.splitlines()
    assert (report, trace) == (f"report: {tmp_path / 'r.html'}", f"trace: {tmp_path / 't.json'}")
    assert told[0].split() == ["right", "%", "points", "tokens", "seconds"]
    assert told[1].split() == ["...thought", "50.0", "12,364", "123.6"]
    assert told[2] == "...2_of_32  52.5     +2.5 (+0.0 to +7.5)  8,142   34 % fewer (34 to 34)  81.42"
    again = shown("compare", runs[1], runs[0])
    assert "  52 % more (52 to 52)  123.6" in again
    many = shown("compare", *runs, *(folder / f"run{n}" for n in range(9)))
    names = [line.split()[0] for line in many.splitlines()[1:-1]]
    assert names == ["...thought", "...2_of_32", "...3_of_64", *(f"run{n}" for n in range(9))]
    two = shown("compare", *runs[:2]).splitlines()
    assert two[3] == "only the first is right on 0, only the other on 1: p = 1 (McNemar)"
    for text in (lines, many, "\n".join(two)):
        assert max(map(len, text.splitlines()[:-2])) <= 80


def test_a_pipe_without_columns_is_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    assert console().width == PIPE_WIDTH
