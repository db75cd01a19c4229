"""Names resolve lazily, outsiders can add theirs, and an unknown name says what is known."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scaffolding_ext import registry
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.errors import ConfigError, MissingDependencyError, UnknownNameError
from scaffolding_ext.registry import Registry


def make() -> Registry:
    return Registry("thing", {"Lazy": "collections:OrderedDict"}, "scaffolding_ext.no_such_group")


def test_a_known_name_gives_its_class() -> None:
    assert registry.controllers.resolve("NativeGenerationController") is NativeGenerationController


@pytest.mark.parametrize("name", ["NativeGenerationController", "DynasorCoTController", "BudgetForcingController"])
def test_every_packaged_controller_resolves_to_the_class_of_its_name(name: str) -> None:
    assert registry.controllers.resolve(name).__name__ == name


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
    with pytest.raises(UnknownNameError, match=r"'Lasy' \(did you mean 'Lazy'\?\); known: Lazy"):
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
