"""What a class takes: read from its signature, and checked against the plain values that a user gives."""

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
    """One argument of a factory; a missing default or annotation is `inspect.Parameter.empty`.

    Attributes:
        namespace: What the names in the annotation stand for.
    """

    default: Any
    annotation: Any
    namespace: dict[str, Any]

    def describe(self) -> str:
        return self.annotation if isinstance(self.annotation, str) else inspect.formatannotation(self.annotation)


class Signature(NamedTuple):
    """What a factory takes by keyword.

    A class may use its `**kwargs` itself or pass them to its bases, so `check` lets any name pass then.

    Attributes:
        parameters: The named arguments; behind those of a class with `**kwargs`, the arguments of its bases.
        required: Its own arguments without a default; a class may itself give its bases what they need.
        takes_more: Whether it takes other names, too.
    """

    parameters: Mapping[str, Parameter]
    required: tuple[str, ...]
    takes_more: bool

    @classmethod
    def of(cls, factory: Callable[..., Any]) -> Signature:
        """Read them from a class, a function, or anything else that can be called."""
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
        """Check arguments (plain values, and live objects, which pass) that a user gives to the factory of that name.

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
        """A constructor's TypeError in the words of `check`; None if it quotes no argument's name."""
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
    """The constructors of a class and its bases, the nearest first; none where something else makes its objects."""
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
    """Whether a plain value is of a parameter's type; where this cannot be judged, it is."""
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
        return True  # a name for type checkers alone, or a type that cannot be checked at run time
    try:
        expected.validate_json(plain, strict=True)  # as JSON, a list goes for any sequence, a name for an enum's member
    except ValidationError:
        return False
    return True
