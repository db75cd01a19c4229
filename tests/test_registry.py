"""Names resolve lazily, outsiders can add theirs, and an unknown name says what is known."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import pytest

from scaffolding_ext import registry, require
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.errors import ConfigError, MissingDependencyError
from scaffolding_ext.registry import Registry


class Thing:
    """A kind of part, which may hold another."""

    def __init__(self, weight: int = 1, inner: object = None) -> None:
        self.weight, self.inner = require.whole("weight", weight), inner


class FunctionThing(Thing):
    def __init__(self, function: Callable[[], int]) -> None:
        super().__init__(function())


class Needy(Thing):
    def __init__(self, need: str) -> None:
        super().__init__()
        self.need = need


class Holder(Thing):
    registries: ClassVar = {"inner": Registry("number", {"three": "fractions:Fraction"}, "nobody")}


def of_function(given: object) -> FunctionThing | None:
    return FunctionThing(given) if inspect.isfunction(given) else None


def seven() -> int:
    return 7


READY, HERE = Thing(9), __name__


@pytest.fixture
def things(monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setitem(sys.modules, HERE, sys.modules[__name__])
    targets = {"plain": f"{HERE}:Thing", "needy": f"{HERE}:Needy", "holder": f"{HERE}:Holder"}
    return Registry("odd thing", targets, "scaffolding_ext.no_such_group", f"{HERE}:Thing", f"{HERE}:of_function")


def make() -> Registry:
    return Registry("thing", {"Lazy": "collections:OrderedDict"}, "scaffolding_ext.no_such_group")


def test_a_known_name_gives_its_class() -> None:
    assert registry.controllers.resolve("NativeGenerationController") is NativeGenerationController


def test_a_target_is_imported_on_first_use_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_late.py").write_text("class Late: ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    things = make()
    things.register("Late", "imported_late:Late")
    assert "imported_late" not in sys.modules
    assert things.resolve("Late").__name__ == "Late"
    assert "imported_late" in sys.modules


def test_register_works_as_a_decorator() -> None:
    things = make()

    @things.register("Mine")
    class Mine: ...

    assert things.resolve("Mine") is Mine
    assert things.names() == ("Lazy", "Mine")


def test_a_taken_name_is_refused_unless_replaced() -> None:
    things = make()
    with pytest.raises(ConfigError, match="registered already"):
        things.register("Lazy", dict)
    things.register("Lazy", dict, replace=True)
    assert things.resolve("Lazy") is dict


def test_an_unknown_name_lists_the_known_and_the_closest() -> None:
    with pytest.raises(ConfigError, match=r"'Lasy' \(did you mean 'Lazy'\?\); known: Lazy"):
        make().resolve("Lasy")


def test_a_path_resolves_without_registration() -> None:
    things = make()
    assert things.resolve("collections:OrderedDict") is things.resolve("Lazy")
    assert things.names() == ("Lazy",)


@pytest.mark.parametrize("target", ["no_such_module:Thing", "collections:NoSuchClass", "sys:version", ":Thing"])
def test_an_unusable_path_is_a_config_error(target: str) -> None:
    with pytest.raises(ConfigError, match=target):
        make().resolve(target)


def test_a_missing_optional_package_keeps_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "from scaffolding_ext.errors import MissingDependencyError\nraise MissingDependencyError('torch', 'hf')\n"
    (tmp_path / "needs_torch.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[hf\]'"):
        make().resolve("needs_torch:Worker")


def install_distribution(folder: Path, entry_points: str) -> None:
    info = folder / "outsider-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: outsider\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


def test_entry_points_of_installed_packages_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_distribution(tmp_path, "[things.test]\nTheirs = collections:Counter\n")
    monkeypatch.syspath_prepend(tmp_path)
    things = Registry("thing", {}, "things.test")
    assert things.resolve("Theirs").__name__ == "Counter"


def test_an_entry_point_cannot_take_a_known_name_silently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_distribution(tmp_path, "[things.test]\nOurs = collections:Counter\n")
    monkeypatch.syspath_prepend(tmp_path)
    things = Registry("thing", {"Ours": "collections:OrderedDict"}, "things.test")
    with pytest.warns(RuntimeWarning, match="'Ours'"):
        things.names()
    assert things.resolve("Ours").__name__ == "OrderedDict"


def test_a_part_is_built_from_itself_its_name_or_its_description(things: Registry) -> None:
    assert things.build(READY) is READY
    assert things.build("plain").weight == 1
    assert things.build({"type": "plain", "args": {"weight": 3}}).weight == 3
    assert things.build(f"{HERE}:Thing").weight == 1


def test_another_object_is_adapted_where_the_kind_knows_how(things: Registry) -> None:
    assert things.build(seven).weight == 7
    assert things.build(f"{HERE}:seven").weight == 7
    assert things.build(f"{HERE}:READY_CALLABLE") is READY_CALLABLE


class Called(Thing):
    def __call__(self) -> None: ...


READY_CALLABLE = Called()


def test_parts_among_the_arguments_are_built_first_by_their_own_registry(things: Registry) -> None:
    inner = {"type": "plain", "args": {"weight": 2}}
    assert things.build({"type": "plain", "args": {"inner": [inner]}}).inner[0].weight == 2
    assert things.build({"type": "holder", "args": {"inner": {"type": "three"}}}).inner == Fraction(0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, r"it: is 3; give an odd thing, the name of one \(holder, needy, plain\), or \{type: NAME, args: \{...\}\}"),
        (Thing, "it: is <class .*; give an odd thing"),
        ("plane", "it: unknown odd thing 'plane' .did you mean 'plain'"),
        ("needy", "it: needy needs 'need'; it accepts: need; give {type: needy, args: {...}}"),
        ({"type": "plane"}, "it.type: unknown odd thing"),
        ({"typ": "plain"}, "it.typ: unknown key 'typ' .did you mean 'type'"),
        ({"args": {}}, "it: is {'args': {}}; give {type: NAME"),
        ({"type": "plain", "args": [1]}, r"it.args: is \[1\]; give a mapping"),
        ({"type": "plain", "args": {"wait": 3}}, "it.args.wait: plain takes no such argument .did you mean 'weight'"),
        ({"type": "plain", "args": {"weight": "3"}}, "it.args.weight: is '3'; it must be of type int"),
        ({"type": "plain", "args": {"weight": 0}}, "it.args.weight: is 0; it must be at least 1"),
        ({"type": "plain", "args": {"inner": {"type": "plane"}}}, "it.args.inner.type: unknown odd thing"),
        ({"type": "os:getcwd"}, "it.type: 'os:getcwd' is a .* not a subclass of Thing"),
    ],
)
def test_what_is_no_part_is_refused_by_name(things: Registry, given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        things.build(given, "it")
