"""Figures on pages: each stands before a marker that names its file, and is read from there.

A marker is a comment, so that no reader of the page sees it:

    saves 37.2 % (35.7 to 38.6)<!--dynasor: DynasorCoT against plain CoT: decoded saved | percent-->

`dynasor` is `benchmarks/results/dynasor.json`; what follows is the name of the figure there, and how it is written. A
page that quotes a file says of which commit it is: `commit 1a2b3c4d5e, not run since<!--dynasor-->`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ("README.md", "docs/**/*.md", "benchmarks/results/*.md")
NUMBER = r"[+-]?\d[\d,]*(?:\.\d+)?"
INTERVAL = re.compile(rf"\({NUMBER} to {NUMBER}\)")
WRITTEN = rf"(?<![\d.,])(?P<text>{NUMBER}(?: (?:%|s))?(?: \({NUMBER} to {NUMBER}\))?)"
FIGURE = re.compile(
    WRITTEN + r"(?P<bold>\**)<!--(?!source:)(?P<file>\w+): (?P<name>.+?)(?: \| (?P<form>[\w.]+(?: alone)?))?-->"
)
COMMIT = re.compile(r"commit (?P<text>[\w-]+), not run since<!--(?P<file>\w+)-->")
ELSEWHERE = re.compile(r"<!--source: [^>]+-->")  # on a line whose intervals others measured
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


class Fault(NamedTuple):
    """What is wrong on a page or in a file.

    Attributes:
        place: The page or file, with the line where there is one.
        words: What is wrong, and what to do.
    """

    place: str
    words: str


class Form(NamedTuple):
    """How a figure is written: the formats of its value and of each end, what it is multiplied with, and its unit."""

    value: str
    end: str
    scale: float = 1.0
    unit: str = ""


FORMS = {
    "percent": Form(".1f", ".1f", 100, " %"),
    "percent0": Form(".0f", ".0f", 100, " %"),
    "points": Form("+.1f", ".1f"),
    "points_of_share": Form("+.1f", ".1f", 100),
    "ratio": Form(".2f", ".2f"),
    "ratio3": Form(".3f", ".3f"),
    "number": Form(",.0f", ",.0f"),
    "number1": Form(",.1f", ",.1f"),
    "number2": Form(",.2f", ",.2f"),
    "seconds": Form(".2f", ".2f", 1, " s"),
}


def written(figure: Mapping[str, Any], form: str = "number1") -> str:
    """A figure as a page has it: the value, and its interval where it has one and the form does not say `alone`."""
    name, _, alone = form.partition(" ")
    value, end, scale, unit = FORMS[name]
    text = format(scale * figure["value"], value) + unit
    if alone or figure.get("low") is None:
        return text
    return f"{text} ({scale * figure['low']:{end}} to {scale * figure['high']:{end}})"


@cache
def result(name: str) -> dict[str, Any]:
    """A kept result; KeyError with the way out where there is no such file."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        raise KeyError(f"there is no {path.relative_to(ROOT)}: a marker names a file of that folder, without .json")
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def commit_of(name: str) -> str:
    """The commit that a result was measured on, in ten digits; `unknown` where it says none."""
    return str(result(name).get("setting", {}).get("commit") or "unknown").replace("-dirty", "")[:10]


def pages(root: Path = ROOT) -> Iterator[Path]:
    """Every page that may quote a figure."""
    for pattern in PAGES:
        yield from sorted(root.glob(pattern))


def rewritten(text: str) -> str:
    """A page with each figure and commit as its file has it; KeyError where there is none."""
    return COMMIT.sub(_of_commit, FIGURE.sub(_of_figure, text))


def faults_of(place: str, text: str) -> Iterator[Fault]:
    """What is wrong on a page: figures that are not their file's, files without their commit, unmarked intervals."""
    told = {match["file"] for match in COMMIT.finditer(text)}
    for number, line in enumerate(CODE.sub(_blank, text).splitlines(), 1):
        here = f"{place}:{number}"
        for pattern, of in ((FIGURE, _of_figure), (COMMIT, _of_commit)):
            for match in pattern.finditer(line):
                try:
                    if of(match) != match[0]:
                        yield Fault(here, f"it has {match['text']!r}, the file {of(match)!r}: run --write")
                except KeyError as error:
                    yield Fault(here, str(error.args[0]))
                if match["file"] not in told:
                    yield Fault(here, f"say the commit on the page: commit ?, not run since<!--{match['file']}-->")
        marked = {end for match in FIGURE.finditer(line) for end in range(match.start(), match.end())}
        for match in INTERVAL.finditer(line):
            if match.start() not in marked and not ELSEWHERE.search(line):
                yield Fault(here, f"{match[0]} has no marker: say from which file it is, or <!--source: WHOSE-->")


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def _of_figure(match: re.Match[str]) -> str:
    figures = result(match["file"])["figures"]
    if match["name"] not in figures:
        raise KeyError(f"{match['file']}.json has no figure {match['name']!r}")
    text = written(figures[match["name"]], match["form"] or "number1")
    return match[0].replace(match["text"], text, 1)


def _of_commit(match: re.Match[str]) -> str:
    return match[0].replace(match["text"], commit_of(match["file"]), 1)
