"""`fake_upstream/declared.txt` against the double that the tests run on, and against the stand-ins."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from scaffolding_ext.protocol import standins

ROOT = Path(__file__).parents[2]
FAKE = Path(__file__).parents[1] / "fake_upstream"
RELEASES = ("1.2", "1.2.1", "1.3.0rc", "newest")
# Of the stand-ins alone: servers take an effort, and controllers of upstream's older releases set a result.
OURS = {"GenerationTask": {"reasoning_effort", "result"}}
WAIT = 120.0  # seconds until a hanging process fails its test
# Functions, variables, and settings of the engine, whose tests are in `workers/trtllm`.
NO_CLASSES = {"with_task_collection", "current_scope", "LLM", "KvCacheRetentionConfig"}
_LINE = re.compile(r"(?P<text>.*?)(?: @(?P<first>[\w.]+?)(?:\.\.(?P<last>[\w.]+))?)?$")


class Declared(NamedTuple):
    """A class of the table, for one release."""

    place: str
    is_there: bool
    fields: dict[str, list[str]]
    methods: dict[str, list[str]]
    members: dict[str, str]
    facts: list[str]


def table(release: str) -> dict[str, Declared]:
    """The table's classes as a release has them."""
    classes: dict[str, Declared] = {}
    current: Declared | None = None
    for line in (FAKE / "declared.txt").read_text(encoding="utf-8").splitlines():
        match = _LINE.match(line)
        assert match is not None
        first, last = match["first"] or RELEASES[0], match["last"] or RELEASES[-1]
        applies = RELEASES.index(first) <= RELEASES.index(release) <= RELEASES.index(last)
        text = match["text"].strip()
        if line.startswith("class "):
            _, name, module = text.split()
            current = Declared(f"{module}.{name}", applies, {}, {}, {}, [])
            if applies or name not in classes:  # a class that has moved stands here once for each place
                classes[name] = current
        elif current is None or not line.startswith("    ") or not applies:
            continue
        elif text.startswith("def "):
            name, _, parameters = text[4:].rstrip(")").partition("(")
            current.methods[name] = [each.strip() for each in parameters.split(",") if each.strip()]
        elif re.match(r"\w+: ", text) and " of " not in text:
            name, _, rest = text.partition(": ")
            kind, _, default = rest.partition(" =")
            current.fields[name] = [plain(kind), default.strip()]
        elif re.match(r"[A-Z_]+ = ", text):
            name, _, value = text.partition(" = ")
            current.members[name] = value
        else:
            current.facts.append(text)
    return classes


def plain(kind: str) -> str:
    """A type in one spelling: `Optional[List[int]]` and `list[int] | None` are the same."""
    text = kind.replace("typing.", "").replace('"', "").replace("'", "")
    for old in ("List", "Dict", "Tuple"):
        text = re.sub(rf"\b{old}\[", f"{old.lower()}[", text)
    tree = ast.parse(text, mode="eval").body
    parts = sorted(_parts(tree))
    return " | ".join(parts)


def _parts(node: ast.expr) -> set[str]:
    """The members of a union, however it is written."""
    if isinstance(node, ast.BinOp):
        return _parts(node.left) | _parts(node.right)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Optional":
        return _parts(node.slice) | {"None"}
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Union":
        assert isinstance(node.slice, ast.Tuple)
        return set().union(*map(_parts, node.slice.elts))
    return {ast.unparse(node)}


def without_spaces(parameters: list[str]) -> list[str]:
    return [re.sub(r"\s*=\s*", "=", each) for each in parameters]


@pytest.mark.parametrize("release", RELEASES)
def test_the_double_declares_what_the_release_declares(release: str, warm_torch: Path) -> None:
    pytest.importorskip("torch")
    expected = table(release)
    places = json.dumps([each.place for each in expected.values()])
    environment = os.environ | {"PYTHONPATH": str(FAKE), "FAKE_UPSTREAM_RELEASE": release}
    command = [str(warm_torch / "python"), str(FAKE / "scripts" / "declared.py"), places]
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT, check=False)
    assert process.returncode == 0, process.stderr
    found = json.loads(process.stdout.splitlines()[-1])  # upstream prints its version first
    for name, declared in expected.items():
        assert (found[name] is not None) == declared.is_there, name
        if declared.is_there:
            check(name, declared, found[name])


def check(name: str, declared: Declared, found: dict[str, Any]) -> None:
    if declared.members:
        assert found["members"] == declared.members
        return
    fields = {field: [plain(kind), default] for field, (kind, default) in found["fields"].items()}
    if name in (
        "SamplingParams",
        "GuidedDecodingParams",
    ):  # of the many fields those that are used
        fields = {
            field: [declared.fields[field][0], default]
            for field, (_, default) in fields.items()
            if field in declared.fields
        }
    assert fields == declared.fields, name
    for method, parameters in declared.methods.items():
        assert without_spaces(found["methods"][method]) == parameters, f"{name}.{method}"
    if name == "Worker":
        assert declared.facts == [f"look-up: {found['look-up']}"]
    if name == "ExecutionScope":
        scope_id, path = found["scope"]
        assert declared.facts == [
            f"scope_id of request 7, branch 0.2: {scope_id}",
            f"branch_path_list of branch 0.2: {path}",
        ]


STANDINS = [name for name in table("newest") if hasattr(standins, name)]


@pytest.mark.parametrize("name", STANDINS)
def test_the_stand_ins_declare_what_the_newest_release_declares(name: str) -> None:
    declared = table("newest")[name]
    cls = getattr(standins, name)
    inherited = {"worker_tag", "task_handlers"}
    own = set(vars(cls).get("__annotations__", {})) - OURS.get(name, set())
    assert own - inherited == set(declared.fields) - inherited
    for field in dataclasses.fields(cls) if declared.fields else ():
        if field.name in declared.fields:
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            text = "" if default is dataclasses.MISSING else str(default)
            assert text == declared.fields[field.name][1], field.name
    for method in declared.methods:
        assert callable(getattr(cls, method)), method


def test_whatever_the_package_touches_is_in_the_table() -> None:
    touched = set()
    for folder in ("scaffolding_ext", "workers", "controllers"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            touched |= set(re.findall(r"_upstream\.(\w+)", text))
            touched |= set(re.findall(r"\.setting\(\"(\w+)\"\)", text))
            touched |= set(re.findall(r"import_module\(\"tensorrt_llm[\w.]*\"\)\.(\w+)", text))
            touched |= set(re.findall(r"from tensorrt_llm[\w.]* import (\w+)", text))
            touched |= set(re.findall(r"getattr\(_upstream, \"(\w+)\"", text))
    known = set(table("newest"))
    assert {"GenerationTask", "Worker"} <= touched
    assert touched - known == NO_CLASSES
