"""Pages with figures are rendered from templates: each figure is read from the file that bears it.

The template of `docs/results.md` is `docs/_pages/docs/results.md.jinja`, and so on. In it stands

    saves {{ figure("demo", "DynasorCoT against plain CoT: decoded saved", "x100 .1 %") }}

for `saves 41.9 % (40.7 to 43.0)`: the file `benchmarks/results/demo.json`, the name of a figure there, and its form.
In a form `x100` stands where the file has a share and the page per cent, and `+` where a gain bears its sign. Then
stand the number of decimals (of the interval, too, where it has another one: `.0 .1`) and the unit. `value(...)` is the
figure without its interval, and `bars("demo")` the table of the limits that a file's figures should meet.

An interval that a template types is a fault: its file is not known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jinja2

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
TEMPLATES = ROOT / "docs" / "_pages"
SUFFIX = ".jinja"
NUMBER = r"[+-]?\d[\d,]*(?:\.\d+)?"
INTERVAL = re.compile(rf"\({NUMBER} to {NUMBER}\)")
FORM = re.compile(r"(?P<scale>x100 )?(?P<sign>\+)?\.(?P<decimals>\d)(?: \.(?P<end_decimals>\d))?(?: (?P<unit>\D.*))?")
QUOTED = re.compile(r"(?:\{\{ *(?:figure|value)\(\"|`)(\w+)(?:\"|\.json`)")
WITH_BARS = re.compile(r"\{\{ *bars\(([^)]*)\)")
MOST_SHOWN = 4  # bars that hold are counted where there are more
CALL = re.compile(r"\{\{.*?}}")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


class Fault(NamedTuple):
    """A fault on a page or in a file.

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
        raise KeyError(f"there is no {path.relative_to(ROOT)}: name a file of that folder, without .json")
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def commit_of(name: str) -> str:
    """The commit that a result was measured on, in ten digits; `unknown` where it says none.

    Where this commit is not of this history, since its branch was rebased, the setting names by `on_main` the commit
    that brought the same change, or else the result itself.
    """
    setting = result(name).get("setting", {})
    return str(setting.get("on_main") or setting.get("commit") or "unknown").replace("-dirty", "")[:10]


def figure(file: str, name: str, form: str) -> str:
    """A figure as a page writes it, with its interval where the file has one; KeyError where no file has it."""
    own, read = _figure_of(file, name), _form_of(form)
    text = _number(own["value"], read, "decimals") + (f" {read['unit']}" if read["unit"] else "")
    if own.get("low") is None:
        return text
    which = "end_decimals" if read["end_decimals"] else "decimals"
    low, high = (_number(own[end], read, which, signed=False) for end in ("low", "high"))
    return f"{text} ({low} to {high})"


def value(file: str, name: str, form: str) -> str:
    """As `figure`, without the interval."""
    own, read = _figure_of(file, name), _form_of(form)
    return _number(own["value"], read, "decimals") + (f" {read['unit']}" if read["unit"] else "")


def bars(*files: str) -> str:
    """A table of the bars of some files: those that failed, and those that hold, which are counted where many do."""
    rows = []
    for file in files:
        every = result(file)["bars"]
        held = [bar for bar in every if bar["holds"]]
        shown = every if len(held) <= MOST_SHOWN else [bar for bar in every if not bar["holds"]]
        for bar in shown:
            limit = f"{bar['sign']} {bar['bar']:g}" if "sign" in bar else f"{bar['bar']:g}"
            verdict = "yes" if bar["holds"] else f"**no**{_power(result(file)['figures'], bar)}"
            rows.append(f"| {bar['name']} | {bar['value']:,.3g} | {limit} | {verdict} |")
        if len(shown) < len(every):
            rows.append(f"| {len(held)} {'other ' if shown else ''}bars of `{file}.json` | | | yes |")
    return "\n".join(["| bar | measured | limit | held |", "| --- | --- | --- | --- |", *rows])


def _power(figures: Mapping[str, Any], bar: Mapping[str, Any]) -> str:
    """Say how many times the questions would show a failed bar of an interval's lower end with probability 0.9.

    The figure is taken for the true one, and its error for normal: 1.96 of it are the interval, 1.28 more the power.
    """
    name, _, end = bar["name"].rpartition(", ")
    if name not in figures or end != "lower end":
        return ""
    own = figures[name]
    if own["value"] <= bar["bar"]:
        return "; no number of questions would show it"
    times = ((1.96 + 1.28) / 1.96 * (own["value"] - own["low"]) / (own["value"] - bar["bar"])) ** 2
    return f"; {times:,.0f} times the questions would show it"


def templates(root: Path = TEMPLATES) -> Iterator[tuple[str, Path]]:
    """The page of each template, by its path in the repository, and the template."""
    for path in sorted(root.rglob(f"*.md{SUFFIX}")):
        yield str(path.relative_to(root)).removesuffix(SUFFIX), path


def rendered(template: str) -> str:
    """A page of a template.

    Raises:
        KeyError: A figure or its file is not there.
        jinja2.TemplateError: The template is wrong.
    """
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)
    environment.globals.update(figure=figure, value=value, bars=bars)
    return environment.from_string(template).render()


def faults_of(place: str, template: str, page: str | None) -> Iterator[Fault]:
    """The faults of a template and its page: a figure that no file has, an interval of no file, a page that lags.

    Args:
        place: Path of the page.
        template: Text of the template.
        page: Text of the page, or None where there is none.
    """
    for number, line in enumerate(CODE.sub(_blank, template).splitlines(), 1):
        found = INTERVAL.search(CALL.sub("", line))
        if found is not None:
            yield Fault(f"{place}:{number}", f"{found[0]} is of no file: write {{{{ figure(...) }}}}")
    try:
        if rendered(template) != page:
            yield Fault(place, "it is not what its template gives: run make pages, and write in docs/_pages alone")
    except (KeyError, ValueError, jinja2.TemplateError) as error:
        yield Fault(place, str(error.args[0] if error.args else error))


def _figure_of(file: str, name: str) -> dict[str, Any]:
    figures = result(file).get("figures", {})
    if name not in figures:
        raise KeyError(f"{file}.json has no figure {name!r}")
    found: dict[str, Any] = figures[name]
    return found


def _form_of(form: str) -> re.Match[str]:
    read = FORM.fullmatch(form)
    if read is None:
        raise ValueError(f"the form is {form!r}; it may be such as 'x100 .1 %', '+.1 points', '.0 .1'")
    return read


def _number(number: float, form: re.Match[str], decimals: str, *, signed: bool = True) -> str:
    scale, sign = 100 if form["scale"] else 1, form["sign"] if signed and form["sign"] else ""
    return f"{scale * number:{sign},.{form[decimals]}f}"


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")
