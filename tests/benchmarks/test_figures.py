"""Every kept result has a command that measures it."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import figures
from benchmarks.check import results

pytest.importorskip("torch")


@pytest.mark.parametrize("name", figures.STUDIES)
def test_the_study_takes_the_options(name: str, tmp_path: Path) -> None:
    command = figures.command_of(name, tmp_path, "http://server/v1")
    assert command is not None
    python, _, module, *options = command
    assert python == sys.executable
    main = importlib.import_module(module).main
    context = main.make_context(module, options)  # parses the options, and runs nothing
    assert context.params["as_json"]


def test_every_kept_result_has_a_command() -> None:
    assert set(results()) <= set(figures.STUDIES)


def test_what_reads_samples_or_asks_a_server_is_left_out_without_them(tmp_path: Path) -> None:
    assert figures.command_of("conformal_replay", None) is None
    assert figures.command_of("vllm", tmp_path) is None


def test_a_document_is_kept_only_where_the_study_came_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    (tmp_path / "mine.json").write_text("older", encoding="utf-8")
    with pytest.raises(Exception, match="mine failed; call again to go on"):
        figures.measure("mine", [sys.executable, "-c", "print('half'); raise SystemExit(3)"])
    assert (tmp_path / "mine.json").read_text(encoding="utf-8") == "older"
    figures.measure("mine", [sys.executable, "-c", "print('whole')"])
    assert (tmp_path / "mine.json").read_text(encoding="utf-8") == "whole\n"


def test_the_list_says_what_is_of_todays_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "changed_since", lambda commit: frozenset([Path("benchmarks/studies/queueing.py")]))
    shown = CliRunner().invoke(figures.main, ["--list"]).output
    rows = dict(re.findall(r"^ *(\w+) +\d+ +(yes|no) ", shown, re.MULTILINE))
    assert rows["demo"] == "yes"
    assert rows["queueing"] == "no"
    assert "hours of one core are left" in shown
