"""The house: imports point one way, from the upper layers to the lower ones, and every folder says what it is for."""

from __future__ import annotations

import ast
import graphlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from tests.test_imports import MODULES

PACKAGE = "scaffolding_ext"
ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

# The rooms from the ground up: a module may import its own room and those of lower floors. A room is a module or a
# folder of the package, and stands on one floor; the longest name that fits a module is its room. Inside a folder the
# same holds for its own rooms, if it has any below.
LAYERS = (
    ("errors", "configs"),
    ("require", "signature"),
    ("stats", "documents"),
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
        ("needs", "certaindex", "prompting", "calibration_file", "repetition", "rule", "deadline"),
        ("base",),
        ("answer_classes", "reward"),
        ("run",),
        ("chain",),
        ("vote",),
        ("budgets", "tree"),
        ("basic",),
        ("draft_target",),
    ),
    "evaluation": (
        ("drawing", "stack_sections", "tables", "web_page"),
        ("run",),
        ("logs",),
        ("compare", "calibrate", "tune"),
        ("report",),
    ),
}
MOST_LOOSE_MODULES = 8
LAYER_OF = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
MAY_SCHEDULE = ("host", "workers.budgeted", "workers.huggingface", "scheduling", "serving")


def run_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node, except those under `if TYPE_CHECKING:`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for other in node.orelse:
                yield other
                yield from run_time_nodes(other)
            continue
        yield node
        yield from run_time_nodes(node)


@cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def imported(nodes: Iterable[ast.AST]) -> set[str]:
    """The modules of the package that these nodes import."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(PACKAGE):
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            names |= {each if each.removeprefix(f"{PACKAGE}.") in MODULES else node.module for each in inner}
    return {module.removeprefix(f"{PACKAGE}.") for module in names if module.startswith(f"{PACKAGE}.")}


@cache
def graph() -> dict[str, set[str]]:
    """The modules that each module imports when it runs."""
    return {name: imported(run_time_nodes(tree)) for name, tree in trees().items()}


@cache
def graph_with_types() -> dict[str, set[str]]:
    return {name: imported(ast.walk(tree)) for name, tree in trees().items()}


FOLDERS = sorted({""} | {name.rsplit(".", depth)[0] for name in MODULES for depth in range(1, name.count(".") + 1)})


def room_of(module: str) -> str:
    """The room that a module is in; fails where it has none."""
    parts = module.split(".")
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in LAYER_OF:
            return ".".join(parts[:length])
    raise AssertionError(f"{module} is in no room: say in LAYERS which layers it stands on")


def test_no_arrow_points_upward() -> None:
    assert {"controllers.base", "workers.huggingface.worker", "configs", "stats.intervals"} <= graph().keys()
    upward = [
        f"{name} -> {other}"
        for name, others in graph().items()
        for other in others
        if room_of(other) != room_of(name) and LAYER_OF[room_of(other)] >= LAYER_OF[room_of(name)]
    ]
    assert not upward, "these import a room that stands beside their own or above it"


def test_no_arrow_points_upward_inside_a_folder() -> None:
    upward = []
    for folder, floors in INNER_LAYERS.items():
        floor = {room: number for number, rooms in enumerate(floors) for room in rooms}
        inside = {name: name.split(".")[1] for name in graph() if name.startswith(f"{folder}.")}
        assert set(inside.values()) == floor.keys(), "say in INNER_LAYERS on which floor each room stands"
        upward += [
            f"{name} -> {other}"
            for name, room in inside.items()
            for other in graph()[name]
            if other in inside and inside[other] != room and floor[inside[other]] >= floor[room]
        ]
    assert not upward


def rooms_of(folder: str) -> dict[str, set[str]]:
    """The rooms of a folder, each with those that it imports: a room is a folder in it, or a module that lies loose."""
    start = f"{folder}." if folder else ""
    between: dict[str, set[str]] = defaultdict(set)
    for name, others in graph().items():
        if name.startswith(start):
            room = name.removeprefix(start).partition(".")[0]
            inside = {other.removeprefix(start).partition(".")[0] for other in others if other.startswith(start)}
            between[room] |= inside - {room}
    return between


def test_there_is_no_circle_of_rooms_nor_of_modules_by_their_types() -> None:
    assert "base" in rooms_of("controllers")["chain"]
    circles = []
    for each in (*map(rooms_of, FOLDERS), graph_with_types()):
        try:
            graphlib.TopologicalSorter(each).prepare()
        except graphlib.CycleError as error:
            circles.append(error.args[1])
    assert not circles


def top_level_classes(tree: ast.Module) -> Iterator[str]:
    """Names of a module's classes, those under a top-level `if` included."""
    for node in tree.body:
        inner = [node] if not isinstance(node, ast.If) else [*node.body, *node.orelse]
        yield from {each.name for each in inner if isinstance(each, ast.ClassDef)}


def test_no_two_classes_and_no_two_modules_have_one_name() -> None:
    """Modules of algorithms, engines and commands excepted."""
    classes = Counter(name for tree in trees().values() for name in top_level_classes(tree))
    ours = [name for name in MODULES if not name.startswith(("controllers.", "workers.", "cli.")) and "." in name]
    named = Counter(name.rpartition(".")[2] for name in ours)
    assert not [name for times in (classes, named) for name, number in times.items() if number > 1]


def test_few_modules_lie_loose() -> None:
    loose = [name for name in graph() if "." not in name and not MODULES[name].name.startswith("__")]
    assert len(loose) <= MOST_LOOSE_MODULES, f"{loose} lie at the top of the package: each belongs into a room"


def test_only_what_serves_others_schedules() -> None:
    schedule = {name for name, others in graph().items() if any(other.startswith("scheduling") for other in others)}
    assert not [name for name in schedule if not name.startswith(MAY_SCHEDULE)]


def test_every_folder_is_explained() -> None:
    folders = {name.partition(".")[0] for name in graph() if "." in name}
    assert not [folder for folder in folders if f"`{folder}/`" not in PAGE], "docs/architecture.md lacks these"
