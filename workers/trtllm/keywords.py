"""Keywords of `LLM.generate_async`: who may share the KV, who goes first, and how long KV is kept.

A hint that the LLM would ignore is left out, and the trace says so.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
from collections.abc import Mapping
from typing import Any

from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.protocol import Task, current_scope
from scaffolding_ext.request.program import cache_salt_of, current_program, priority_of, record
from scaffolding_ext.workers.shared.task_reading import number
from scaffolding_ext.workers.trtllm.loading import LoadedLlm

NO_ORDER = (
    "the engine does not order requests by priority: load the LLM with scheduler_config.waiting_queue_policy=priority"
)
ENGINE_PRIORITY = "engine_priority"  # of the waiting queue: 0 to 1, higher is sooner, 0.5 by default
KV_HINTS = "kv_hints"
_ENVELOPE = ("protocol_version", "message_id", "actions")
_ACTION = ("action_id", "action_type", "action_version", "payload")
_LOWEST, _HIGHEST = 1, 100  # TensorRT-LLM's priorities of KV blocks


def request_keywords(task: Task, loaded: LoadedLlm) -> dict[str, Any]:
    """The keywords that any task has: its priority, its `cache_salt`, its `kv_hints`, and its place in the request.

    Without an `engine_priority`, it is computed from the package's priority (there lower is sooner, and 0 becomes 0.5).

    Raises:
        InvalidTaskError: The priority is outside its range, or the hints have another shape.
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
    if params.get(KV_HINTS) is not None:
        _check_hints(params[KV_HINTS])
        keywords[KV_HINTS] = params[KV_HINTS]
    return keywords | _hierarchy(loaded)


def conversation(loaded: LoadedLlm) -> dict[str, Any]:
    """The keyword for an LLM that keeps KV by conversation: each branch of a request is one, and its chain grows there.

    Such an LLM was loaded with `block_reuse_config: {policy: per_conversation}` in its `kv_cache_config`.
    """
    program, scope = current_program(), current_scope.get()
    policy = _field(_field(loaded.argument("kv_cache_config"), "block_reuse_config"), "policy")
    if getattr(policy, "value", policy) != "per_conversation" or program is None:
        return {}
    path = () if scope is None else scope.branch_path
    params = importlib.import_module("tensorrt_llm.conversation_params").ConversationParams
    return {"conversation_params": params(conversation_id=".".join(map(str, (program.identity.id, *path))))}


def retention_priority(score: float) -> int:
    """Turns a score of blocks, in [0, 1], into TensorRT-LLM's priority from 1 to 100."""
    return _LOWEST + round((_HIGHEST - _LOWEST) * score)


def lowest_retention(config_class: Any) -> Any:
    """The `KvCacheRetentionConfig` of KV that nobody can reuse."""
    ranges = [config_class.TokenRangeRetentionConfig(0, None, _LOWEST)]
    return config_class(token_range_retention_configs=ranges, decode_retention_priority=_LOWEST)


def branch_retention(config_class: Any, prefix_len: int, score: float) -> Any:
    """The `KvCacheRetentionConfig` of one branch.

    Args:
        prefix_len: Tokens that all branches share.
        score: The score of the branch's own blocks, in [0, 1].
    """
    token_range = config_class.TokenRangeRetentionConfig
    own = retention_priority(score)
    ranges = [token_range(prefix_len, None, own)]
    if prefix_len:
        ranges.insert(0, token_range(0, prefix_len, _HIGHEST))
    return config_class(token_range_retention_configs=ranges, decode_retention_priority=own)


def _check_hints(hints: Any) -> None:
    """Check the envelope for hints about KV that engines share (vLLM #53421, SGLang #36224, TensorRT-LLM #18153)."""
    actions = hints.get("actions") if isinstance(hints, Mapping) and set(hints) == set(_ENVELOPE) else None
    shapes = [set(action) if isinstance(action, Mapping) else set() for action in actions or ()]
    if not isinstance(actions, list) or any(shape != set(_ACTION) for shape in shapes):
        raise InvalidTaskError(
            f"kv_hints is {hints!r}; it must be a mapping with {', '.join(_ENVELOPE)}, and each of its actions must be "
            f"a mapping with {', '.join(_ACTION)}"
        )


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
