"""The house: imports point one way, from the upper layers to the lower ones, and every folder says what it is for."""

from __future__ import annotations

import ast
import graphlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import scaffolding_ext

PACKAGE = "scaffolding_ext"
ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

# The rooms from the ground up: a module may import its own room and those of lower floors. A room is a module or a
# folder of the package, and stands on one floor; the longest name that fits a module is its room. Inside a folder the
# same holds for its own rooms, if it has any below.
LAYERS = (
    ("installing",),
    ("errors", "configs"),
    ("require", "signature"),
    ("stats", "documents", "environment"),
    ("answers", "plain_yaml"),
    ("protocol",),
    ("request", "registry"),
    ("prompts",),
    ("tinylm",),
    ("scheduling",),
    ("controllers", "workers"),
    ("host",),
    ("stack",),
    ("testing",),
    ("evaluation",),
    ("serving", "plugins", "doctor"),
    ("cli",),
    ("__init__", "__main__"),
)
# The rooms of a folder, from the ground up, where it has some: an algorithm a folder, and what the algorithms share.
INNER_LAYERS = {
    "controllers": (
        ("capabilities", "certaindex", "prompting", "calibration_file", "repetition"),
        ("base",),
        ("answer_classes", "reward"),
        ("chain",),
        ("vote",),
        ("budgets", "tree"),
        ("basic",),
        ("draft_target",),
    ),
    "evaluation": (("drawing", "tables"), ("run",), ("recordings",), ("compare", "calibrate"), ("report",)),
}
MOST_LOOSE_MODULES = 12
LAYER_OF = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
MAY_SCHEDULE = ("host", "workers.budgeted", "workers.huggingface", "scheduling")


def modules() -> dict[str, Path]:
    """File of every Python module by its name within the package; the folders beside it are reached by its symlinks."""
    found = {"__init__": Path(str(scaffolding_ext.__file__))}
    for module in pkgutil.walk_packages([str(ROOT / PACKAGE)], f"{PACKAGE}."):
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
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(PACKAGE):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {each if each.removeprefix(f"{PACKAGE}.") in MODULES else node.module for each in inner}
    return {module.removeprefix(f"{PACKAGE}.") for module in names if module.startswith(f"{PACKAGE}.")}


GRAPH = {name: imported(name) for name in MODULES}


def room_of(module: str) -> str:
    """The room that a module is in; fails where it has none."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in LAYER_OF:
            return ".".join(parts[:length])
    raise AssertionError(f"{module} is in no room: say in LAYERS which layers it stands on")


def test_the_graph_reaches_the_folders_beside_the_package() -> None:
    assert {"controllers.base", "workers.huggingface.worker", "configs", "stats.intervals"} <= GRAPH.keys()
    assert "controllers.base" in GRAPH["controllers.vote.majority_vote"]


@pytest.mark.parametrize("name", sorted(GRAPH))
def test_no_arrow_points_upward(name: str) -> None:
    room = room_of(name)
    upward = {other for other in GRAPH[name] if room_of(other) != room and LAYER_OF[room_of(other)] >= LAYER_OF[room]}
    assert not upward, f"{name} must not import {sorted(upward)}: they stand beside {room} or above it"


@pytest.mark.parametrize("folder", INNER_LAYERS)
def test_no_arrow_points_upward_inside_a_folder(folder: str) -> None:
    floor = {room: number for number, rooms in enumerate(INNER_LAYERS[folder]) for room in rooms}
    inside = {name: name.split(".")[1] for name in GRAPH if name.startswith(f"{folder}.")}
    assert set(inside.values()) == floor.keys(), "say in INNER_LAYERS on which floor each room stands"
    upward = {
        f"{name} -> {other}"
        for name, room in inside.items()
        for other in GRAPH[name]
        if other in inside and inside[other] != room and floor[inside[other]] >= floor[room]
    }
    assert not upward


def test_few_modules_lie_loose() -> None:
    loose = [name for name in GRAPH if "." not in name and MODULES[name].name != "__init__.py"]
    assert len(loose) + 1 <= MOST_LOOSE_MODULES, f"{loose} lie at the top of the package: each belongs into a room"


def test_there_is_no_circle() -> None:
    graphlib.TopologicalSorter(GRAPH).prepare()  # a circle raises, and says which modules are in it


@pytest.mark.parametrize("name", sorted(GRAPH))
def test_only_what_serves_others_schedules(name: str) -> None:
    schedules = any(other.partition(".")[0] == "scheduling" for other in GRAPH[name])
    assert not schedules or name.startswith(MAY_SCHEDULE)


@pytest.mark.parametrize("folder", sorted({name.partition(".")[0] for name in GRAPH if "." in name}))
def test_every_folder_is_explained(folder: str) -> None:
    assert f"`{folder}/`" in PAGE, f"docs/architecture.md does not say what {folder}/ is for"
