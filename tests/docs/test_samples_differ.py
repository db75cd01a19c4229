"""Every example of README, docs and configs that draws several samples of a question draws samples that differ."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scaffolding_ext
from scaffolding_ext import NativeGenerationController, ScaffoldingLlm, plain_yaml
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.load import load_config
from scaffolding_ext.testing import ScriptedWorker

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "algorithms" / "majority_vote.md", *sorted((ROOT / "docs").glob("*.md"))]
DRAWS = ("MajorityVoteController", "BestOfNController", "DeepConfController", "ConformalDraftTargetController")
ONLINE = "rule: {type: conformal, args: {alpha: 0.4, pool: first_turn, calibration: online}}"  # needs `eval`
GROWING = "rule: {type: growing, args: {alpha: 0.4, min_questions: 1, pool: first_turn}}"
CHECKED = {"type": "scaffolding_ext.testing:ScriptedWorker", "args": {"respond": "1"}}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}[^\n]*\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def of_stack(text: str) -> BaseController | None:
    """The controller of a stack file or of a part of one, its workers left aside; None where it has none."""
    document = plain_yaml.parse(text, "example")
    if not isinstance(document, dict) or "controller" not in document:
        return None
    workers = dict.fromkeys(("generation", "draft", "target"), CHECKED)
    made = check_stack(load_config({"controller": document["controller"], "workers": workers}))
    assert isinstance(made, BaseController)
    return made


def of_python(code: str) -> Iterator[BaseController]:
    """The controllers that a piece of Python makes, the others that they are made of before them."""
    names: dict[str, Any] = {name: getattr(scaffolding_ext, name) for name in scaffolding_ext.__all__}
    names["controller"] = NativeGenerationController()
    for node in ast.parse(textwrap.dedent(code)).body:
        call = node.value if isinstance(node, (ast.Assign, ast.Expr)) else None
        if isinstance(call, ast.Call) and ast.unparse(call.func).endswith("Controller"):
            kind = names.get(ast.unparse(call.func))
            if kind is not None:
                made = eval(compile(ast.Expression(call), "page", "eval"), names)
                if isinstance(node, ast.Assign):
                    names[ast.unparse(node.targets[0])] = made
                yield made


def examples() -> dict[str, BaseController]:
    """Every controller of the package's own that draws several samples, by where it stands."""
    found: dict[str, BaseController | None] = {}
    for path in sorted((ROOT / "configs").glob("*.yaml")):
        text = path.read_text(encoding="utf-8").replace(ONLINE, GROWING)
        found[path.name] = of_stack(text)
    for page in PAGES:
        for number, text in enumerate(blocks(page, "yaml")):
            if any(name in text for name in DRAWS):
                found[f"{page.name}, stack {number}"] = of_stack(text)
        for number, code in enumerate(blocks(page, "python")):
            for made in of_python(code):
                found[f"{page.name}, Python {number}, {type(made).__name__}"] = made
    return {name: made for name, made in found.items() if made is not None and type(made).__name__ in DRAWS}


EXAMPLES = examples()


def drawn(task: Any) -> str | list[float]:
    """As a model does: greedily where no temperature is above 0, else by the seed; each text with an answer of its own.

    The answer is closed as one that a probe has opened, too.
    """
    rng = np.random.default_rng(task.seed if getattr(task, "temperature", None) else 0)
    if isinstance(task, ScoreTask):
        return (-rng.random(len(task.continuation_str))).tolist()
    answer = int(rng.integers(1_000_000))
    return f"{answer}}} \\boxed{{{answer}}}"


def test_the_examples_are_found() -> None:
    places = {name.partition(",")[0] for name in EXAMPLES}
    stacks = {"majority_vote.yaml", "conformal_draft_target.yaml"}
    assert places >= stacks | {"README.md", "majority_vote.md", "tensorrt_llm.md"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_its_samples_differ(name: str) -> None:
    made = EXAMPLES[name]
    workers = {tag: ScriptedWorker(drawn) for tag in made.needs_by_tag()}
    with ScaffoldingLlm(made, workers, seed=0) as llm:
        trace = llm.generate("question").program.trace
    (voted,) = (event for event in trace if event["event"] == "vote")
    answers = voted["answers"]
    assert len(answers) > 1
    assert len(set(answers)) == len(answers)
    assert not [event for event in trace if event["event"] == "warning"]
