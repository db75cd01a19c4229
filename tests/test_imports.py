"""Imports stay light and are absolute; library code neither prints nor sleeps."""

from __future__ import annotations

import ast
import json
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import scaffolding_ext

PACKAGE = "scaffolding_ext"
FAKE_UPSTREAM = Path(__file__).parent / "fake_upstream"
HEAVY = ("torch", "transformers", "tensorrt_llm", "matplotlib", "openai")


def modules() -> dict[str, Path]:
    """File of every Python module of the installed package, by its name within the package."""
    found = {"__init__": Path(str(scaffolding_ext.__file__))}
    for module in pkgutil.walk_packages(scaffolding_ext.__path__, f"{PACKAGE}."):
        spec = module.module_finder.find_spec(module.name, None)
        assert spec is not None
        if str(spec.origin).endswith(".py"):  # the C kernel is none
            found[module.name.removeprefix(f"{PACKAGE}.")] = Path(str(spec.origin))
    return found


MODULES = modules()


def in_fresh_interpreter(code: str) -> str:
    """Return the output of the code in an interpreter that could import the fake tensorrt_llm."""
    path = os.pathsep.join(filter(None, (str(FAKE_UPSTREAM), os.environ.get("PYTHONPATH"))))
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def faults(name: str, tree: ast.AST) -> Iterator[str]:
    """Relative imports, prints, sleeps, and what Python 3.10 refuses: a `NamedTuple` with another base beside it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield f"{name}:{node.lineno}: a relative import"
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "time.sleep"):
            yield f"{name}:{node.lineno}: {ast.unparse(node)}"
        if isinstance(node, ast.ClassDef) and "NamedTuple" in map(ast.unparse, node.bases) and len(node.bases) > 1:
            yield f"{name}:{node.lineno}: {node.name} cannot be made on Python 3.10"


def test_modules_import_absolutely_neither_print_nor_sleep_and_are_of_the_oldest_python() -> None:
    found = []
    for name, path in MODULES.items():
        text = path.read_text(encoding="utf-8")
        try:
            found += faults(name, ast.parse(text, feature_version=(3, 10)))
        except SyntaxError as error:
            found.append(f"{name}:{error.lineno}: {error.msg}")
    assert not found


def test_the_package_its_commands_and_its_controllers_load_nothing_heavy() -> None:
    """Controllers take the classes of TensorRT-LLM where it is installed."""
    code = (
        "import sys; import scaffolding_ext.cli.main; from scaffolding_ext import load_config; "
        "print(*sys.modules); from scaffolding_ext import DynasorCoTController; DynasorCoTController(); "
        "print(*sys.modules)"
    )
    before, after = (set(line.split()) & set(HEAVY) for line in in_fresh_interpreter(code).splitlines())
    assert (before, after) == (set(), {"tensorrt_llm"})


@pytest.mark.parametrize(
    ("command", "leaves_out"),
    [
        ("['--help']", ("numpy", "scipy", "pydantic", "rich", "asyncio")),
        ("['eval', '--help']", ("numpy", "scipy", "pydantic", "rich", "asyncio")),
        ("['eval', '--config', 'configs:native', '--dry_run']", ("scipy", "sympy", "torch", "transformers")),
        ("['eval', '--config', 'configs:dynasor_cot', '--dry_run']", ("sympy", "torch", "transformers")),
        (
            "['run', '2+2?', '--config', 'configs:native', '--set', 'controller.args.sampling_params.max_tokens=4']",
            ("matplotlib",),
        ),
    ],
)
def test_a_command_loads_only_what_it_needs(command: str, leaves_out: tuple[str, ...]) -> None:
    """A command loads no more than it needs; a list of modules holds that, since a clock would not."""
    if "configs:" in command:
        pytest.importorskip("torch")
    code = (
        f"import sys; from scaffolding_ext.cli.main import main; main({command}, standalone_mode=False); "
        "sys.stdout.write(' '.join(sys.modules))"
    )
    assert not set(leaves_out) & set(in_fresh_interpreter(code).split())


def test_every_module_imports_and_tune_runs(tmp_path: Path) -> None:
    """On the Python that runs the tests; only a module of an extra that is not installed may be left out."""
    log = tmp_path / "log.jsonl"
    rows = [{"id": str(number), "target": "7", "samples": ["7", "7", "8"]} for number in range(6)]
    log.write_text("\n".join(map(json.dumps, rows)))
    code = f"""
import importlib, sys
from scaffolding_ext.cli.main import main
from scaffolding_ext.errors import MissingDependencyError
main(["tune", {str(log)!r}], standalone_mode=False)
for name in {[name for name in sorted(MODULES) if name != "__init__"]}:
    try:
        importlib.import_module("{PACKAGE}." + name)
    except (ModuleNotFoundError, MissingDependencyError) as error:
        sys.stdout.write(f"lacks {{getattr(error, 'name', None) or error.package}}\\n")
"""
    table, *lacking = in_fresh_interpreter(code).split("lacks ")
    assert "Advice: " in table
    assert {each.strip() for each in lacking} <= {"torch", "ray[serve]", "lm-evaluation-harness", "inspect_ai"}


def test_every_public_name_is_there() -> None:
    for name in scaffolding_ext.__all__:
        assert getattr(scaffolding_ext, name) is not None
    assert set(scaffolding_ext.__all__) <= set(dir(scaffolding_ext))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = scaffolding_ext.no_such_name


def test_what_the_readme_and_the_guides_import_is_exported() -> None:
    root = Path(__file__).parents[1]
    texts = [page.read_text(encoding="utf-8") for page in (root / "README.md", *sorted((root / "docs").glob("*.md")))]
    imported = [names for text in texts for names in re.findall(r"from scaffolding_ext import ([\w, ]+)", text)]
    named = re.findall(r"`(\w+(?:Controller|Worker))`", texts[0])
    wanted = {name.strip() for names in imported for name in names.split(",")} | set(named)
    assert {"MajorityVoteController", "HuggingFaceWorker", "ScaffoldingLlm"} <= wanted
    assert wanted <= set(scaffolding_ext.__all__)


def test_type_checkers_and_the_interpreter_read_the_same_names() -> None:
    tree = ast.parse(Path(str(scaffolding_ext.__file__)).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    shown = {
        alias.asname: f"{node.module}.{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    table = {name: f"{PACKAGE}.{module}.{name}" for name, module in scaffolding_ext._MODULE_OF.items()}
    assert shown == table
