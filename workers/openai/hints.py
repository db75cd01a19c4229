"""What a request tells its server about order, and about which requests share KV."""

from __future__ import annotations

import uuid
from typing import Any

from scaffolding_ext.protocol import Task
from scaffolding_ext.protocol.notes import is_urgent, notes_of
from scaffolding_ext.request.program import cache_salt_of, current_program, record
from scaffolding_ext.workers.openai.flavors import Flavor

_PROCESS = uuid.uuid4().hex  # the numbers of requests begin anew in each process
_PER_UNIT = 1000  # a policy's 1.0 is so much for a server, which takes whole numbers


def hints(task: Task, flavor: Flavor, chat: bool, prioritize: bool, max_tokens: int | None = None) -> dict[str, Any]:
    """Request fields that help the server to order requests, and to keep apart what shares no KV.

    Tasks that others wait for go first. The other tasks follow in the order of their programs: the order of the host's
    policy, or the oldest program first. So the requests of one program stay together.

    Args:
        task: The task; it may share KV with requests of the same cache salt (see `cache_salt_of`).
        flavor: What the server takes.
        chat: Whether the request goes to `/chat/completions`.
        prioritize: Whether the server is told the order of tasks.
        max_tokens: Most tokens that are generated; None where there are none.
    """
    fields: dict[str, Any] = {}
    salt = cache_salt_of(task)
    if salt is not None and (flavor.chat.takes_salt if chat else flavor.takes_salt):
        fields["cache_salt"] = salt
    elif salt is not None:
        reason = f"servers of flavor {flavor.name!r} take no cache_salt on this endpoint"
        record("lowered", what="cache_salt", reason=reason)
    if prioritize and flavor.priority is not None:
        program = current_program()
        place = 0 if program is None else program.identity.number
        if program is not None and program.place.order is not None:
            place = max(0, round(_PER_UNIT * program.place.priority))
        place = -1 if is_urgent(task) else place
        priority = flavor.priority(place) if place else None
        fields |= {} if priority is None else {"priority": priority}
    if flavor.takes_agent_hints:
        told = _agent_hints(task, fields.pop("priority", None), max_tokens)
        extensions = ({"agent_hints": told} if told else {}) | _agent_context()
        fields |= {"nvext": extensions} if extensions else {}
    return fields


def _agent_hints(task: Task, priority: float | None, max_tokens: int | None) -> dict[str, Any]:
    """Dynamo's `AgentHints`.

    They are a soft priority (a higher one is served sooner), a strict tier of the router's queue, the most tokens of
    the answer, and whether a later request will continue this text.

    Reference: ai-dynamo/dynamo, `lib/llm/src/protocols/openai/nvext.rs` (i32, u32, u32, bool), and its page on hints.
    """
    told: dict[str, Any] = {}
    if priority is not None:
        told["priority"] = int(priority)
        if priority > 0:
            told["strict_priority"] = 1
    if max_tokens is not None:
        told["osl"] = max_tokens
    if notes_of(task).is_chunk:
        told["speculative_prefill"] = True
    return told


def session_headers() -> dict[str, str]:
    """Headers that tell Dynamo which requests serve one request of this package."""
    session = _session()
    return {} if session is None else {"X-Dynamo-Session-ID": session}


def _agent_context() -> dict[str, Any]:
    """Dynamo's `AgentContext`: its scheduler of programs keeps the requests of one trajectory together.

    Reference: ai-dynamo/dynamo #9448 and #12196.
    """
    session = _session()
    if session is None:
        return {}
    ids = {"session_type_id": "scaffolding_ext", "session_id": session, "trajectory_id": session}
    return {"agent_context": ids}


def _session() -> str | None:
    program = current_program()
    return None if program is None else f"{_PROCESS}-{program.identity.number}"


def unordered(flavor: Flavor, prioritize: bool) -> str | None:
    """Why the server does not order requests as the host's policy does; None where it does."""
    if flavor.priority is None:
        return f"servers of flavor {flavor.name!r} take no priority"
    if flavor.priority(1) is None:
        return f"servers of flavor {flavor.name!r} are only told which tasks others wait for, not the whole order"
    if prioritize:
        return None
    return "the server is not told the order: set prioritize, and start the server so that it orders by priority"
