"""The sampling fields, and who sets them: a request overrules a controller, and a controller overrules a worker.

A field that nobody sets stays at its default, and the worker's own value holds. What a request sets is noted on its
task, so that a value that equals the field's default (no penalty, no stop string, `temperature=None` for the worker's
own) is a choice like any other.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from scaffolding_ext import require
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import GenerationTask, Task, standins
from scaffolding_ext.protocol.meta import meta_of, note
from scaffolding_ext.request.program import current_program
from scaffolding_ext.request.seeds import derive_seed

if TYPE_CHECKING:
    from pydantic import TypeAdapter

GUIDED_DECODING = "guided_decoding"  # key of custom_input_params: what holds an output to a form
_RESULT_FIELDS = frozenset(
    (
        *("output_str", "output_tokens", "finish_reason", "context_logits", "logprobs", "customized_result_fields"),
        *("ttft_s", "latency_s", "usage_prompt_tokens", "usage_completion_tokens", "request_id", "llm_request_params"),
    )
)
_REQUEST_FIELDS = frozenset(("input_str", "input_tokens", *(field.name for field in dataclasses.fields(Task))))


def sampling_defaults(task_class: type[Any]) -> dict[str, Any]:
    return {
        field.name: field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        for field in dataclasses.fields(task_class)
        if field.name not in _RESULT_FIELDS | _REQUEST_FIELDS
    }


# Fields that the stand-in has, too: a newer release may add fields, and some of them may be results.
_DEFAULTS = {
    name: default
    for name, default in sampling_defaults(GenerationTask).items()
    if name in sampling_defaults(standins.GenerationTask)
}
SAMPLING_FIELDS = frozenset(_DEFAULTS)
# Values outside these bounds suit no engine. Each worker checks the limits of its own engine.
_BOUNDS: dict[str, dict[str, float]] = {
    "temperature": {"least": 0},
    "top_p": {"above": 0, "most": 1},
    "top_k": {"least": -1},  # to some engines -1 is off, to others 0
    "max_tokens": {"least": 1},
    "min_tokens": {"least": 0},
    "num_logprobs": {"least": 0},
    "n": {"least": 1},
    "best_of": {"least": 1},
    "frequency_penalty": {},
    "presence_penalty": {},
    "seed": {"least": 0},
}
SAMPLE_TEMPERATURE = 0.7  # of one of several samples, where nobody says how to sample: greedy ones would all be alike


def checked_sampling_params(
    sampling_params: Mapping[str, Any] | None, key: str = "sampling_params", reserved: tuple[str, ...] = ()
) -> dict[str, Any]:
    """A copy of the sampling parameters, every name and type checked.

    Args:
        reserved: Sampling fields that the controller sets itself, from arguments of its own.

    Raises:
        ConfigError: It is no mapping, a name is no sampling field of GenerationTask or is reserved, or a value has not
            the field's type or is one that no engine takes. Other ranges are the worker's to judge.
    """
    if sampling_params is None:
        return {}
    if not isinstance(sampling_params, Mapping):
        raise ConfigError(
            f"is {sampling_params!r}; give a mapping of sampling fields to values, such as {{'temperature': 0.7}}", key
        )
    for name, value in sampling_params.items():
        if name in reserved:
            raise ConfigError(f"has {name!r}, which the controller sets: use the controller's own arguments", key)
        if name not in SAMPLING_FIELDS:
            allowed = ", ".join(sorted(SAMPLING_FIELDS.difference(reserved)))
            raise ConfigError(f"has {name!r}, which is no sampling field; allowed: {allowed}", key)
        _check_value(name, value, f"{key}.{name}")
    return dict(sampling_params)


def set_sampling_params(task: GenerationTask, sampling_params: Mapping[str, Any]) -> None:
    """Set sampling fields that a request brought as keyword arguments; ConfigError for a wrong one."""
    if not sampling_params:
        return
    for name, value in checked_sampling_params(sampling_params, "request").items():
        setattr(task, name, value)
    _note_as_set(task, sampling_params)


def apply_sampling_params(task: GenerationTask, sampling_params: Mapping[str, Any]) -> None:
    """Set every sampling field that the task's creator left alone, and a seed where the program has one."""
    notes = meta_of(task)
    taken, draw = notes.sampling_fields, notes.draw
    for name, value in sampling_params.items():
        own = getattr(task, name)
        if name not in taken and (own is None or own == _DEFAULTS[name]):
            is_shared = name == "seed" and value is not None and draw
            setattr(task, name, derive_seed(value, *draw) if is_shared else value)
    if task.seed is None and "seed" not in taken:
        program = current_program()
        if program is not None:
            task.seed = program.seeds.next()


def inherit_sampling_params(piece: GenerationTask, task: GenerationTask, *part: int | str) -> None:
    """Give a piece of a task's generation what the task itself asks for, but for its number of tokens.

    Args:
        part: Which piece it is: a seed used twice would draw the same numbers again. Without it, it has the task's.
    """
    for name in SAMPLING_FIELDS:
        if name != "max_tokens" and not _is_default(task, name):
            setattr(piece, name, getattr(task, name))
    if piece.seed is not None and part:
        piece.seed = derive_seed(piece.seed, *part)
    notes = meta_of(task)
    if notes.sampling_fields:
        _note_as_set(piece, notes.sampling_fields)
    if notes.draw or part:
        note(piece, draw=(*notes.draw, *part))


def says_how_to_sample(task: GenerationTask) -> bool:
    """Whether somebody set how the task is drawn; else the worker's own temperature holds, which may be 0."""
    names = {"temperature", "top_p", "top_k"}
    return not names.isdisjoint(meta_of(task).sampling_fields) or any(getattr(task, name) is not None for name in names)


def vary(task: GenerationTask) -> bool:
    """Give one of several samples a temperature if nobody set one; whether it did. ConfigError for 0."""
    if task.temperature == 0:
        refuse_greedy("temperature")
    if says_how_to_sample(task):
        return False
    task.temperature = SAMPLE_TEMPERATURE
    return True


def refuse_greedy(key: str) -> NoReturn:
    """Refuse a temperature of 0, given under `key`, for one of several samples."""
    raise ConfigError(
        "is 0, with which all samples of a prompt are equal: leave it out (then 0.7 is used), set one above 0, or "
        "draw one sample",
        key,
    )


def _is_default(task: GenerationTask, name: str) -> bool:
    value = getattr(task, name)
    return value is None or value == _DEFAULTS[name]


def _note_as_set(task: GenerationTask, names: Collection[str]) -> None:
    notes = meta_of(task)
    note(task, sampling_fields=tuple({*notes.sampling_fields, *names}))


def _check_value(name: str, value: Any, key: str) -> None:
    from pydantic import ValidationError

    try:
        _type_of(name).validate_python(value, strict=True)
    except ValidationError as error:
        raise ConfigError(f"is {value!r}: {error.errors()[0]['msg'].lower()}", key) from error
    if name in _BOUNDS and value is not None:
        require.number(key, value, **_BOUNDS[name])


@functools.cache
def _type_of(name: str) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    # Upstream's own hints cannot be resolved: they name a class that its module imports for type checkers alone.
    return TypeAdapter(typing.get_type_hints(standins.GenerationTask)[name])
