"""Hints beside a request: its place in the server's queue, and KV that must not be shared."""

from __future__ import annotations

from typing import Any

from scaffolding_ext.protocol import Task
from scaffolding_ext.protocol.meta import is_urgent
from scaffolding_ext.request.program import cache_salt_of, current_program, record
from scaffolding_ext.workers.openai.flavors import Flavor

_PER_UNIT = 1000  # a policy's 1.0 in the server's integers


def hints(task: Task, flavor: Flavor, chat: bool, prioritize: bool) -> dict[str, Any]:
    """Request fields that help the server order requests and separate KV that must not be shared.

    Tasks that others wait for go first. The rest follow the order of their programs: the host policy's, or the oldest
    program first, so one program's requests stay together.

    Args:
        task: The task; it may share KV with requests of the same cache salt (see `cache_salt_of`).
        flavor: Kind of the server.
        chat: True if the request goes to `/chat/completions`.
        prioritize: If True, send the order of tasks.
    """
    fields: dict[str, Any] = {}
    salt = cache_salt_of(task)
    if salt is not None and (flavor.chat.takes_salt if chat else flavor.takes_salt):
        fields["cache_salt"] = salt
    elif salt is not None:
        reason = f"servers of flavor {flavor.name!r} take no cache_salt on this endpoint"
        record("fallback", what="cache_salt", reason=reason)
    if prioritize and flavor.priority is not None:
        program = current_program()
        place = 0 if program is None else program.identity.number
        if program is not None and program.place.order is not None:
            place = max(0, round(_PER_UNIT * program.place.priority))
        place = -1 if is_urgent(task) else place
        priority = flavor.priority(place) if place else None
        fields |= {} if priority is None else {"priority": priority}
    return fields


def unordered(flavor: Flavor, prioritize: bool) -> str | None:
    """Reason why the server does not follow the host policy's order; None if it does."""
    if flavor.priority is None:
        return f"servers of flavor {flavor.name!r} take no priority"
    if flavor.priority(1) is None:
        return f"servers of flavor {flavor.name!r} only take urgency of single tasks, not the whole order"
    if prioritize:
        return None
    return "the order is not sent: set prioritize, and start the server with priority scheduling"
