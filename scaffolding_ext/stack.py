"""Builds what a `StackConfig` describes: controllers, their prompting, workers, and the host that connects them."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from scaffolding_ext import registry
from scaffolding_ext.config import ComponentConfig, Source, StackConfig, load_config, validated
from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.native_generation import checked_sampling_params
from scaffolding_ext.errors import ConfigError, MissingDependencyError, ScaffoldingExtError, UnknownNameError
from scaffolding_ext.prompting import Prompting
from scaffolding_ext.registry import Factory, Registry, unknown_name
from scaffolding_ext.runtime import ScaffoldingLlm

_PROMPTED_TAGS = ("generation", "target", "draft")  # the workers whose models read the user's prompts
_NOT_BUILT = object()
# What the types of scalar annotations take of a stack file; an integer is a fine float, but true is no number.
_SCALARS = {"int": (int,), "float": (int, float), "str": (str,), "bool": (bool,), "None": (type(None),)}
_FROM_YAML = (int, float, str, bool, type(None), list, dict)
# What the package's own classes import when they are built, by the extra of the package that brings it.
_NEEDED = {"scaffolding_ext.workers.huggingface.HuggingFaceWorker": ("hf", ("torch", "transformers"))}


def build_stack(config: StackConfig, references: Mapping[str, Any] | None = None) -> ScaffoldingLlm:
    """Build controllers, workers and host; the host owns the workers. If a step fails, the workers built are shut down.

    Args:
        config: The validated stack.
        references: The live objects that `{"$ref": name}` stands for.

    Raises:
        ConfigError: A name is unknown or an argument is wrong; `key` holds the dotted path.
        MissingDependencyError: A worker needs a package that is not installed.
    """
    references = references or {}
    check_stack(config, references)
    with ExitStack() as undo:
        builder = _Builder(references, config.sampling, undo)
        controller = builder.component(config.controller, registry.controllers, "controller")
        _set_prompting(controller, config)
        workers = {tag: builder.component(worker, registry.workers, _at(tag)) for tag, worker in config.workers.items()}
        undo.pop_all()  # from here on the host owns the workers, and shuts them down if it cannot start
        return ScaffoldingLlm(controller, workers, config.max_parallel_requests, seed=config.seed, owns_workers=True)


def check_stack(config: StackConfig, references: Mapping[str, Any] | None = None) -> None:
    """Check every name and every constructor's arguments without building anything.

    Raises:
        ConfigError: As `build_stack`, except for what only a constructor itself finds wrong.
        MissingDependencyError: A worker needs a package that is not installed.
    """
    checked_sampling_params(config.sampling, "sampling")
    builder = _Builder(references or {}, config.sampling, undo=None)
    builder.component(config.controller, registry.controllers, "controller")
    for tag, worker in config.workers.items():
        builder.component(worker, registry.workers, _at(tag))


def load_stack(
    source: Source, overrides: Sequence[str] = (), references: Mapping[str, Any] | None = None
) -> ScaffoldingLlm:
    """`load_config`, then `build_stack`: a running host that owns its workers; use it in a `with` statement.

    Args:
        source: Path of a YAML file, `configs:NAME` for one that ships with the package, or a dict of the same shape.
        overrides: `key.path=value` each, applied in order; the value is read as YAML.
        references: The live objects that `{"$ref": name}` stands for.

    Raises:
        ConfigError: As `load_config` and `build_stack`.
        MissingDependencyError: As `build_stack`.
    """
    return build_stack(load_config(source, overrides), references)


def _at(tag: str) -> str:
    return f"workers.{tag}"


class _Signature(NamedTuple):
    """What a factory takes by keyword: the named parameters, and whether any other name goes, too."""

    parameters: Mapping[str, inspect.Parameter]
    takes_more: bool


class _Builder:
    """Walks components depth first.

    Args:
        references: Live objects by name.
        sampling: Defaults for the `sampling_params` of innermost controllers.
        undo: Gets the shutdown of every worker built. None: everything is checked and nothing built.
    """

    def __init__(self, references: Mapping[str, Any], sampling: Mapping[str, Any], undo: ExitStack | None) -> None:
        self._references = references
        self._sampling = sampling
        self._undo = undo
        self._num_components = 0

    def component(self, component: ComponentConfig, known: Registry, path: str) -> Any:
        """The component, with everything in its arguments; a nested component is of the same registry."""
        try:
            factory = known.resolve(component.type)
        except ConfigError as error:
            raise _relocated(error, f"{path}.type") from error
        signature = _signature(factory)
        num_before = self._num_components
        args = {name: self._value(value, known, f"{path}.args.{name}") for name, value in component.args.items()}
        innermost = self._num_components == num_before
        self._num_components += 1
        if self._sampling and known is registry.controllers and innermost and "sampling_params" in signature.parameters:
            own = args.get("sampling_params") or {}
            args["sampling_params"] = {**self._sampling, **own} if isinstance(own, Mapping) else own
        _check_arguments(component.type, signature, args, f"{path}.args")
        _check_packages(factory)
        if self._undo is None:
            return _NOT_BUILT
        built = _constructed(component.type, factory, args, f"{path}.args")
        if known is registry.workers:
            self._undo.callback(built.shutdown)
        return built

    def _value(self, value: Any, known: Registry, path: str) -> Any:
        if isinstance(value, list):
            return [self._value(item, known, f"{path}.{index}") for index, item in enumerate(value)]
        if not isinstance(value, Mapping):
            return value
        if "$ref" in value:
            return self._referenced(value, path)
        name = value.get("type")
        if isinstance(name, str) and (value.keys() <= {"type", "args"} or name in known.names()):
            return self.component(validated(ComponentConfig, value, path), known, path)
        return {key: self._value(item, known, f"{path}.{key}") for key, item in value.items()}

    def _referenced(self, value: Mapping[str, Any], path: str) -> Any:
        name = value["$ref"]
        if len(value) > 1:
            raise ConfigError(f"has keys beside $ref ({', '.join(map(str, value))}); a reference stands alone", path)
        if name not in self._references:
            message = unknown_name("reference", str(name), tuple(self._references))
            raise UnknownNameError(f"{message}; pass it in load_stack(..., references={{...}})", path)
        return self._references[name]


def _signature(factory: Factory) -> _Signature:
    try:
        parameters = inspect.signature(factory).parameters
    except ValueError:  # some built-in types have none
        return _Signature({}, True)
    named = {name: p for name, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return _Signature(named, any(p.kind is p.VAR_KEYWORD for p in parameters.values()))


def _check_arguments(name: str, signature: _Signature, args: Mapping[str, Any], path: str) -> None:
    accepted = ", ".join(signature.parameters) or "none"
    for key in args:
        if key not in signature.parameters and not signature.takes_more:
            close = difflib.get_close_matches(key, signature.parameters, n=1)
            hint = f" (did you mean {close[0]!r}?)" if close else ""
            raise ConfigError(f"{name} takes no such argument{hint}; it accepts: {accepted}", f"{path}.{key}")
    missing = [key for key, p in signature.parameters.items() if p.default is p.empty and key not in args]
    if missing:
        raise ConfigError(f"{name} needs {', '.join(map(repr, missing))}; it accepts: {accepted}", path)
    for key, value in args.items():
        if key in signature.parameters:
            _check_scalar(value, signature.parameters[key], f"{path}.{key}")


def _check_scalar(value: Any, parameter: inspect.Parameter, path: str) -> None:
    """Refuse a value of a stack file that is of none of the scalar types of an annotation; others are not judged."""
    annotation = parameter.annotation
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    expected = [name.strip() for name in text.split("|")]
    if type(value) not in _FROM_YAML or value is parameter.default or not _SCALARS.keys() >= set(expected):
        return
    if not any(type(value) in _SCALARS[name] for name in expected):
        raise ConfigError(f"is {value!r}; it must be of type {text}", path)


def _check_packages(factory: Factory) -> None:
    for kind in inspect.getmro(factory) if isinstance(factory, type) else ():
        extra, packages = _NEEDED.get(f"{kind.__module__}.{kind.__qualname__}", ("", ()))
        missing = [package for package in packages if importlib.util.find_spec(package) is None]
        if missing:
            raise MissingDependencyError(" and ".join(missing), extra)


def _constructed(name: str, factory: Factory, args: Mapping[str, Any], path: str) -> Any:
    try:
        return factory(**args)
    except ConfigError as error:
        raise _relocated(error, path) from error
    except ScaffoldingExtError:
        raise
    except Exception as error:  # of any type: what a third party's constructor raises about its arguments
        raise ConfigError(f"{name} cannot be built: {type(error).__name__}: {error}", path) from error


def _relocated(error: ConfigError, path: str) -> ConfigError:
    """The same error with its key, if any, under a path."""
    kind = UnknownNameError if isinstance(error, UnknownNameError) else ConfigError
    return kind(error.message, f"{path}.{error.key}" if error.key else path)


def _set_prompting(controller: Any, config: StackConfig) -> None:
    prompt = config.prompt
    if prompt is None:
        return
    asked_for = "prompt" in config.model_fields_set
    if not isinstance(controller, BaseController):
        if asked_for:
            raise ConfigError(f"{type(controller).__name__} is no BaseController, so no prompting can be set", "prompt")
        return
    model = prompt.model or next(filter(None, (_model_of(config, tag) for tag in _PROMPTED_TAGS)), None)
    if model is None:
        if asked_for:
            raise ConfigError("no worker names a model; say here whose tokenizer the prompt is for", "prompt.model")
        return
    try:
        controller.prompting = Prompting.for_model(
            model, prompt.family, system_prompt=prompt.system_prompt, chat_template=prompt.chat_template
        )
    except ConfigError as error:
        raise error if error.key else _relocated(error, "prompt") from error
    except ScaffoldingExtError:
        raise
    except Exception as error:  # of any type: transformers has many for a model that it cannot load
        message = f"the tokenizer of {model!r} cannot be loaded ({type(error).__name__}: {error}); name another model's"
        raise ConfigError(f"{message}, or write `prompt: null` to send prompts as they are", "prompt.model") from error


def _model_of(config: StackConfig, tag: str) -> str | None:
    worker = config.workers.get(tag)
    model = None if worker is None else worker.args.get("model")
    return model if isinstance(model, str) else None
