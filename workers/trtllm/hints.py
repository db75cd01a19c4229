"""What a task's `custom_input_params` and its place in the request tell the engine; what it ignores is noted."""

from __future__ import annotations

import importlib
import inspect
import math
from typing import Any

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.prompts.sampling_params import GUIDED_DECODING
from scaffolding_ext.protocol import Task, current_scope
from scaffolding_ext.request.program import cache_salt_of, current_program, priority_of, record
from scaffolding_ext.workers.task_reading import number
from scaffolding_ext.workers.trtllm.loading import LoadedLlm
from scaffolding_ext.workers.trtllm.release import Release

NO_ORDER = "the engine orders nothing by it: load the LLM with scheduler_config.waiting_queue_policy=priority"
ENGINE_PRIORITY = "engine_priority"  # of the waiting queue: 0 to 1, the higher the sooner, 0.5 where nobody says


def request_hints(task: Task, loaded: LoadedLlm) -> dict[str, Any]:
    """Keywords of `generate_async`: `engine_priority`, `cache_salt`, and where in its request the task stands.

    Without an `engine_priority`, that of the package (the lower, the sooner; 0 is 0.5) takes its place.

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
    return keywords | _hierarchy(loaded.release)


def sampling_hints(task: Task, release: Release, vocab_size: int) -> dict[str, Any]:
    """Fields of `SamplingParams` that no task has a field for: `stop_token_ids` and `guided_decoding`.

    Raises:
        InvalidTaskError: One is unusable.
    """
    params = task.custom_input_params or {}
    fields: dict[str, Any] = {}
    if params.get("stop_token_ids"):
        ids = params["stop_token_ids"]
        if not isinstance(ids, list) or not all(type(token) is int and 0 <= token < vocab_size for token in ids):
            raise InvalidTaskError(f"stop_token_ids is {ids!r}; it must be a list of ids from 0 to {vocab_size - 1}")
        fields["stop_token_ids"] = ids
    if params.get(GUIDED_DECODING):
        guide = params[GUIDED_DECODING]
        try:
            fields[GUIDED_DECODING] = release.setting("GuidedDecodingParams")(**guide)
        except TypeError as error:
            raise InvalidTaskError(
                f"guided_decoding is {guide!r}; give a mapping such as {{'regex': ...}} ({error})"
            ) from None
    return fields


def _hierarchy(release: Release) -> dict[str, Any]:
    """The request and the branches above the task, by which newer engines keep together what belongs together."""
    program, scope = current_program(), current_scope.get()
    if program is None or "scheduling_params" not in release.request_keywords:
        return {}
    try:
        kind = importlib.import_module("tensorrt_llm.scheduling_params").SchedulingParams
    except (ImportError, AttributeError):
        return {}
    if "agent_hierarchy" not in inspect.signature(kind).parameters:
        return {}
    above = () if scope is None else scope.branch_path
    hierarchy = [("request", program.number), *(("branch", each) for each in above)]
    return {"scheduling_params": kind(agent_hierarchy=hierarchy)}
