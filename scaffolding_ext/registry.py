"""Names of controllers and workers: each stands for a factory that is imported when it is first asked for."""

from __future__ import annotations

import difflib
import importlib
import importlib.metadata
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

from scaffolding_ext.errors import ConfigError, ScaffoldingExtError, UnknownNameError

Factory = Callable[..., Any]
F = TypeVar("F", bound=Factory)


class Registry:
    """Names and their lazy factories. A name of the form `package.module:attribute` needs no registration.

    Args:
        kind: What the names stand for, for error messages.
        targets: Known names and their `"module:attribute"` targets.
        entry_point_group: Other packages add names under this group; it is read once, when a name is first looked up.
    """

    def __init__(self, kind: str, targets: Mapping[str, str], entry_point_group: str) -> None:
        self.kind = kind
        self._targets: dict[str, str | Factory] = dict(targets)
        self._group = entry_point_group
        self._discovered = False

    @overload
    def register(self, name: str, target: str | Factory, *, replace: bool = False) -> None: ...
    @overload
    def register(self, name: str, *, replace: bool = False) -> Callable[[F], F]: ...
    def register(self, name: str, target: str | Factory | None = None, *, replace: bool = False) -> Any:
        """Add a name, by call or as the decorator of a class.

        Args:
            name: What stack files say.
            target: A class, another callable, or a `"module:attribute"` string that is imported on first use.
            replace: Whether the name may stand for something already.

        Raises:
            ConfigError: The name is taken.
        """
        if target is None:

            def decorate(factory: F) -> F:
                self.register(name, factory, replace=replace)
                return factory

            return decorate
        taken = self._targets.get(name)
        if taken is not None and taken != target and not replace:
            raise ConfigError(f"the {self.kind} {name!r} is registered already; take another name or pass replace=True")
        self._targets[name] = target
        return None

    def names(self) -> tuple[str, ...]:
        """The known names, sorted; those of installed entry points included."""
        self._discover()
        return tuple(sorted(self._targets))

    def resolve(self, name: str) -> Factory:
        """The factory of a name.

        Raises:
            UnknownNameError: Nobody registered the name.
            ConfigError: Its target cannot be imported.
        """
        target = self._targets.get(name)
        if target is None and ":" in name:
            target = name
        if target is None:
            known = self.names()
            target = self._targets.get(name)
            if target is None:
                raise UnknownNameError(unknown_name(self.kind, name, known) + "; or write package.module:Class")
        if isinstance(target, str):
            target = _import(target)
            if name in self._targets:
                self._targets[name] = target
        return target

    def _discover(self) -> None:
        if self._discovered:
            return
        self._discovered = True
        for entry in importlib.metadata.entry_points(group=self._group):
            if self._targets.setdefault(entry.name, entry.value) != entry.value:
                message = f"the entry point {entry.name!r} = {entry.value!r} is ignored: the {self.kind} exists already"
                warnings.warn(message, RuntimeWarning, stacklevel=3)


def unknown_name(what: str, name: str, known: tuple[str, ...]) -> str:
    """What to say about a name that is not among the known ones: the closest, and all of them."""
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"unknown {what} {name!r}{hint}; known: {', '.join(known) or 'none'}"


def _import(target: str) -> Factory:
    module_name, _, attribute = target.partition(":")
    try:
        factory = importlib.import_module(module_name)
        for part in attribute.split("."):
            factory = getattr(factory, part)
    except ScaffoldingExtError:  # a missing optional package says by itself how to install it
        raise
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"cannot import {target!r}: {error}") from error
    if not callable(factory):
        raise ConfigError(f"{target!r} is a {type(factory).__name__}; name a class or a function that makes one")
    return factory


controllers = Registry(
    "controller",
    {
        "NativeGenerationController": "scaffolding_ext.controllers.native_generation:NativeGenerationController",
        "DynasorCoTController": "scaffolding_ext.controllers.dynasor_cot:DynasorCoTController",
        "DynasorGenerationController": "scaffolding_ext.controllers.dynasor_cot:DynasorGenerationController",
        "BudgetForcingController": "scaffolding_ext.controllers.budget_forcing:BudgetForcingController",
    },
    "scaffolding_ext.controllers",
)
workers = Registry(
    "worker",
    {
        "HuggingFaceWorker": "scaffolding_ext.workers.huggingface:HuggingFaceWorker",
        "ScriptedWorker": "scaffolding_ext.testing:ScriptedWorker",
    },
    "scaffolding_ext.workers",
)
