"""Figures on pages: each stands before a marker that names its file, and is read from there.

A marker is a comment, so that no reader of the page sees it:

    saves 37.2 % (35.7 to 38.6)<!--dynasor: DynasorCoT against plain CoT: decoded saved @ x100 .1-->

`dynasor` is `benchmarks/results/dynasor.json`. The name of the figure in that file follows, and then how it is written:
`x100` where the file has a share and the page per cent, `+` where a gain bears its sign, and the number of decimals, of
the interval too where it has another one (`.0 .1`). The unit, and whether the interval is shown, are the page's.

A page that quotes a file says of which commit it is: `commit 1a2b3c4d5e, not run since<!--dynasor-->`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ("README.md", "docs/**/*.md", "benchmarks/results/*.md")
NUMBER = r"[+-]?\d[\d,]*(?:\.\d+)?"
ENDS = rf"\({NUMBER} to {NUMBER}\)"
INTERVAL = re.compile(ENDS)
FORM = r"(?P<scale>x100 )?(?P<sign>\+)?\.(?P<decimals>\d)(?: \.(?P<end_decimals>\d))?"
FIGURE = re.compile(
    rf"(?<![\d.,])(?P<value>{NUMBER})(?P<unit>(?: (?:%|s|points))?)(?P<ends> {ENDS})?(?P<bold>\**)"
    rf"<!--(?!source:)(?P<file>\w+): (?P<name>[^@]+?) @ {FORM}-->"
)
COMMIT = re.compile(r"commit (?P<commit>[\w-]+), not run since<!--(?P<file>\w+)-->")
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


@cache
def result(name: str) -> dict[str, Any]:
    """A kept result; KeyError with the way out where there is no such file."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        raise KeyError(f"there is no {path.relative_to(ROOT)}: a marker names a file of that folder, without .json")
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def commit_of(name: str) -> str:
    """The commit that a result was measured on, in ten digits; `unknown` where it says none.

    Where this commit is not of this history, since its branch was rebased, the setting names by `on_main` the commit
    that brought the same change, or else the result itself.
    """
    setting = result(name).get("setting", {})
    return str(setting.get("on_main") or setting.get("commit") or "unknown").replace("-dirty", "")[:10]


def pages(root: Path = ROOT) -> Iterator[Path]:
    """Every page that may quote a figure."""
    for pattern in PAGES:
        yield from sorted(root.glob(pattern))


def rewritten(text: str) -> str:
    """A page with each figure and commit as its file has it; what no file has stays, and `faults_of` says so."""

    def kept(of: Callable[[re.Match[str]], str]) -> Callable[[re.Match[str]], str]:
        def replaced(match: re.Match[str]) -> str:
            try:
                return of(match)
            except KeyError:
                return match[0]

        return replaced

    return COMMIT.sub(kept(_of_commit), FIGURE.sub(kept(_of_figure), text))


def faults_of(place: str, text: str) -> Iterator[Fault]:
    """What is wrong on a page: figures that are not their file's, files without their commit, unmarked intervals."""
    told = {match["file"] for match in COMMIT.finditer(text)}
    for number, line in enumerate(CODE.sub(_blank, text).splitlines(), 1):
        here = f"{place}:{number}"
        for pattern, of in ((FIGURE, _of_figure), (COMMIT, _of_commit)):
            for match in pattern.finditer(line):
                try:
                    if of(match) != match[0]:
                        yield Fault(here, f"it has {match[0]!r}, the file {of(match)!r}: run --write")
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
    """A figure as its file has it, in the place of what the page has."""
    figures = result(match["file"]).get("figures", {})
    if match["name"] not in figures:
        raise KeyError(f"{match['file']}.json has no figure {match['name']!r}")
    figure, scale = figures[match["name"]], 100 if match["scale"] else 1
    text = f"{scale * figure['value']:{match['sign'] or ''},.{match['decimals']}f}{match['unit']}"
    if match["ends"] and figure.get("low") is not None:
        decimals = match["end_decimals"] or match["decimals"]
        text += f" ({scale * figure['low']:,.{decimals}f} to {scale * figure['high']:,.{decimals}f})"
    return text + match[0][match.start("bold") - match.start() :]


def _of_commit(match: re.Match[str]) -> str:
    return match[0].replace(match["commit"], commit_of(match["file"]), 1)
