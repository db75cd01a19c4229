"""Check the host's arguments before anything is started; each error says what to pass instead."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from scaffolding_ext import require
from scaffolding_ext.documents import has_surrogate
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import Controller, Worker
from scaffolding_ext.protocol.worker import declared, tag_name
from scaffolding_ext.scheduling import Policy


def checked_controller(controller: Any, workers: Any) -> Controller:
    """Return an object with `clone` and `generate`; ConfigError for anything else."""
    if not _has_methods(controller, "clone", "generate"):
        if isinstance(controller, Mapping) and _has_methods(workers, "clone", "generate"):
            raise ConfigError("controller and workers are swapped; write ScaffoldingLlm(controller, workers)")
        raise _wrong("controller", controller, "a Controller")
    found: Controller = controller
    return found


def checked_workers(workers: Any) -> dict[Any, Worker]:
    """Return a copy of a mapping of tags to objects with `run_task`; ConfigError for anything else."""
    if not isinstance(workers, Mapping):
        raise _wrong("workers", workers, 'a mapping of tags to workers, such as {"generation": worker}')
    for tag, worker in workers.items():
        if not _has_methods(worker, "run_task"):
            raise _wrong(f"workers.{tag_name(tag)}", worker, "a Worker")
    return dict(workers)


def checked_seconds(name: str, seconds: Any) -> float | None:
    """Return a time-out or deadline: None, or a finite number of seconds above 0; else ConfigError."""
    return None if seconds is None else require.number(name, seconds, above=0)


def checked_policy(policy: Any, workers: Mapping[Any, Worker]) -> Policy | None:
    """Return a policy; warn about workers that ignore it. ConfigError if it is none."""
    if policy is None:
        return None
    if not isinstance(policy, Policy):
        raise _wrong("scheduling", policy, "a Policy, such as Gang()")
    for tag, worker in workers.items():
        reason = declared(worker).unordered
        if reason is not None:
            name, kind = type(worker).__name__, type(policy).__name__
            warnings.warn(f"{kind} does not reach the worker {tag_name(tag)!r} ({name}): {reason}", stacklevel=3)
    return policy


def checked_seed(seed: Any) -> int | None:
    return None if seed is None else require.whole("seed", seed, None)


def checked_prompt(prompt: Any) -> str:
    """Return a prompt with at least one word; else ConfigError."""
    if not isinstance(prompt, str):
        raise _wrong("prompt", prompt, "a str, or a list of str to generate()")
    if not prompt.strip():
        raise ConfigError("is empty: give a text", "prompt")
    if has_surrogate(prompt):
        raise ConfigError(f"is {ascii(prompt)[:80]}; it holds bytes that are not text: write it in UTF-8", "prompt")
    return prompt


def checked_prompts(prompts: Any) -> list[str]:
    if isinstance(prompts, (bytes, bytearray, Mapping)) or not isinstance(prompts, Iterable):
        return [checked_prompt(prompts)]
    return [checked_prompt(prompt) for prompt in prompts]


def _has_methods(value: Any, *names: str) -> bool:
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in names)


def _wrong(name: str, value: Any, wanted: str) -> ConfigError:
    if isinstance(value, type):
        return ConfigError(f"is the class {value.__name__}; pass an instance of it: {value.__name__}(...)", name)
    return ConfigError(f"is {require.shown(value)}; pass {wanted}", name)
