"""What a factory of a stack takes, read from its signature and annotations, and whether a stack file gives it that."""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic_core import SchemaError

from scaffolding_ext.errors import ConfigError

_EMPTY = inspect.Parameter.empty
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Parameter(NamedTuple):
    """One argument of a factory.

    Attributes:
        default: `inspect.Parameter.empty` where it has none.
        annotation: As it is written; `inspect.Parameter.empty` where there is none.
        module: The name of the module whose names the annotation uses.
    """

    default: Any
    annotation: Any
    module: str

    def describe(self) -> str:
        """The type, for an error."""
        return self.annotation if isinstance(self.annotation, str) else inspect.formatannotation(self.annotation)


class Arguments(NamedTuple):
    """What a factory takes by keyword.

    Attributes:
        parameters: The named arguments, those that a class passes on to its bases by `**` included.
        takes_more: Whether any other name goes, too.
    """

    parameters: Mapping[str, Parameter]
    takes_more: bool

    @classmethod
    def of(cls, factory: Callable[..., Any]) -> Arguments:
        """Read them from a class, a function, or anything else that can be called."""
        if isinstance(factory, type) and not hasattr(factory, "__signature__"):
            constructors = [vars(kind)["__init__"] for kind in inspect.getmro(factory) if "__init__" in vars(kind)]
            if inspect.isfunction(constructors[0]):
                return _passed_on(constructors)
        try:
            signature = inspect.signature(factory)
        except ValueError:  # some built-in types have none
            return cls({}, True)
        return _read(signature, getattr(factory, "__module__", ""))

    def check(self, name: str, args: Mapping[str, Any], path: str) -> None:
        """Check the arguments that a stack file gives to the factory of that name.

        Args:
            name: The factory's name, for errors.
            args: Plain values, as YAML has them, and live objects, of which nothing is known.
            path: Where they stand in the stack file.

        Raises:
            ConfigError: A name is unknown, a required one is missing, or a plain value is not of its annotation's type.
        """
        accepted = ", ".join(self.parameters) or "none"
        for key in args:
            if key not in self.parameters and not self.takes_more:
                close = difflib.get_close_matches(key, self.parameters, n=1)
                hint = f" (did you mean {close[0]!r}?)" if close else ""
                raise ConfigError(f"{name} takes no such argument{hint}; it accepts: {accepted}", f"{path}.{key}")
        missing = [key for key, parameter in self.parameters.items() if parameter.default is _EMPTY and key not in args]
        if missing:
            raise ConfigError(f"{name} needs {', '.join(map(repr, missing))}; it accepts: {accepted}", path)
        for key, value in args.items():
            if key in self.parameters and not _fits(value, self.parameters[key]):
                message = f"is {value!r}; it must be of type {self.parameters[key].describe()}"
                raise ConfigError(message, f"{path}.{key}")


def _read(signature: inspect.Signature, module: str) -> Arguments:
    parameters = {
        name: Parameter(parameter.default, parameter.annotation, module)
        for name, parameter in signature.parameters.items()
        if parameter.kind in _NAMED
    }
    return Arguments(parameters, any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()))


def _passed_on(constructors: list[Callable[..., Any]]) -> Arguments:
    """The arguments of the first of a class's constructors, and of those that it passes its `**` on to."""
    constructor, *others = constructors
    _, *parameters = inspect.signature(constructor).parameters.values()  # without self
    own = _read(inspect.Signature(parameters), inspect.unwrap(constructor).__module__)
    call = _base_call(constructor) if own.takes_more else None
    if call is None:
        return own
    base = _passed_on(others) if inspect.isfunction(others[0]) else Arguments({}, False)
    num_given = sum(not isinstance(argument, ast.Starred) for argument in call.args)
    taken = {*own.parameters, *list(base.parameters)[:num_given], *(keyword.arg for keyword in call.keywords)}
    inherited = {name: parameter for name, parameter in base.parameters.items() if name not in taken}
    return Arguments({**own.parameters, **inherited}, base.takes_more)


def _base_call(constructor: Callable[..., Any]) -> ast.Call | None:
    """Where a constructor calls `super().__init__(..., **more)`; None where it keeps the rest of its arguments."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(constructor)))
    except (OSError, TypeError, SyntaxError):  # without a source nothing is known
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and any(keyword.arg is None for keyword in node.keywords):
            called = ast.unparse(node.func)
            if called.startswith("super(") and called.endswith(".__init__"):
                return node
    return None


def _fits(value: Any, parameter: Parameter) -> bool:
    """Whether a plain value is of a parameter's type; what cannot be judged fits."""
    annotation = parameter.annotation
    if annotation is _EMPTY or value is parameter.default:
        return True
    try:
        plain = json.dumps(value)
    except (TypeError, ValueError):  # live objects
        return True
    try:
        if isinstance(annotation, str):
            annotation = eval(annotation, vars(sys.modules[parameter.module]))
        expected: TypeAdapter[Any] = TypeAdapter(annotation, config=ConfigDict(arbitrary_types_allowed=True))
    except (NameError, AttributeError, KeyError, SyntaxError, TypeError, PydanticUserError, SchemaError):
        return True  # a name for type checkers alone, or a type that cannot be checked at run time
    try:
        expected.validate_json(plain, strict=True)  # as JSON, a list goes for any sequence, a name for an enum's member
    except ValidationError:
        return False
    return True
