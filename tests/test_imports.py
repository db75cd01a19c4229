"""Imports point one way, stay light, and are absolute; library code neither prints nor sleeps."""

from __future__ import annotations

import ast
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import scaffolding_ext

PACKAGE = "scaffolding_ext"
FAKE_UPSTREAM = Path(__file__).parent / "fake_upstream"
HEAVY = ("torch", "transformers", "tensorrt_llm", "matplotlib", "openai")

# What each part (a module or a folder of the package) may import of the package at run time. Layers from the bottom up;
# imports for type checkers alone are free.
FOUNDATION = (
    "errors",
    "maths",
    "answers",
    "protocol",
    "tasks",
    "worker_tags",
    "lowering",
    "ledger",
    "program",
    "prompting",
    "results",
    "sampling_params",
    "calibration",
    "conformal_calibration",
)
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "errors": (),
    "maths": ("maths",),
    "conformal_calibration": ("errors", "maths"),
    "answers": ("errors", "answers"),
    "standins": (),
    "protocol": ("errors", "standins"),
    "tasks": ("errors", "protocol"),
    "worker_tags": ("protocol",),
    "lowering": ("errors", "protocol", "tasks", "worker_tags"),
    "ledger": ("errors", "protocol", "tasks"),
    "program": ("errors", "protocol", "tasks", "ledger"),
    "sampling_params": ("errors", "protocol", "program"),
    "prompting": ("errors", "protocol", "worker_tags"),
    "results": ("errors", "protocol", "program", "tasks"),
    "controllers": (*FOUNDATION, "registry", "controllers"),
    "scheduling": (*FOUNDATION, "scheduling"),
    "workers": (*FOUNDATION, "workers"),
    "checks": ("errors", "protocol", "worker_tags"),
    "seeds": ("program",),
    "request": ("errors", "protocol", "program", "results"),
    "dispatch": ("errors", "protocol", "results", "worker_tags"),
    "closing": ("errors", "protocol", "dispatch"),
    "runtime": (
        *("errors", "protocol", "tasks", "program", "prompting", "results", "scheduling"),
        *("checks", "seeds", "request", "dispatch", "closing"),
    ),
    "tinylm": ("errors", "prompting", "tinylm"),
    "configs": (),
    "testing": (*FOUNDATION, "standins"),
    "registry": ("errors", "protocol"),
    "calibration": ("errors", "maths"),
    "evaluation": (*FOUNDATION, "runtime", "tinylm", "evaluation"),
    "config": ("errors", "registry"),
    "arguments": ("errors",),
    "placement": ("config", "errors"),
    "engine_needs": (*FOUNDATION, "config", "registry", "stack", "workers"),
    "stack": (*FOUNDATION, "arguments", "config", "placement", "registry", "runtime", "controllers", "scheduling"),
    "calibrate_conformal": (*FOUNDATION, "config", "runtime", "stack", "controllers"),
    "contract": (*FOUNDATION, "runtime", "testing"),
    "testing_http": (),
    "testing_shapes": ("errors", "protocol", "tasks"),
    "testing_server": ("errors", "protocol", "tasks", "testing_http", "testing_shapes"),
    "worker_contract": ("protocol", "tasks"),
}
EVERYTHING = ("__init__", "cli", "calibrate_cli", "engine_cli")
EXCEPTIONS = {"workers.scheduled": ("scheduling",)}


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


def run_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for other in node.orelse:
                yield other
                yield from run_time_nodes(other)
            continue
        yield node
        yield from run_time_nodes(node)


def imported(name: str) -> set[str]:
    """The modules of the package that a module imports at run time, wherever in it the import stands."""
    names: set[str] = set()
    for node in run_time_nodes(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            names |= {f"{PACKAGE}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {module.removeprefix(f"{PACKAGE}.") for module in names if module.startswith(f"{PACKAGE}.")}


def in_fresh_interpreter(code: str) -> str:
    """What the code writes, in an interpreter that could import the fake tensorrt_llm."""
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


@pytest.mark.parametrize("name", sorted(set(MODULES) - set(EVERYTHING)))
def test_imports_point_one_way(name: str) -> None:
    part = name.partition(".")[0]
    assert part in MAY_IMPORT, f"{name} has no row in MAY_IMPORT; say there which layers it may stand on"
    allowed = {*MAY_IMPORT[part], *EXCEPTIONS.get(name, ())}
    refused = {module for module in imported(name) if module.partition(".")[0] not in allowed}
    assert not refused, f"{name} must not import {sorted(refused)}; {part} may import {sorted(allowed)}"


def test_the_table_has_no_cycle() -> None:
    rows = {part: {*allowed} - {part} for part, allowed in MAY_IMPORT.items()}
    while rows:
        bottom = {part for part, allowed in rows.items() if not allowed & rows.keys()}
        assert bottom, f"these rows allow a cycle: {sorted(rows)}"
        rows = {part: allowed for part, allowed in rows.items() if part not in bottom}


def test_the_walk_finds_the_folders_beside_the_package() -> None:
    assert {"controllers.base", "workers.huggingface", "configs", "maths.statistics", "cli"} <= MODULES.keys()


@pytest.mark.parametrize("name", sorted(MODULES))
def test_modules_import_absolutely_and_neither_print_nor_sleep(name: str) -> None:
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: a relative import"
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in ("print", "time.sleep"), f"line {node.lineno}: {ast.unparse(node)}"


@pytest.mark.parametrize("statement", ["import scaffolding_ext", "import scaffolding_ext.cli"])
def test_importing_the_package_loads_nothing_heavy(statement: str) -> None:
    code = f"import sys; {statement}; sys.stdout.write(' '.join(sys.modules))"
    assert not set(HEAVY) & set(in_fresh_interpreter(code).split())


@pytest.mark.parametrize("statement", ["from scaffolding_ext import load_config", "import scaffolding_ext.registry"])
def test_reading_a_stack_file_loads_nothing_heavy(statement: str) -> None:
    code = f"import sys; {statement}; sys.stdout.write(' '.join(sys.modules))"
    assert not set(HEAVY) & set(in_fresh_interpreter(code).split())


def test_controllers_need_no_torch() -> None:
    code = (
        "import sys; from scaffolding_ext import DynasorCoTController, ScaffoldingLlm; "
        "DynasorCoTController(); sys.stdout.write(' '.join(sys.modules))"
    )
    assert not {"torch", "transformers", "matplotlib"} & set(in_fresh_interpreter(code).split())


def test_every_public_name_is_there() -> None:
    for name in scaffolding_ext.__all__:
        assert getattr(scaffolding_ext, name) is not None
    assert set(scaffolding_ext.__all__) <= set(dir(scaffolding_ext))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = scaffolding_ext.no_such_name
