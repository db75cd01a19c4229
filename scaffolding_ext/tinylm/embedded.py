"""The models that ship with the package: location of the weights, and prompt texts."""

from __future__ import annotations

import importlib.resources
import os
from pathlib import Path

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.families import PromptFamily
from scaffolding_ext.tinylm import grammar

FAMILY = PromptFamily(
    think_close="</think>",
    probe=grammar.PROBE,
    close=grammar.CLOSE,
    close_closed=grammar.CLOSE.removeprefix("</think>"),
    answer_end="}.",
    verdict=grammar.VERDICT,
)


def model_folder(model: str) -> str:
    """Folder with the weights of `tinylm/NAME`.

    Raises:
        ConfigError: No embedded model has that name.
    """
    weights = Path(str(importlib.resources.files("scaffolding_ext.tinylm"))) / "weights"
    folder = weights / model.removeprefix("tinylm/")
    if not os.path.isfile(folder / "config.json"):
        names = sorted(path.parent.relative_to(weights).as_posix() for path in weights.glob("**/config.json"))
        known = ", ".join(f"tinylm/{name}" for name in names) or "none"
        raise ConfigError(f"unknown embedded model {model!r}; known: {known}")
    return str(folder)
