"""The controllers within one: attributes of it, or what stands in an attribute that is a list, a tuple or a dict."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

from scaffolding_ext.protocol import Controller

_CONTAINERS = frozenset({tuple, list, dict})
_PLAIN_TYPES = frozenset({type(None), bool, int, float, str})


@functools.lru_cache(maxsize=4096)
def _is_controller(kind: type[Any]) -> bool:
    return issubclass(kind, Controller)  # of an ABC that is slow, and every clone asks


def sub_controllers(controller: Controller) -> Iterator[Controller]:
    """The controllers within one, in the order of its attributes."""
    for value in vars(controller).values():
        items = _items(value) if type(value) in _CONTAINERS else (value,)
        yield from (item for item in items if isinstance(item, Controller))


def cloned_subs(controller: Controller) -> dict[str, Any]:
    """Each attribute that holds sub-controllers, by its name, with a clone in the place of each of them."""
    cloned: dict[str, Any] = {}
    for name, value in vars(controller).items():
        kind = type(value)
        if kind in _PLAIN_TYPES or (kind in _CONTAINERS and not value):
            continue
        if kind not in _CONTAINERS:
            if _is_controller(kind):  # type: ignore[arg-type]  # a type is hashable
                cloned[name] = value.clone()
            continue
        for item in value.values() if kind is dict else value:
            if type(item) not in _PLAIN_TYPES and _is_controller(type(item)):  # type: ignore[arg-type]
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
