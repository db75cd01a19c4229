"""Sampling fields and their precedence: a request overrides a controller, a controller overrides a worker.

An unset field keeps its default, and the worker's value applies. Fields set by a request are noted on its task, so
setting a field to its default (no penalty, no stop string, `temperature=None` for the worker's) also counts as a
choice.
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

GUIDED_DECODING = "guided_decoding"  # key of custom_input_params: constraint on the output's form
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


# Only fields that the stand-in has: a newer release may add fields, and some of them may be results.
_DEFAULTS = {
    name: default
    for name, default in sampling_defaults(GenerationTask).items()
    if name in sampling_defaults(standins.GenerationTask)
}
SAMPLING_FIELDS = frozenset(_DEFAULTS)
# Values outside these bounds fit no engine. Each worker checks its engine's limits.
_BOUNDS: dict[str, dict[str, float]] = {
    "temperature": {"least": 0},
    "top_p": {"above": 0, "most": 1},
    "top_k": {"least": -1},  # off is -1 in some engines, 0 in others
    "max_tokens": {"least": 1},
    "min_tokens": {"least": 0},
    "num_logprobs": {"least": 0},
    "n": {"least": 1},
    "best_of": {"least": 1},
    "frequency_penalty": {},
    "presence_penalty": {},
    "seed": {"least": 0},
}
SAMPLE_TEMPERATURE = 0.7  # used for several samples without a temperature; greedy ones would be equal


def checked_sampling_params(
    sampling_params: Mapping[str, Any] | None, key: str = "sampling_params", reserved: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Return a copy of the sampling parameters with every name and type checked.

    Args:
        reserved: Sampling fields that the controller sets from its own arguments.

    Raises:
        ConfigError: It is not a mapping, a name is reserved or not a sampling field of GenerationTask, or a value has
            the wrong type or fits no engine. Other ranges are checked by the worker.
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
            raise ConfigError(f"has {name!r}, which is not a sampling field; allowed: {allowed}", key)
        _check_value(name, value, f"{key}.{name}")
    return dict(sampling_params)


def set_sampling_params(task: GenerationTask, sampling_params: Mapping[str, Any]) -> None:
    """Set the sampling fields of a request's keyword arguments; ConfigError for an invalid one."""
    if not sampling_params:
        return
    for name, value in checked_sampling_params(sampling_params, "request").items():
        setattr(task, name, value)
    _note_as_set(task, sampling_params)


def apply_sampling_params(task: GenerationTask, sampling_params: Mapping[str, Any]) -> None:
    """Set every sampling field that the task's creator left unset, and a seed if the program has one."""
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
    """Copy a task's sampling fields, except its number of tokens, to a piece of its generation.

    Args:
        part: Number of the piece, for a distinct seed: the same seed would repeat the same draws. Without it, the
            task's seed is kept.
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
    """True if the sampling is set; otherwise the worker's temperature applies, which may be 0."""
    names = {"temperature", "top_p", "top_k"}
    return not names.isdisjoint(meta_of(task).sampling_fields) or any(getattr(task, name) is not None for name in names)


def vary(task: GenerationTask) -> bool:
    """Set a temperature on one of several samples if none is set, and return True if so; ConfigError for 0."""
    if task.temperature == 0:
        refuse_greedy("temperature")
    if says_how_to_sample(task):
        return False
    task.temperature = SAMPLE_TEMPERATURE
    return True


def refuse_greedy(key: str) -> NoReturn:
    """Refuse a temperature of 0, given under `key`, for several samples."""
    raise ConfigError(
        "is 0, so all samples of a prompt are equal: leave it out (then 0.7 is used), set one above 0, or "
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

    # Upstream's hints cannot be resolved: they name a class imported only for type checkers.
    return TypeAdapter(typing.get_type_hints(standins.GenerationTask)[name])
