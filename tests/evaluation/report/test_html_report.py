"""The report is one page that holds everything and asks the network for nothing."""

from __future__ import annotations

import html.parser
import importlib.util
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.evaluation.compare.compared import compare_runs, kept_samples
from scaffolding_ext.evaluation.report.page import rendered
from scaffolding_ext.evaluation.report.timeline import write_chrome_trace

STACK = "controller: {{type: Controller, args: {{threshold: {}}}}}\n"
HOSTILE = '</script><script>alert("x")</script>&amp;'


class Page(html.parser.HTMLParser):
    """The contents of a page: its tags, and the text of each script with an id."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self._id: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._id = dict(attrs).get("id") if tag == "script" else None

    def handle_data(self, data: str) -> None:
        if self._id is not None:
            self.scripts[self._id] = data
            self._id = None


@pytest.fixture
def text(write_run: Callable[..., Path]) -> str:
    trace = [{"event": "probe", "branch": [], "seconds": 0.1, "position": 64, "answer": HOSTILE}]
    folders = [write_run("plain", [(f"q{n}", n % 2, 100 + n) for n in range(40)])]
    for threshold, right in ((2, 15), (5, 30)):
        rows = [(f"q{n}", n < right, 10 * threshold, {"output": HOSTILE, "trace": trace}) for n in range(40)]
        folders.append(write_run(f"<{threshold}>", rows, STACK.format(threshold)))
    compared = compare_runs(folders)
    return rendered(compared, kept_samples(compared.runs, 30))


def test_nothing_is_loaded_from_elsewhere_and_no_text_leaves_its_script(text: str) -> None:
    page = Page(text)
    sources = [value for _, attributes in page.tags for key, value in attributes.items() if key in ("src", "href")]
    assert all(source.startswith("data:") for source in sources)
    assert "default-src 'none'" in text
    assert not re.search(r"https?://|@import|url\(", text)
    assert [tag for tag, _ in page.tags].count("script") == 2 + 30 + 1
    details: dict[str, Any] = json.loads(page.scripts["s0"])
    assert details["runs"][1]["output"] == HOSTILE


def test_a_number_that_is_not_finite_is_null_in_its_data(write_run: Callable[..., Path], tmp_path: Path) -> None:
    trace = [{"event": "probe", "branch": [], "seconds": 0.1, "confidence": math.nan, "scores": [1.0, -math.inf]}]
    folders = [write_run(name, [(f"q{n}", 1, 9, {"trace": trace}) for n in range(3)]) for name in ("a", "b")]
    for folder in folders:  # as an older version wrote them
        samples = folder / "samples.jsonl"
        samples.write_text(samples.read_text().replace('null, "scores": [1.0, null', 'NaN, "scores": [1.0, -Infinity'))
        assert "NaN" in samples.read_text()
    compared = compare_runs(folders)
    kept = kept_samples(compared.runs, 3)
    write_chrome_trace(tmp_path / "trace.json", ["a", "b"], kept)
    json.loads((tmp_path / "trace.json").read_text(), parse_constant=pytest.fail)
    page = Page(rendered(compared, kept))
    for text in page.scripts.values():
        json.loads(text, parse_constant=pytest.fail)


def test_it_holds_tables_and_charts(text: str) -> None:
    overview = json.loads(Page(text).scripts["data"])
    assert [run["name"] for run in overview["runs"]] == ["plain", "<2>", "<5>"]
    assert len(overview["samples"]) == 30
    assert overview["samples"][0]["cells"][0].keys() == {"answer", "right", "reason", "decoded", "seconds"}
    assert "30 of 40: those on which runs disagree" in text
    assert text.count("data:image/png;base64,") == 1


def test_without_matplotlib_the_page_says_what_its_charts_need(
    write_run: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *more: None if name == "matplotlib" else find(name, *more)
    )
    folders = [write_run(name, [(f"q{n}", n % 3, 9) for n in range(3)]) for name in ("a", "b")]
    page = rendered(compare_runs(folders), [])
    assert "Charts need matplotlib: pip install" in page
    assert "<img" not in page
