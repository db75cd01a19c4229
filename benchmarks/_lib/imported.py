"""The files of this repository that a study runs, found without importing it."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import scaffolding_ext
from benchmarks._lib.provenance import ROOT


@cache
def imported_by(module: str) -> frozenset[Path]:
    """The file of a module, and those that it imports, directly or not; paths are relative to the repository.

    Modules of which only types are imported are left out. Stack files that it names count, with their controllers.
    """
    found, left = set[Path](), {module}
    while left:
        name = left.pop()
        stem = ROOT / name.replace(".", "/")
        files = [ROOT / f"{name.replace(':', '/')}.yaml", stem.with_suffix(".py"), stem / "__init__.py"]
        for path in (each.resolve() for each in files if each.is_file()):
            if path not in found:
                found.add(path)
                left |= _named_in(path)
    return frozenset(path.relative_to(ROOT) for path in found)


@cache
def _named_in(path: Path) -> frozenset[str]:
    return frozenset(_names(path))


def _names(path: Path) -> Iterator[str]:
    """Modules, and stack files as `configs:NAME`, that a file names; some of them may not exist."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".yaml":
        yield from (_module_of(name) for name in re.findall(r"type: (\w+)", text))
        return
    nodes: list[ast.AST] = [ast.parse(text)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes += node.orelse
            continue
        nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from () if node.module == "scaffolding_ext" else [str(node.module)]
            yield from (f"{node.module}.{each.name}" for each in node.names)
            yield from (_module_of(each.name) for each in node.names if node.module == "scaffolding_ext")
        elif isinstance(node, ast.Constant) and re.fullmatch(r"configs:[\w/]+", str(node.value)):
            yield str(node.value)


def _module_of(name: str) -> str:
    """The module that holds a public name."""
    return f"scaffolding_ext.{scaffolding_ext._MODULE_OF.get(name)}"


@cache
def changed_since(commit: str) -> frozenset[Path] | None:
    """Files that differ between a commit and the one that is checked out; None if that commit is not at hand."""
    command = ("git", "diff", "--name-only", "--no-renames", commit, "HEAD")
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return None if run.returncode else frozenset(map(Path, run.stdout.split("\n")))
