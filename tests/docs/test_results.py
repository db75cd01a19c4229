"""The page of results says the settings that the classes and the stacks have."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import scaffolding_ext
from scaffolding_ext import load_config
from scaffolding_ext.controllers.chain.probing import ProbeSchedule

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
STACKS = {
    "DynasorCoTController": "configs:dynasor_cot",
    "MajorityVoteController": "configs:majority_vote",
    "ConformalDraftTargetController": "configs:conformal_draft_target",
    "KVShareBranchingController": "configs:kv_share_branching",
}


def rows() -> list[tuple[str, str, str, str]]:
    """Controller, argument, and its two values, of each row of the table of settings."""
    lines = PAGE.read_text(encoding="utf-8").split("## Settings\n")[1].split("\n## ")[0].splitlines()
    cells = [[cell.strip(" `") for cell in line.split("|")[1:5]] for line in lines if line.startswith("| `")]
    return [(controller, argument, of_class, of_stack) for controller, argument, of_class, of_stack in cells]


def default_of(function: Any, argument: str) -> Any:
    return inspect.signature(function).parameters[argument].default


def test_settings_are_those_of_the_class_and_of_the_stack() -> None:
    faults = []
    for controller, argument, of_class, of_stack in rows():
        default = default_of(getattr(scaffolding_ext, controller), argument)
        if default is None and argument == "chunk_size":
            default = default_of(ProbeSchedule, argument)
        shipped = load_config(STACKS[controller]).controller.args[argument]
        if (of_class, of_stack) != (str(default), str(shipped)):
            faults.append(f"{controller}.{argument}: {default} in the class, {shipped} in the stack")
    assert faults == []
    assert {controller for controller, *_ in rows()} == set(STACKS)
