"""The pages together: all are on the site, no link leads nowhere, and every name and command on them is real."""

from __future__ import annotations

import importlib.util
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import scaffolding_ext
from scaffolding_ext import errors, registry
from scaffolding_ext.errors import MissingDependencyError, how_to_install, install_command
from scaffolding_ext.protocol.meta import Purpose

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if not page.is_relative_to(DOCS / "_scripts"))
ALL = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES]
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in ALL}

LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]*))?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
ADDRESS = re.compile(r"\]\((https?:[^)]*)\)")
CODE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
GROUPS = {f"scaffolding_ext.{name}" for name, each in vars(registry).items() if isinstance(each, registry.Registry)}
DOTTED = re.compile(r"(?<![\w./-])scaffolding_ext(?:\.\w+)+")
FILES = (".py", ".json", ".md", ".yaml")
IMPORTED = re.compile(r"from (scaffolding_ext[\w.]*) import ([\w, ]+)")
NAMED_FILE = re.compile(
    r"`((?:benchmarks|tests|docs|controllers|workers|configs|docker|deploy|examples)/[\w./-]*\.\w+)`"
)
INSTALL = re.compile(
    r"pip install (?:-e |--editable )?'?(?:\.|scaffolding-ext)(?:\[([^]]*)])?'?(?=[\s`;]|$)", re.MULTILINE
)
BRINGS_TORCH = {"hf", "lm-eval", "semantic", "train", "all"}


def named(entry: Any) -> list[str]:
    """The pages of a part of the navigation."""
    if isinstance(entry, str):
        return [entry]
    return [page for part in (entry.values() if isinstance(entry, dict) else entry) for page in named(part)]


def navigation() -> list[str]:
    """Every page in the navigation."""
    return named(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])


def script(name: str) -> Any:
    """A script of docs/_scripts as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / "_scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(navigation()) == sorted(str(page.relative_to(DOCS)) for page in PAGES), "add it to nav in mkdocs.yml"


def anchors(page: Path) -> set[str]:
    """Those of a page's headings, as the site names them."""
    words = [
        re.sub(r"[^\w\s-]", "", each).strip().lower() for each in HEADING.findall(page.read_text(encoding="utf-8"))
    ]
    return {re.sub(r"[-\s]+", "-", each) for each in words}


def test_no_link_leads_nowhere() -> None:
    faults = []
    for page, text in TEXTS.items():
        prose = CODE.sub("", text)
        for name, anchor in LINK.findall(prose):
            target = (ROOT / page).parent / name if name else ROOT / page
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
                faults.append(f"{page}: {name}#{anchor}")
        faults += [f"{page}: {each}" for each in ADDRESS.findall(prose) if not re.match(r"https?://[\w.-]+\.\w+", each)]
        faults += [f"{page}: an address that does not exist" for _ in re.findall("OWNER", text)]
    assert faults == []


def is_there(name: str) -> bool:
    """If the name can be imported, or could be with its extra."""
    module, _, last = name.rpartition(".")
    try:
        owner = pkgutil.resolve_name(module)
    except (ImportError, AttributeError):
        path = ROOT / f"{module.replace('.', '/')}.py"
        return path.exists() and f"class {last}(" in path.read_text(encoding="utf-8")
    return hasattr(owner, last) or (hasattr(owner, "__path__") and importlib.util.find_spec(name) is not None)


def names_in(text: str) -> Iterator[str]:
    """Every dotted name of the package in a text."""
    yield from (name for name in DOTTED.findall(text) if not name.endswith(FILES) and name not in GROUPS)
    for module, imported in IMPORTED.findall(text):
        yield from (f"{module}.{name.strip()}" for name in imported.split(",") if name.strip())


def test_names_and_files_on_the_pages_exist() -> None:
    faults = []
    for page, text in TEXTS.items():
        if page == "CHANGELOG.md":  # it names what went
            continue
        faults += [f"{page}: {name}" for name in sorted({*names_in(text)}) if not is_there(name)]
        faults += [f"{page}: {name}" for name in NAMED_FILE.findall(text) if not (ROOT / name).exists()]
    assert faults == []


def test_the_reference_has_every_public_name() -> None:
    text = TEXTS["docs/reference/python.md"]
    shown = {line.rpartition(".")[2] for line in re.findall(r"^::: (scaffolding_ext\.[\w.]+)$", text, re.MULTILINE)}
    wanted = {name for name in scaffolding_ext.__all__ if name != "__version__" and not hasattr(errors, name)}
    assert wanted - shown == set()
    assert "errors" in shown
    rows = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    assert {purpose.value for purpose in Purpose} <= rows


def test_what_the_guides_import_is_public() -> None:
    table = TEXTS["docs/reference/python.md"].partition("## Modules for authors")[2].partition("\n## ")[0]
    public = {f"scaffolding_ext{word}" if word.startswith(".") else word for word in re.findall(r"`([\w.]+)`", table)}
    examples = [path.read_text(encoding="utf-8") for path in (ROOT / "examples").glob("own_*/*.py")]
    imported = {module for text in [*TEXTS.values(), *examples] for module, _ in IMPORTED.findall(text)}
    assert imported - public - {"scaffolding_ext"} == set()


def test_the_page_of_serving_names_every_metric() -> None:
    pytest.importorskip("prometheus_client")
    from scaffolding_ext.serving.metrics import Metrics

    rows = set(re.findall(r"^\| `(scaffolding_\w+)` \|", TEXTS["docs/serving.md"], re.MULTILINE))
    printed = Metrics(lambda: {"stack": 1}).page().decode()
    families = set(re.findall(r"^# TYPE (\w+)", printed, re.MULTILINE))
    assert rows == {name for name in families if not name.endswith("_created")}


def test_generated_pages_are_of_today() -> None:
    stack_files = subprocess.run(  # in its own process, since tests register names, too
        [sys.executable, DOCS / "_scripts" / "stack_files.py"], capture_output=True, text=True, check=True
    ).stdout
    made = {"docs/reference/cli.md": script("commands").page(), "docs/stack_files.md": stack_files}
    with_commands = script("install_commands").with_todays_commands
    lag = [page for page, text in TEXTS.items() if made.get(page, with_commands(text)) != text]
    assert lag == [], "run make pages"


def extras() -> set[str]:
    """Those of setup.py."""
    text = (ROOT / "setup.py").read_text(encoding="utf-8")
    return set(re.findall(r'^    "([\w-]+)": \[', text, re.MULTILINE)) | {"all"}


def test_pages_install_extras_that_exist() -> None:
    faults = []
    for page, text in TEXTS.items():
        installed: set[str] = set()
        for found in INSTALL.finditer(text):
            given = re.findall(r"[\w-]+", found[1] or "")
            installed |= set(given)
            if found[0] != install_command(*given) or not set(given) <= extras():
                faults.append(f"{page}: {found[0]}")
        if installed & BRINGS_TORCH and "install.md" not in text and "download.pytorch.org/whl/cpu" not in text:
            faults.append(f"{page}: says nothing of torch without CUDA")
        if "--dataset hf:" in text and not installed & {"problems", "all"}:
            faults.append(f"{page}: reads a data set of a hub without the extra problems")
    assert faults == []
    rows = re.findall(r"^\| (`.*?) \|", TEXTS["docs/install.md"], re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`([\w-]+)`", row)} == extras()


def test_a_release_changes_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with_todays_commands = script("install_commands").with_todays_commands
    page = "Say `pip install '.[hf, openai]'`, or `pip install '.'`; not `pip install './other'`."
    monkeypatch.setattr(errors, "RELEASED", True)
    released = page.replace("'.[hf, openai]'", "'scaffolding-ext[hf,openai]'").replace("'.'", "'scaffolding-ext'")
    assert with_todays_commands(page) == released
    assert how_to_install("hf") == "install it with: pip install 'scaffolding-ext[hf]'"
    monkeypatch.setattr(errors, "RELEASED", False)
    assert with_todays_commands(released) == page.replace("hf, openai", "hf,openai")
    both = MissingDependencyError("torch and transformers", "hf")
    assert str(both) == f"torch and transformers are not installed; {how_to_install('hf')}"


def test_the_site_is_built_and_no_link_leads_nowhere(tmp_path: Path) -> None:
    for module in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(module)
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    built = {str(path.relative_to(site)): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    assert {page.removesuffix(".md") + ".html" for page in navigation()} <= built.keys()
    for example in sorted((ROOT / "examples").glob("*.*")):  # readers of the site alone can take each
        assert (site / "examples" / example.name).read_bytes() == example.read_bytes()
    loaded = re.compile(r'<(?:script|link|img)[^>]+(?:src|href)="(https?://[^"]+)"')
    foreign = [(name, address) for name, text in built.items() for address in loaded.findall(text)]
    assert not foreign, "a page loads nothing from elsewhere"
