"""The pages of algorithms: each begins with its five parts, and their YAML is stacks that this package builds."""

from __future__ import annotations

import re
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


def stacks() -> list[tuple[str, dict[str, object]]]:
    """The first stack of each page of its own, and every one of the overview and of the page on scheduling."""
    found: list[tuple[str, dict[str, object]]] = []
    for page in [*PAGES, FOLDER / "index.md", FOLDER.parent / "scheduling.md"]:
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^```yaml\n(controller:.*?)^```$", text, re.MULTILINE | re.DOTALL)
        shown = blocks[:1] if page in PAGES else blocks
        found += [(page.name, plain_yaml.parse(block, page.name)) for block in shown]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_a_picture_and_its_parts(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")][: len(PARTS)] == PARTS
    assert f"](../_assets/{page.stem}.svg)" in text.partition("\n## ")[0]


@pytest.mark.parametrize(("page", "stack"), stacks())
def test_its_yaml_is_a_stack(page: str, stack: dict[str, object]) -> None:
    check_stack(load_config(stack))


def test_every_controller_has_a_page() -> None:
    shown = {str(stack["controller"]["type"]) for _, stack in stacks()}  # type: ignore[index]
    own = {name for name in controllers.names() if controllers.resolve(name).__module__.startswith("scaffolding_ext.")}
    wanted = {name for name in own if name.endswith("Controller")} - INSIDE_OTHERS - PLAIN
    assert wanted <= shown


def test_the_overview_leads_to_every_page() -> None:
    text = (FOLDER / "index.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if f"]({page.name})" not in text] == []
