"""Tells trtllm-serve which KV nobody will read again.

Reference:
    TensorRT-LLM, `tensorrt_llm/serve/control_plane.py` and `openai_protocol.py` (`KVCacheTruncateRequest`,
    `KVCacheTruncateTokensRequest`, which take no further fields), and its scaffolding's `OpenaiWorker`; releases before
    the control plane have `/v1/kv_cache_hints`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from scaffolding_ext.errors import EngineError, InvalidTaskError
from scaffolding_ext.protocol import DropKVCacheTask, GenerationTask, current_scope
from scaffolding_ext.workers.openai.connection import Connection

_log = logging.getLogger(__name__)
OF_TOKENS = "/_control/kv_cache/truncate_tokens"
OF_MESSAGES = "/_control/kv_cache/truncate"
OLDER = "/v1/kv_cache_hints"
_IS_THERE = 405  # the answer to a GET on a path that exists for POST; the GET changes nothing
_MOST_SEQUENCES = 256  # kept for a request; the server evicts the KV of older ones itself


class KVControl:
    """Tells one server which KV is of no more use. `paths`: those that the server has."""

    def __init__(self, connection: Connection, model: str) -> None:
        self.paths: frozenset[str] = frozenset()
        self._connection = connection
        self._model = model

    async def find(self) -> None:
        """Find out what the server has, without changing anything."""
        found = [path for path in (OF_TOKENS, OF_MESSAGES, OLDER) if await self._status(path) == _IS_THERE]
        self.paths = frozenset(found)

    async def drop(self, task: DropKVCacheTask) -> None:
        """Have the server drop the KV of a chat, except that of the messages to retain."""
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
        """Have the server drop the KV of token sequences after their first tokens; a failure is only logged."""
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
    """A generation that has ended: what it read, and what it wrote."""

    read: Sequence[int]
    written: Sequence[int]


class Chains:
    """The token sequences of each request that runs, so that the server can free their KV when it has ended."""

    def __init__(self) -> None:
        self._of_request: dict[str, list[_EndedSequence]] = {}

    def add(self, task: GenerationTask) -> None:
        """Keep the tokens that a generation has read and written; without a scope or ids there is nothing to keep."""
        scope = current_scope.get()
        if scope is None or task.input_tokens is None or not task.output_tokens:
            return
        ended = self._of_request.setdefault(scope.request_id, [])
        ended.append(_EndedSequence(task.input_tokens, task.output_tokens))
        del ended[:-_MOST_SEQUENCES]

    def ended(self, scope_id: str) -> tuple[list[list[int]], int] | None:
        """The longest sequences of a request that has ended, and the length of its prompt, which others may share.

        None if the scope is a branch: later parts of the request may read the KV of the branch.
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
