"""The key `loops` of a stack file: who watches for chains that repeat themselves, and for what."""

from __future__ import annotations

from typing import Any

import pytest

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.stack.build import build_stack, check_stack
from scaffolding_ext.stack.config import StackConfig

THINKS: dict[str, Any] = {"model": "tinylm/target"}
DOES_NOT: dict[str, Any] = {"model": "tinylm/target", "family": "instruct"}


def config(loops: Any = None, prompt: dict[str, Any] | None = THINKS) -> StackConfig:
    return StackConfig.model_validate(
        {
            "controller": {"type": "DynasorCoTController", "args": {"max_tokens": 99}},
            "workers": {"generation": {"type": "ScriptedWorker", "args": {"respond": "4"}}},
            "prompt": prompt,
            "loops": loops,
        }
    )


def test_a_stack_file_says_what_a_loop_is() -> None:
    assert check_stack(config()).loops is None
    assert check_stack(config(False)).loops is None
    assert check_stack(config(True)).loops.repeats == 4
    assert check_stack(config({"repeats": 6, "line_repeats": 0})).loops.repeats == 6


@pytest.mark.parametrize(
    ("loops", "key"),
    [
        ({"repeats": 1}, "loops.repeats"),
        ({"repeat": 3}, "loops.repeat"),
        ({"repeats": "four"}, "loops.repeats"),
    ],
)
def test_what_is_wrong_is_told_by_its_path(loops: Any, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_stack(config(loops))
    assert caught.value.key == key


@pytest.mark.parametrize(
    ("loops", "prompt", "is_watched"),
    [
        (None, THINKS, True),
        (None, DOES_NOT, False),
        (None, None, False),
        (False, THINKS, False),
        (True, DOES_NOT, True),
    ],
)
def test_serve_watches_the_chains_of_models_that_think(loops: Any, prompt: Any, is_watched: bool) -> None:
    stack = config(loops, prompt)
    with build_stack(stack) as llm:
        served = ServedStack("model", llm, Limits(), config=stack)
        assert (served.controller.loops is not None) == is_watched
