"""Tells the engine a task's `custom_input_params` and its place in the request; ignored hints are noted."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
from collections.abc import Mapping
from typing import Any

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.prompts.sampling_params import GUIDED_DECODING
from scaffolding_ext.protocol import Task, current_scope
from scaffolding_ext.request.program import cache_salt_of, current_program, priority_of, record
from scaffolding_ext.workers.shared.task_reading import number
from scaffolding_ext.workers.trtllm.loading import LoadedLlm

NO_ORDER = (
    "the engine does not order requests by priority: load the LLM with scheduler_config.waiting_queue_policy=priority"
)
ENGINE_PRIORITY = "engine_priority"  # of the waiting queue: 0 to 1, higher is sooner, 0.5 by default


def request_hints(task: Task, loaded: LoadedLlm) -> dict[str, Any]:
    """Keywords of `generate_async`: `engine_priority`, `cache_salt`, and where in its request the task stands.

    Without an `engine_priority`, it is computed from the package's priority (there lower is sooner, and 0 becomes 0.5).

    Raises:
        InvalidTaskError: The priority is outside its range.
    """
    params = task.custom_input_params or {}
    salt = cache_salt_of(task)
    keywords: dict[str, Any] = {} if salt is None else {"cache_salt": salt}
    given = params.get(ENGINE_PRIORITY)
    if given is not None:
        number(ENGINE_PRIORITY, given, 0.0, least=0, most=1)
    if loaded.orders_by_priority:
        own = priority_of(task)
        if given is not None or own:
            keywords["priority"] = math.atan2(1, own) / math.pi if given is None else float(given)
    elif given is not None:
        record("lowered", what=ENGINE_PRIORITY, reason=NO_ORDER)
    return keywords | _hierarchy(loaded)


def sampling_hints(task: Task, loaded: LoadedLlm) -> dict[str, Any]:
    """Fields of `SamplingParams` that no task has a field for: `stop_token_ids` and `guided_decoding`.

    Raises:
        InvalidTaskError: A field is unusable, or the LLM would ignore it.
    """
    params = task.custom_input_params or {}
    fields: dict[str, Any] = {}
    if params.get("stop_token_ids"):
        ids = params["stop_token_ids"]
        if not isinstance(ids, list) or not all(type(token) is int and 0 <= token < loaded.vocab_size for token in ids):
            raise InvalidTaskError(
                f"stop_token_ids is {ids!r}; it must be a list of ids from 0 to {loaded.vocab_size - 1}"
            )
        fields["stop_token_ids"] = list(ids)  # a copy, because TensorRT-LLM adds to it
    if params.get(GUIDED_DECODING):
        guide = params[GUIDED_DECODING]
        if loaded.argument("guided_decoding_backend") is None:
            raise InvalidTaskError(
                f"guided_decoding is {guide!r}, but the LLM was loaded without a guided_decoding_backend and would "
                "ignore it: load it with llm_args: {guided_decoding_backend: xgrammar}"
            )
        try:
            fields[GUIDED_DECODING] = loaded.release.setting("GuidedDecodingParams")(**guide)
        except TypeError as error:
            raise InvalidTaskError(
                f"guided_decoding is {guide!r}; it must be a mapping such as {{'regex': ...}} ({error})"
            ) from None
    return fields


def _hierarchy(loaded: LoadedLlm) -> dict[str, Any]:
    """The request and the branches above the task, if the LLM was loaded with a policy that reads them.

    Such a policy (`reorder_policy_config`) orders requests of the agent types that it names. Our requests have the
    first of these types.
    """
    program, scope = current_program(), current_scope.get()
    policy = _field(_field(loaded.argument("reorder_policy_config"), "policy_args"), "agent_types")
    if program is None or not policy or "scheduling_params" not in loaded.release.request_keywords:
        return {}
    kind = _scheduling_params()
    if kind is None or "agent_hierarchy" not in inspect.signature(kind).parameters:
        return {}
    above = () if scope is None else scope.branch_path
    hierarchy = [(str(policy[0]), program.identity.number), *(("branch", each) for each in above)]
    return {"scheduling_params": kind(agent_hierarchy=hierarchy)}


def _scheduling_params() -> Any:
    """TensorRT-LLM's `SchedulingParams`, which has moved between releases; None if a release has none."""
    with contextlib.suppress(ImportError, AttributeError):
        return importlib.import_module("tensorrt_llm.executor.params.scheduling").SchedulingParams
    with contextlib.suppress(ImportError, AttributeError):
        return importlib.import_module("tensorrt_llm.scheduling_params").SchedulingParams
    return None


def _field(config: Any, name: str) -> Any:
    """A field of a configuration, which may be a mapping or a pydantic model; None if the field is missing."""
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
