"""The controllers within one: attributes of it, or what stands in an attribute that is a list, a tuple or a dict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from scaffolding_ext.protocol import Controller

_MOST_KINDS = 4096
_CONTAINERS = frozenset({tuple, list, dict})


class _Kinds(dict[type[Any], bool]):
    """Which types are controllers, by type. A clone asks for each attribute, and an ABC's own check is slow."""

    def __missing__(self, kind: type[Any]) -> bool:
        if len(self) == _MOST_KINDS:  # of a program that makes classes as it runs
            self.clear()
        found = self[kind] = issubclass(kind, Controller)
        return found


_IS_CONTROLLER = _Kinds()


def sub_controllers(controller: Controller) -> Iterator[Controller]:
    """The controllers within one, in the order of its attributes."""
    for value in vars(controller).values():
        items = _items(value) if type(value) in _CONTAINERS else (value,)
        yield from (item for item in items if isinstance(item, Controller))


def cloned_subs(controller: Controller) -> dict[str, Any]:
    """Each attribute that holds sub-controllers, by its name, with a clone in the place of each of them."""
    cloned: dict[str, Any] = {}
    attributes = controller.__dict__
    for name in attributes:
        value = attributes[name]
        kind = value.__class__
        if kind not in _CONTAINERS:
            if _IS_CONTROLLER[kind]:
                cloned[name] = value.clone()
        elif value:
            for item in value:
                if _IS_CONTROLLER[(value[item] if kind is dict else item).__class__]:
                    cloned[name] = _cloned(value)
                    break
    return cloned


def _items(container: Any) -> Iterable[Any]:
    return container.values() if type(container) is dict else container


def _cloned(container: Any) -> Any:
    """The container with a clone of each controller in it."""
    if type(container) is dict:
        return dict(zip(container, _cloned(tuple(container.values())), strict=True))
    return type(container)(item.clone() if isinstance(item, Controller) else item for item in container)
