"""Arguments of a class, read from its signature and checked against a user's plain values."""

from __future__ import annotations

import difflib
import inspect
import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaError

from scaffolding_ext.errors import ConfigError

_EMPTY = inspect.Parameter.empty
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Parameter(NamedTuple):
    """One argument of a factory; `namespace` resolves the names in its annotation, `empty` marks a missing value."""

    default: Any
    annotation: Any
    namespace: dict[str, Any]

    def describe(self) -> str:
        return self.annotation if isinstance(self.annotation, str) else inspect.formatannotation(self.annotation)


class Signature(NamedTuple):
    """Keyword arguments of a factory.

    A class may use its `**kwargs` itself or pass them to its bases; `check` then accepts any name.

    Attributes:
        parameters: The named arguments; after those of a class with `**kwargs`, the arguments of its bases.
        required: The class's arguments without a default, not its bases'.
        takes_more: True if it takes other names, too.
    """

    parameters: Mapping[str, Parameter]
    required: tuple[str, ...]
    takes_more: bool

    @classmethod
    def of(cls, factory: Callable[..., Any]) -> Signature:
        """Read the signature of a class, a function, or any other callable."""
        try:
            constructors = _constructors(factory) or [(inspect.signature(factory), factory)]
        except ValueError:  # some built-in types have none
            return cls({}, (), True)
        parameters: dict[str, Parameter] = {}
        required: list[str] = []
        for number, (signature, source) in enumerate(constructors):
            namespace = getattr(inspect.unwrap(source), "__globals__", None) or _module_names(source)
            for name, parameter in signature.parameters.items():
                if parameter.kind in _NAMED and name not in parameters:
                    parameters[name] = Parameter(parameter.default, parameter.annotation, namespace)
                    required += [name] if number == 0 and parameter.default is _EMPTY else []
            if not _takes_more(signature):
                break
        return cls(parameters, tuple(required), _takes_more(constructors[0][0]))

    def check(self, name: str, args: Mapping[str, Any], path: str) -> None:
        """Check a user's arguments for the factory of that name: plain values, and live objects, which pass.

        Raises:
            ConfigError: A name is unknown, a required one is missing, or a plain value is not of its annotation's type.
        """
        unknown = [] if self.takes_more else [key for key in args if key not in self.parameters]
        if unknown:
            raise self._unknown(name, unknown[0], path)
        missing = [key for key in self.required if key not in args]
        if missing:
            raise self._missing(name, missing, path)
        for key, value in args.items():
            if key in self.parameters and not _fits(value, self.parameters[key]):
                message = f"is {value!r}; it must be of type {self.parameters[key].describe()}"
                raise ConfigError(message, f"{path}.{key}")

    def explained(self, name: str, args: Mapping[str, Any], path: str, error: TypeError) -> ConfigError | None:
        """Restate a constructor's TypeError in the words of `check`; None if it quotes no argument's name."""
        told = [key for key in (*args, *self.parameters) if repr(key) in str(error)]
        unknown = [key for key in told if key not in self.parameters]
        if unknown:
            return self._unknown(name, unknown[0], path)
        missing = [key for key in told if key not in args]
        return self._missing(name, missing, path) if missing else None

    def _unknown(self, name: str, key: str, path: str) -> ConfigError:
        close = difflib.get_close_matches(key, self.parameters, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        return ConfigError(f"{name} takes no such argument{hint}; it accepts: {self._accepted}", f"{path}.{key}")

    def _missing(self, name: str, keys: Iterable[str], path: str) -> ConfigError:
        return ConfigError(
            f"{name} needs {', '.join(map(repr, keys))}; it accepts: {self._accepted}; give "
            f"{{type: {name}, args: {{...}}}}",
            path,
        )

    @property
    def _accepted(self) -> str:
        return ", ".join(self.parameters) or "none"


def _constructors(factory: Callable[..., Any]) -> list[tuple[inspect.Signature, Callable[..., Any]]]:
    """Return the constructors of a class and its bases, the nearest first; none if objects are created otherwise."""
    if not isinstance(factory, type) or hasattr(factory, "__signature__"):
        return []
    own = [vars(kind)["__init__"] for kind in inspect.getmro(factory) if "__init__" in vars(kind)]
    if not inspect.isfunction(own[0]):
        return []
    bound = (types.MethodType(init, factory) for init in own if inspect.isfunction(init))  # a signature without self
    return [(inspect.signature(method), method.__func__) for method in bound]


def _module_names(factory: Any) -> dict[str, Any]:
    module = inspect.getmodule(factory)
    return {} if module is None else vars(module)


def _takes_more(signature: inspect.Signature) -> bool:
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())


def _fits(value: Any, parameter: Parameter) -> bool:
    """Return True if a plain value is of a parameter's type, or this cannot be judged."""
    if parameter.annotation is _EMPTY or value is parameter.default:
        return True
    try:
        plain = json.dumps(value)
    except (TypeError, ValueError):  # live objects
        return True
    holder = types.SimpleNamespace(__annotations__={"it": parameter.annotation})
    try:
        annotation = typing.get_type_hints(holder, parameter.namespace)["it"]
        expected: TypeAdapter[Any] = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except (NameError, AttributeError, SyntaxError, TypeError, PydanticUserError, SchemaError):
        return True  # a name only for type checkers, or a type that cannot be checked at run time
    try:
        expected.validate_json(plain, strict=True)  # in JSON, a list matches any sequence, a name an enum member
    except ValidationError:
        return False
    return True
