"""The site: every page is on it and says at once what it is for; no link leads nowhere; a script draws its pictures."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.protocol.meta import Purpose

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if not page.is_relative_to(DOCS / "_scripts"))
FIGURES = re.compile(r"^Figures?: `\w+\.json`")  # the line that names the files of the figures


def named(entry: Any) -> list[str]:
    """The pages of a part of the navigation."""
    if isinstance(entry, str):
        return [entry]
    return [page for part in (entry.values() if isinstance(entry, dict) else entry) for page in named(part)]


def navigation() -> list[str]:
    """Every page in the navigation."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    return named(yaml.safe_load(text)["nav"])


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(navigation()) == [str(page.relative_to(DOCS)) for page in PAGES], "add it to nav in mkdocs.yml"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_a_page_says_at_once_what_it_is_for(page: Path) -> None:
    """Its first twelve lines are a title and at least one sentence of text: not a table, not code."""
    lines = page.read_text(encoding="utf-8").splitlines()[:12]
    assert lines[0].startswith("# ")
    head = "\n".join(lines[1:]).split("\n```")[0].splitlines()  # what stands before code
    words = [line for line in head if line and not FIGURES.search(line) and line[0] not in "|#!:<{"]
    assert len(" ".join(words).split()) >= 15, "say in words what the page is for, and for whom"
    assert "." in " ".join(words)


LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)(?:#[^)\s]*)?\)")
CODE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES], ids=lambda page: page.name
)
def test_no_link_to_a_file_leads_nowhere(page: Path) -> None:
    targets = LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))
    assert [target for target in targets if not (page.parent / target).exists()] == []


def script(name: str) -> Any:
    """A script of docs/_scripts as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "_scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pictures_are_those_of_the_script() -> None:
    drawn = script("pictures").pictures()
    assert {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "_assets").glob("*.svg")} == drawn, (
        "make pages"
    )
    shown = set(re.findall(r"_assets/(\w+\.svg)", "".join(page.read_text(encoding="utf-8") for page in PAGES)))
    assert shown == drawn.keys()


def test_the_page_of_commands_is_what_the_commands_say() -> None:
    page = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    assert page == script("commands").page(), "docs/reference/cli.md lags: run make pages"
    assert "\b" not in page


def test_the_page_of_metrics_names_every_purpose_and_metric() -> None:
    pytest.importorskip("prometheus_client")
    from scaffolding_ext.serving.metrics import Metrics

    page = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    rows = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert {purpose.value for purpose in Purpose} <= rows
    told = Metrics(lambda: {"stack": 1}).page().decode()
    families = {name for name in re.findall(r"^# TYPE (\w+)", told, re.MULTILINE) if not name.endswith("_created")}
    assert {row for row in rows if row.startswith("scaffolding_")} == families


def test_the_reference_has_every_public_name() -> None:
    import scaffolding_ext

    texts = "".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    shown = {line.rpartition(".")[2] for line in re.findall(r"^::: (scaffolding_ext\.[\w.]+)$", texts, re.MULTILINE)}
    from scaffolding_ext import errors

    wanted = {name for name in scaffolding_ext.__all__ if name != "__version__" and not hasattr(errors, name)}
    assert wanted <= shown
    assert "errors" in shown


@pytest.mark.slow
def test_the_site_is_built_and_no_link_leads_nowhere(tmp_path: Path) -> None:
    for module in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(module)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    built = {str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*.html")}
    assert {page.removesuffix(".md") + ".html" for page in navigation()} <= built
    for example in sorted((ROOT / "examples").glob("*.*")):  # who has the site alone can read and take each
        assert (tmp_path / "site" / "examples" / example.name).read_bytes() == example.read_bytes()
        assert f'href="examples/{example.name}"' in (tmp_path / "site" / "getting_started.html").read_text(
            encoding="utf-8"
        )
    foreign = [
        (path.name, address)
        for path in (tmp_path / "site").rglob("*.html")
        for address in re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"', path.read_text())
    ]
    assert not foreign, "a page loads nothing from elsewhere"
