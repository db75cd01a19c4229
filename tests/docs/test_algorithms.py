"""The pages of algorithms: each begins with its five parts, and its YAML is a stack that this package builds."""

from __future__ import annotations

from pathlib import Path

import pytest

from scaffolding_ext import plain_yaml
from scaffolding_ext.registry import controllers
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.load import load_config

FOLDER = Path(__file__).parents[2] / "docs" / "algorithms"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.name != "index.md")
PARTS = ["When to use it", "YAML", "Measured", "What it does not do"]
INSIDE_OTHERS = {"RewardController", "ProcessRewardController", "RecordChainController"}
INSIDE_OTHERS |= {
    "ResultRewardController",
}  # around TensorRT-LLM's own trees: docs/algorithms/search.md
PLAIN = {"NativeGenerationController", "DynasorGenerationController"}  # the latter is upstream's name of DynasorCoT


def stack_of(page: Path) -> dict[str, object]:
    """The stack file on a page."""
    _, _, text = page.read_text(encoding="utf-8").partition("```yaml\n")
    stack = plain_yaml.parse(text.partition("```")[0], page.name)
    assert isinstance(stack, dict)
    return stack


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_a_picture_and_its_parts(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")][: len(PARTS)] == PARTS
    assert f"](../_assets/{page.stem}.svg)" in text.partition("\n## ")[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_its_yaml_is_a_stack(page: Path) -> None:
    check_stack(load_config(stack_of(page)))


def test_every_controller_has_a_page() -> None:
    shown = {str(stack_of(page)["controller"]["type"]) for page in PAGES}  # type: ignore[index]
    own = {name for name in controllers.names() if controllers.resolve(name).__module__.startswith("scaffolding_ext.")}
    wanted = {name for name in own if name.endswith("Controller")} - INSIDE_OTHERS - PLAIN
    assert wanted <= shown


def test_the_overview_leads_to_every_page() -> None:
    text = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if f"]({page.name})" not in text] == []
