"""Hints beside the request: order of service, requests that share KV, and KV that is no longer needed."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from typing import Any, NamedTuple

from scaffolding_ext.errors import EngineError, InvalidTaskError
from scaffolding_ext.protocol import DropKVCacheTask, GenerationTask, Task, current_scope
from scaffolding_ext.protocol.meta import is_urgent, meta_of
from scaffolding_ext.request.program import cache_salt_of, current_program, record
from scaffolding_ext.workers.openai.connection import Connection
from scaffolding_ext.workers.openai.flavors import Flavor

_PROCESS = uuid.uuid4().hex  # request numbers restart in each process
_PER_UNIT = 1000  # a policy's 1.0 in the server's integers


def hints(task: Task, flavor: Flavor, chat: bool, prioritize: bool, max_tokens: int | None = None) -> dict[str, Any]:
    """Request fields that help the server order requests and separate KV that must not be shared.

    Tasks that others wait for go first. The rest follow the order of their programs: the host policy's, or the oldest
    program first, so one program's requests stay together.

    Args:
        task: The task; it may share KV with requests of the same cache salt (see `cache_salt_of`).
        flavor: Kind of the server.
        chat: True if the request goes to `/chat/completions`.
        prioritize: If True, send the order of tasks.
        max_tokens: Maximum generated tokens; None if unlimited.
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
    if flavor.takes_agent_hints:
        told = _agent_hints(task, fields.pop("priority", None), max_tokens)
        extensions = ({"agent_hints": told} if told else {}) | _agent_context()
        fields |= {"nvext": extensions} if extensions else {}
    return fields


def _agent_hints(task: Task, priority: float | None, max_tokens: int | None) -> dict[str, Any]:
    """Dynamo's `AgentHints`.

    They are a soft priority (higher is served sooner), a strict tier of the router's queue, the maximum length of the
    answer, and if a later request will continue this text.

    Reference: ai-dynamo/dynamo, `lib/llm/src/protocols/openai/nvext.rs` (i32, u32, u32, bool), and its page on hints.
    """
    told: dict[str, Any] = {}
    if priority is not None:
        told["priority"] = int(priority)
        if priority > 0:
            told["strict_priority"] = 1
    if max_tokens is not None:
        told["osl"] = max_tokens
    if meta_of(task).is_chunk:
        told["speculative_prefill"] = True
    return told


def session_headers() -> dict[str, str]:
    """Headers that group the requests of one program for Dynamo."""
    session = _session()
    return {} if session is None else {"X-Dynamo-Session-ID": session}


def _agent_context() -> dict[str, Any]:
    """Dynamo's `AgentContext`: its program scheduler keeps the requests of one trajectory together.

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
    """Reason why the server does not follow the host policy's order; None if it does."""
    if flavor.priority is None:
        return f"servers of flavor {flavor.name!r} take no priority"
    if flavor.priority(1) is None:
        return f"servers of flavor {flavor.name!r} only take urgency of single tasks, not the whole order"
    if prioritize:
        return None
    return "the order is not sent: set prioritize, and start the server with priority scheduling"


_log = logging.getLogger(__name__)
OF_TOKENS = "/_control/kv_cache/truncate_tokens"
OF_MESSAGES = "/_control/kv_cache/truncate"
OLDER = "/v1/kv_cache_hints"
_IS_THERE = 405  # answer to a GET on a POST path; changes nothing
_MOST_SEQUENCES = 256  # kept per request; the server evicts the KV of older ones


class KVControl:
    """Tells a server which KV is no longer needed, through the `paths` that it has."""

    def __init__(self, connection: Connection, model: str) -> None:
        self.paths: frozenset[str] = frozenset()
        self._connection = connection
        self._model = model

    async def find(self) -> None:
        """Find the server's paths without changing anything."""
        found = [path for path in (OF_TOKENS, OF_MESSAGES, OLDER) if await self._status(path) == _IS_THERE]
        self.paths = frozenset(found)

    async def drop(self, task: DropKVCacheTask) -> None:
        """Drop the KV of a chat, except that of the messages to retain."""
        body = {
            "model": self._model,
            "messages": list(task.chat_task.messages_to_dict_content()),
            "messages_to_retain": [message.to_dict() for message in task.messages_to_retain],
        }
        if OF_MESSAGES in self.paths:
            await self._connection.post(OF_MESSAGES, body)
        else:
            await self._connection.post(OLDER, {"action": "truncate", **body})

    @property
    def drops_messages(self) -> bool:
        return bool(self.paths & {OF_MESSAGES, OLDER})

    async def truncate(self, sequences: Sequence[Sequence[int]], num_kept: int) -> None:
        """Drop the KV of token sequences after their first tokens; a failure is only logged."""
        body = {
            "model": self._model,
            "prefixes": [list(sequence) for sequence in sequences],
            "num_tokens_to_keep": [min(num_kept, len(sequence)) for sequence in sequences],
        }
        try:
            await self._connection.post(OF_TOKENS, body)
        except (EngineError, InvalidTaskError) as error:
            _log.warning("the server did not drop the KV of %d ended chains: %s", len(sequences), error)

    async def _status(self, path: str) -> int:
        return await self._connection.status_of(path)


class _EndedSequence(NamedTuple):
    """A finished generation: its prompt and its output."""

    read: Sequence[int]
    written: Sequence[int]


class Chains:
    """Token sequences of each running request, whose KV the server can free afterwards."""

    def __init__(self) -> None:
        self._of_request: dict[str, list[_EndedSequence]] = {}

    def add(self, task: GenerationTask) -> None:
        """Keep the tokens of a generation, if it has a scope and ids."""
        scope = current_scope.get()
        if scope is None or task.input_tokens is None or not task.output_tokens:
            return
        ended = self._of_request.setdefault(scope.request_id, [])
        ended.append(_EndedSequence(task.input_tokens, task.output_tokens))
        del ended[:-_MOST_SEQUENCES]

    def ended(self, scope_id: str) -> tuple[list[list[int]], int] | None:
        """The longest sequences of a finished request, and the length of its prompt, which others may share.

        None if the scope is a branch: later parts of the request may read its KV.
        """
        found = self._of_request.pop(scope_id, None)
        if not found:
            return None
        kept: list[list[int]] = []
        for one in sorted(found, key=lambda one: -len(one.read) - len(one.written)):
            whole = [*one.read, *one.written]
            if not any(longer[: len(whole)] == whole for longer in kept):
                kept.append(whole)
        return kept, min(len(one.read) for one in found)
