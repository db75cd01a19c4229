"""The stand-ins declare what `fake_upstream/declared.txt` says of the newest release."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from scaffolding_ext.protocol import standins

TABLE = Path(__file__).parents[1] / "fake_upstream" / "declared.txt"
# Of the stand-ins alone: servers take an effort, and controllers of upstream's older releases set a result.
OURS = {"GenerationTask": {"reasoning_effort", "result"}}
INHERITED = {"worker_tag", "task_handlers"}


def declared() -> dict[str, tuple[dict[str, str], list[str]]]:
    """Fields with their defaults, and methods, of each class of the newest release."""
    classes: dict[str, tuple[dict[str, str], list[str]]] = {}
    fields: dict[str, str] = {}
    methods: list[str] = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        text, _, releases = line.partition(" @")
        if ".." in releases:  # it ends before the newest
            continue
        if line.startswith("class "):
            fields, methods = classes[text.split()[1]] = {}, []
        elif method := re.match(r"    def (\w+)\(", text):
            methods.append(method[1])
        elif (field := re.match(r"    (\w+): .*?(?: =(.*))?$", text)) and " of " not in text:
            fields[field[1]] = (field[2] or "").strip()
    return classes


def test_the_stand_ins_declare_what_the_newest_release_declares() -> None:
    found = {name: each for name, each in declared().items() if hasattr(standins, name)}
    assert {"GenerationTask", "StreamGenerationTask", "ChatTask", "Worker", "Controller"} <= found.keys()
    wrong = []
    for name, (fields, methods) in found.items():
        cls = getattr(standins, name)
        own = set(vars(cls).get("__annotations__", {})) - OURS.get(name, set())
        wrong += [(name, field) for field in (own ^ set(fields)) - INHERITED]
        for field in dataclasses.fields(cls) if fields else ():
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            text = "" if default is dataclasses.MISSING else str(default)
            if text != fields.get(field.name, text):
                wrong.append((name, field.name, text))
        wrong += [(name, method) for method in methods if not callable(getattr(cls, method, None))]
    assert wrong == []
