"""The files around the package (workflows, templates, images) name what there is."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("packaging")
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from scaffolding_ext import __version__

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
IMAGES = sorted((ROOT / "docker").glob("Dockerfile*"))
SETUP = (ROOT / "setup.py").read_text(encoding="utf-8")
PYTHONS = re.findall(r"Python :: (3\.\d+)", SETUP)


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(workflow: Any) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_every_job_is_bounded_and_may_write_nothing() -> None:
    assert {path.stem for path in WORKFLOWS} == {"check", "release"}
    for workflow in map(read, WORKFLOWS):
        assert workflow["permissions"] == {"contents": "read"}
        assert all("timeout-minutes" in job for job in workflow["jobs"].values())
        assert all(("uses" in step) != ("run" in step) for step in steps(workflow))


def test_the_tests_run_on_every_python_that_the_package_names() -> None:
    matrix = read(ROOT / ".github" / "workflows" / "check.yml")["jobs"]["tests"]["strategy"]["matrix"]["python"]
    assert matrix == PYTHONS


def test_what_they_run_is_there() -> None:
    targets = set(re.findall(r"^([\w.]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for path in (*WORKFLOWS, ROOT / ".pre-commit-config.yaml"):
        text = path.read_text(encoding="utf-8")
        assert set(re.findall(r"(?:run|entry): make (\w+)", text)) <= targets, path.name
        assert all((ROOT / name).exists() for name in re.findall(r"tests/[\w/]+\.py", text)), path.name


def test_pre_commit_watches_files_that_there_are() -> None:
    hooks = [hook for repo in read(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    watched = [hook["files"] for hook in hooks if "files" in hook]
    names = [path.relative_to(ROOT).as_posix() for path in files_of_the_repository()]
    assert watched
    for pattern in watched:
        assert pattern.startswith("^(")
        parts = re.split(r"\|(?![^(]*\))", pattern[2:-1])
        assert [part for part in parts if not any(re.match(part, name) for name in names)] == []


def files_of_the_repository() -> list[Path]:
    folders = ("docs", "controllers", "workers", "scaffolding_ext")
    return [*ROOT.glob("*.*"), *(path for folder in folders for path in (ROOT / folder).rglob("*.*"))]


def test_a_citation_has_the_version_of_the_package() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == __version__
    assert citation["license"] == "Apache-2.0"
    assert citation["authors"]


def test_a_release_without_the_repositorys_address_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "scaffolding_ext").mkdir()
    (tmp_path / "README.md").touch()
    shutil.copy(ROOT / "scaffolding_ext" / "__init__.py", tmp_path / "scaffolding_ext")
    errors = (ROOT / "scaffolding_ext" / "errors.py").read_text(encoding="utf-8")
    (tmp_path / "scaffolding_ext" / "errors.py").write_text(errors.replace("RELEASED = False", "RELEASED = True"))
    (tmp_path / "setup.py").write_text(with_home(""))
    monkeypatch.setattr("setuptools.setup", lambda **arguments: None)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="HOME is empty, so this cannot be released"):
        runpy.run_path("setup.py")
    (tmp_path / "setup.py").write_text(with_home("https://github.com/somebody/scaffolding_ext"))
    runpy.run_path("setup.py")


def with_home(address: str) -> str:
    return re.sub(r'^HOME = ".*?"', f'HOME = "{address}"', SETUP, flags=re.MULTILINE)


def instructions(path: Path) -> list[tuple[str, str]]:
    """Name and arguments of each instruction of a Dockerfile."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [(name, rest) for name, _, rest in (line.strip().partition(" ") for line in joined.splitlines() if line)]


def test_an_image_serves_as_a_user_without_rights_says_how_it_is_and_installs_extras_that_there_are() -> None:
    extras = set(re.findall(r'^    "([\w-]+)": \[', SETUP, re.MULTILINE))
    assert len(IMAGES) == 2
    for path in IMAGES:
        found = instructions(path)
        last = dict(found[max(i for i, (name, _) in enumerate(found) if name == "FROM") :])
        assert last["USER"] == "10001", path.name
        assert "/ready" in last["HEALTHCHECK"], path.name
        assert last["ENTRYPOINT"].startswith('["scaffolding-ext", "serve"'), path.name
        order = [name for name, _ in found]
        assert order.index("USER") > max(i for i, name in enumerate(order) if name in ("RUN", "COPY")), path.name
        named = re.findall(r"(?:EXTRAS=|\.\[)([a-z,-]+)", path.read_text(encoding="utf-8"))
        assert named, path.name
        assert {name for each in named for name in each.split(",")} <= extras, path.name


def test_an_image_gets_what_setup_reads() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {"setup.py", "pyproject.toml", "README.md", "LICENSE", "constraints.txt"} <= allowed
    assert set(re.findall(r'^    "[\w.]+": "(\w+)",$', SETUP, re.MULTILINE)) <= allowed
    assert all((ROOT / name).exists() for name in allowed)


@pytest.mark.parametrize(("tool", "paths"), [("actionlint", WORKFLOWS), ("hadolint", IMAGES)])
def test_the_linter_finds_nothing(tool: str, paths: list[Path]) -> None:
    found = shutil.which(tool)
    if found is None:
        pytest.skip(f"{tool} is not installed here")
    process = subprocess.run([found, *map(str, paths)], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr


def pins(python: str) -> dict[str, list[SpecifierSet]]:
    """The versions of constraints.txt on a Python, by the packages' normalised names."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    held: dict[str, list[SpecifierSet]] = {}
    for pin in (Requirement(line) for line in lines if line and not line.startswith("#")):
        if pin.marker is None or pin.marker.evaluate({"python_version": python, "python_full_version": f"{python}.0"}):
            held.setdefault(canonicalize_name(pin.name), []).append(pin.specifier)
    return held


@pytest.fixture
def setup_arguments(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The arguments that setup.py gives to setuptools."""
    given: dict[str, Any] = {}
    monkeypatch.setattr("setuptools.setup", lambda **arguments: given.update(arguments))
    monkeypatch.chdir(ROOT)
    runpy.run_path(str(ROOT / "setup.py"))
    return given


def test_every_requirement_has_one_pin_that_it_takes(setup_arguments: dict[str, Any]) -> None:
    """Two pins of one package cannot be kept; without one pip searches, or finds that nothing fits."""
    extras = setup_arguments["extras_require"].values()
    lines = [*setup_arguments["install_requires"], *(line for lines in extras for line in lines)]
    wrong = []
    for python in PYTHONS:
        held = pins(python)
        wrong += [(python, name, found) for name, found in held.items() if len(found) > 1]
        for wanted in map(Requirement, lines):
            found = held.get(canonicalize_name(wanted.name), [])
            if not found or not all(wanted.specifier.contains(str(pin).removeprefix("==")) for pin in found):
                wrong.append((python, str(wanted), found))
    assert not wrong


@pytest.mark.slow
def test_pip_can_install_every_extra_with_the_pins(setup_arguments: dict[str, Any]) -> None:
    """Its own resolver finds versions of all packages that go together; nothing is installed. It asks pip's index."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--constraint", "constraints.txt"]
    wanted = [*setup_arguments["install_requires"], *setup_arguments["extras_require"]["all"]]
    done = subprocess.run([*command, *wanted], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
