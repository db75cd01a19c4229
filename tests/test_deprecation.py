"""What goes away warns for one minor release, works meanwhile, and is gone in the release that said so."""

from __future__ import annotations

import ast
import warnings
from pathlib import Path
from typing import ClassVar

import pytest

import scaffolding_ext
from scaffolding_ext import ConfigError, StackConfig, __version__
from scaffolding_ext.deprecation import Deprecation, ScaffoldingExtDeprecationWarning, renamed_argument
from scaffolding_ext.signature import Signature
from scaffolding_ext.stack.config import ComponentConfig, validated

ROOT = Path(__file__).parents[1]
OLD = Deprecation("the key kind", "type", "0.1", "0.2")


class Thinker:
    """A class of which an argument was renamed."""

    @renamed_argument("max_thinking", "thinking_tokens", since="0.1", until="0.2")
    def __init__(self, thinking_tokens: int = 8) -> None:
        self.thinking_tokens = thinking_tokens


class Renamed(ComponentConfig):
    """A section of which a key was renamed."""

    renamed_keys: ClassVar = {"kind": ("type", OLD)}


def test_the_old_argument_works_and_warns_its_caller() -> None:
    with pytest.warns(
        ScaffoldingExtDeprecationWarning, match=r"max_thinking .* goes away in 0\.2; use thinking_tokens"
    ) as told:
        assert Thinker(max_thinking=3).thinking_tokens == 3  # type: ignore[call-arg]
    assert told[0].filename == __file__


def test_the_new_argument_does_not_warn() -> None:
    assert Thinker(thinking_tokens=3).thinking_tokens == Thinker(3).thinking_tokens == 3


def test_both_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="give thinking_tokens alone"):
        Thinker(thinking_tokens=3, max_thinking=3)  # type: ignore[call-arg]


def test_a_name_that_the_function_lacks_is_refused() -> None:
    with pytest.raises(TypeError, match="no argument thinking"):
        renamed_argument("max_thinking", "thinking", since="0.1", until="0.2")(lambda tokens: tokens)


def test_a_stack_file_may_give_the_old_argument() -> None:
    accepted = Signature.of(Thinker)
    accepted.check("Thinker", {"max_thinking": 3}, "controller.args")
    assert "max_thinking" not in accepted.parameters
    with pytest.raises(ConfigError, match="must be of type"):
        accepted.check("Thinker", {"max_thinking": "many"}, "controller.args")


def test_a_stack_file_may_give_the_old_key() -> None:
    with pytest.warns(ScaffoldingExtDeprecationWarning, match="use type"):
        assert (
            validated(Renamed, {"kind": "NativeGenerationController"}, "controller").type
            == "NativeGenerationController"
        )
    with pytest.raises(ConfigError, match="give type alone"):
        validated(Renamed, {"kind": "A", "type": "B"}, "controller")


def test_an_old_name_of_the_package_gives_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    old = Deprecation("scaffolding_ext.Config", "StackConfig", "0.1", "0.2")
    monkeypatch.setitem(scaffolding_ext._RENAMED, "Config", old)
    with pytest.warns(ScaffoldingExtDeprecationWarning, match="use StackConfig") as told:
        assert scaffolding_ext.Config is StackConfig
    assert told[0].filename == __file__


def test_python_shows_the_warning_by_default() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.resetwarnings()
        warnings.simplefilter("default", FutureWarning)
        OLD.warn(stacklevel=1)
    assert len(told) == 1


@pytest.mark.parametrize(("version", "over"), [("0.1.9", False), ("0.2.0", True), ("0.10.0", True), ("1.0.0", True)])
def test_a_deprecation_is_over_in_its_release(version: str, over: bool) -> None:
    assert OLD.is_over(version) is over


def deprecations() -> list[Deprecation]:
    """All that the package's sources declare."""
    found = []
    for folder in ("scaffolding_ext", "controllers", "workers"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                name = getattr(getattr(node, "func", None), "id", "")
                if name in ("Deprecation", "renamed_argument") and path.name != "deprecation.py":
                    values = [ast.literal_eval(argument) for argument in node.args]  # type: ignore[attr-defined]
                    named = {key.arg: ast.literal_eval(key.value) for key in node.keywords}  # type: ignore[attr-defined]
                    found.append(Deprecation(*values, **named))
    return found


def test_what_this_release_must_no_longer_have_is_gone() -> None:
    assert not [str(each) for each in deprecations() if each.is_over(__version__)], "take these out, and their tests"


def test_the_changelog_names_what_is_deprecated() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert not [each.old for each in deprecations() if each.old.removeprefix("the argument ") not in changelog]
