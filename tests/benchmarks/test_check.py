"""Pages and results are held against each other."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import check
from benchmarks._lib import pages
from benchmarks._lib.report import Report

SAID = 'Saves {{ figure("mine", "saved", "x100 .1 %") }}.\n'


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of results with one file, `mine.json`."""
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    monkeypatch.setattr(check, "RESULTS", tmp_path)
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    pages.result.cache_clear()
    figures = {
        "saved": {"value": 0.245, "low": 0.105, "high": 0.383},
        "gain": {"value": -1.25, "low": -4, "high": 2},
        "tokens": {"value": 1234.5, "low": None, "high": None},
    }
    document = {"setting": {"commit": "0123456789abcdef", "seed": 0}, "figures": figures, "columns": ""}
    (tmp_path / "mine.json").write_text(json.dumps(document), encoding="utf-8")
    yield tmp_path
    pages.result.cache_clear()


def words(template: str, page: str | None = "Saves 24.5 % (10.5 to 38.3).\n") -> list[str]:
    return [fault.words for fault in pages.faults_of("page.md", template, page)]


@pytest.mark.usefixtures("results")
def test_a_page_that_is_what_its_template_gives_passes() -> None:
    assert words(SAID) == []


@pytest.mark.usefixtures("results")
@pytest.mark.parametrize(
    ("template", "page", "said"),
    [
        (SAID, "Saves 25.4 % (10.5 to 38.3).\n", "not what its template gives"),
        (SAID, None, "not what its template gives"),
        (SAID.replace("saved", "gained"), "", "has no figure 'gained'"),
        (SAID.replace("mine", "yours"), "", "there is no yours.json"),
        (SAID.replace("x100 .1 %", "%"), "", "the form is '%'"),
        ("Saves 24.5 % (10.5 to 38.3).\n", "Saves 24.5 % (10.5 to 38.3).\n", "(10.5 to 38.3) is of no file"),
        ('{{ figur("mine") }}', "", "'figur' is undefined"),
    ],
)
def test_what_is_wrong_is_said(template: str, page: str | None, said: str) -> None:
    found = words(template, page)
    assert any(said in each for each in found), found


@pytest.mark.usefixtures("results")
@pytest.mark.parametrize(
    ("call", "written"),
    [
        ('figure("mine", "gain", "+.1 points")', "-1.2 points (-4.0 to 2.0)"),
        ('figure("mine", "gain", ".0 .2")', "-1 (-4.00 to 2.00)"),
        ('figure("mine", "saved", "x100 +.0")', "+24 (10 to 38)"),
        ('figure("mine", "tokens", ".0")', "1,234"),
        ('value("mine", "saved", "x100 .1 %")', "24.5 %"),
    ],
)
def test_a_figure_is_written_in_its_form(call: str, written: str) -> None:
    assert pages.rendered("a {{ " + call + " }}**b**\n") == f"a {written}**b**\n"


@pytest.mark.usefixtures("results")
def test_code_needs_no_file() -> None:
    assert words("```\n12 % (10 to 14)\n```\n", "```\n12 % (10 to 14)\n```\n") == []


def test_failed_bars_are_printed_and_many_that_hold_are_counted(results: Path) -> None:
    document = json.loads((results / "mine.json").read_text(encoding="utf-8"))
    document["bars"] = [
        {"name": f"bar {number}", "value": number, "sign": "<=", "bar": 5, "holds": number <= 5} for number in range(7)
    ]
    lower = {"name": "gain, lower end", "value": -4, "holds": False}
    document["bars"] += [{**lower, "sign": ">=", "bar": -2}, {**lower, "sign": ">", "bar": 0}]
    (results / "mine.json").write_text(json.dumps(document), encoding="utf-8")
    pages.result.cache_clear()
    assert pages.bars("mine").splitlines()[2:] == [
        "| bar 6 | 6 | <= 5 | **no** |",
        "| gain, lower end | -4 | >= -2 | **no**; 37 times the questions would show it |",
        "| gain, lower end | -4 | > 0 | **no**; no number of questions would show it |",
        "| 6 other bars of `mine.json` | | | yes |",
    ]
    told = [fault.words for fault in check.faults_of_result("mine", {"mine"}, 1, set())]
    assert any("no page prints its bars" in words for words in told)
    assert not any("bars" in f.words for f in check.faults_of_result("mine", {"mine"}, 1, {"mine"}))


def test_a_result_is_asked_for_what_it_must_hold(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "is_in_history", lambda commit: commit in ("0123456789", "fedcba9876"))

    def faults(document: dict[str, Any], quoted: tuple[str, ...] = ("mine",)) -> str:
        (results / "mine.json").write_text(json.dumps(document), encoding="utf-8")
        pages.result.cache_clear()
        return " ".join(fault.words for fault in check.faults_of_result("mine", set(quoted)))

    report = Report("mine", {"commit": "0123456789abcdef", "seed": 1}, 1)
    report.difference("gain", [1, 0, 1, 1], [0, 0, 1, 0])
    document = json.loads(json.dumps(report.to_json()))
    assert faults(document) == ""
    assert "no page quotes it" in faults(document, quoted=())
    assert "run the study on a clean tree" in faults({**document, "setting": {"commit": "0123-dirty", "seed": 1}})
    assert "run the study on a clean tree" in faults({**document, "setting": {"seed": 1}})
    of_a_branch = {"commit": "89abcdef01234567", "seed": 1}
    assert "no one can look up its commit 89abcdef01" in faults({**document, "setting": of_a_branch})
    assert faults({**document, "setting": {**of_a_branch, "on_main": "fedcba98765"}}) == ""
    assert "bytes, at most" in faults({**document, "more": "x" * check.MOST_BYTES})
    document["figures"]["gain"]["value"] += 1
    assert "another figure for 'gain'" in faults(document)


def test_a_commit_of_the_history_is_told_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        names = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false")
        run = subprocess.run(["git", *names, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True)
        return run.stdout.strip()

    monkeypatch.setattr(check, "ROOT", tmp_path)
    assert check.is_in_history("0123456789")  # no history to look it up in
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "first")
    first = git("rev-parse", "HEAD")
    git("commit", "-q", "--allow-empty", "-m", "left")
    left = git("rev-parse", "HEAD")
    git("reset", "-q", "--hard", first)
    assert check.is_in_history(first[:10])
    assert not check.is_in_history(left[:10])
    assert not check.is_in_history("0123456789")


def test_no_page_has_a_comment() -> None:
    every = [check.ROOT / "README.md", *(check.ROOT / "docs").rglob("*.md")]
    assert [page.name for page in every if "<!--" in page.read_text(encoding="utf-8")] == []


def test_pages_and_results_have_no_fault() -> None:
    """The command computes more of the intervals again; here it is one of a hundred."""
    assert check.faults(every=100) == []
