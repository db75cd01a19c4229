"""Which prefixes of token sequences have their keys and values cached, and which cached ones are kept."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch

BLOCK_LEN = 16  # tokens; shorter prefixes are not worth finding


class Holder:
    """Something that holds the KV of a token sequence: a running row (`tensors` is None) or a stored prefix.

    Attributes:
        token_ids: The sequence; it may grow.
        num_kv: Its first positions whose KV is there.
        row: The row, while it runs.
        tensors: The exported KV, once it is stored.
        num_indexed: Whole blocks under which an index knows the holder.
    """

    __slots__ = ("_block_keys", "num_indexed", "num_kv", "row", "tensors", "token_ids")

    def __init__(self, token_ids: list[int]) -> None:
        self.token_ids = token_ids
        self.num_kv = 0
        self.row = -1
        self.tensors: list[torch.Tensor] | None = None
        self.num_indexed = 0
        self._block_keys: list[int] = []

    @property
    def num_bytes(self) -> int:
        """Memory of the stored tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors or ())

    def block_keys(self, num_tokens: int) -> list[int]:
        """The keys of the whole blocks among the first tokens; each key stands for everything up to its block's end."""
        keys = self._block_keys
        while (len(keys) + 1) * BLOCK_LEN <= num_tokens:
            start = len(keys) * BLOCK_LEN
            keys.append(hash((keys[-1] if keys else 0, tuple(self.token_ids[start : start + BLOCK_LEN]))))
        return keys[: num_tokens // BLOCK_LEN]


class Match(NamedTuple):
    """A cached prefix: who holds it, and how many tokens of it can be reused."""

    holder: Holder
    num_tokens: int


class PrefixIndex:
    """Finds the longest cached prefix of a token sequence, and keeps stored prefixes under a memory cap.

    Sequences are registered by the keys of their whole blocks, so that a look-up touches each block of the query once;
    inside the last block the tokens themselves are compared.

    Args:
        max_bytes: Cap on the stored prefixes; the least recently used leave first. Running rows do not count.
        enabled: False finds nothing and keeps nothing.

    Attributes:
        num_bytes: Memory of the stored prefixes.
        num_stored_tokens: Tokens in the stored prefixes.
        num_evicted: Stored prefixes that have left under the cap.
    """

    def __init__(self, max_bytes: int, enabled: bool = True) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.num_stored_tokens = 0
        self.num_evicted = 0
        self._enabled = enabled
        self._by_key: dict[int, dict[Holder, None]] = {}
        self._promised: dict[int, Holder] = {}
        self._stored: OrderedDict[Holder, int] = OrderedDict()

    def promise(self, holder: Holder) -> None:
        """Say that a holder is about to compute the blocks of its tokens."""
        if self._enabled:
            for key in holder.block_keys(len(holder.token_ids)):
                self._promised.setdefault(key, holder)

    def promised(self, holder: Holder, num_cached: int, max_tokens: int) -> bool:
        """Whether another holder is about to compute the block behind the first cached tokens of this one."""
        keys = holder.block_keys(max_tokens)
        block = num_cached // BLOCK_LEN
        return block < len(keys) and self._promised.get(keys[block], holder) is not holder

    def extend(self, holder: Holder) -> None:
        """Register the blocks that the holder has completed since the last call."""
        if not self._enabled or holder.num_kv // BLOCK_LEN == holder.num_indexed:
            return
        keys = holder.block_keys(holder.num_kv)
        for key in keys[holder.num_indexed :]:
            self._by_key.setdefault(key, {})[holder] = None
            self._take_back(key, holder)
        holder.num_indexed = len(keys)

    def find(self, holder: Holder, max_tokens: int) -> Match | None:
        """The longest cached prefix of at most `max_tokens` of the holder's tokens, or None."""
        best = None
        for key in holder.block_keys(max_tokens):
            holders = self._by_key.get(key)
            if not holders:
                break
            best = next(reversed(holders))
        if best is None:
            return None
        ours, theirs = holder.token_ids, best.token_ids
        limit = min(best.num_kv, max_tokens)
        num_tokens = 0
        while num_tokens < limit and ours[num_tokens : (end := num_tokens + BLOCK_LEN)] == theirs[num_tokens:end]:
            num_tokens = end
        while num_tokens < limit and ours[num_tokens] == theirs[num_tokens]:
            num_tokens += 1
        num_tokens = min(num_tokens, limit)
        if best in self._stored:
            self._stored.move_to_end(best)
        return Match(best, num_tokens) if num_tokens >= BLOCK_LEN else None

    def store(self, holder: Holder, tensors: list[torch.Tensor]) -> None:
        """Keep a finished row's KV; what it makes too much is evicted, least recently used first."""
        for key in holder.block_keys(len(holder.token_ids)):  # a holder that ended early has not kept all its promises
            self._take_back(key, holder)
        holder.tensors, holder.row = tensors, -1
        size = holder.num_bytes
        if size > self.max_bytes:
            self.forget(holder)
            return
        self._stored[holder] = size
        self.num_bytes += size
        self.num_stored_tokens += holder.num_kv
        while self.num_bytes > self.max_bytes:
            self.forget(next(iter(self._stored)))
            self.num_evicted += 1

    def take(self, holder: Holder) -> None:
        """Have a stored holder run again; its KV has been copied to its row."""
        self.num_bytes -= self._stored.pop(holder)
        self.num_stored_tokens -= holder.num_kv
        holder.tensors = None

    def forget(self, holder: Holder) -> None:
        """Drop a holder with its promises, and free what it stored."""
        for key in holder.block_keys(len(holder.token_ids)):
            holders = self._by_key.get(key)
            if holders is not None:
                holders.pop(holder, None)
                if not holders:
                    del self._by_key[key]
            self._take_back(key, holder)
        holder.num_indexed = 0
        if holder in self._stored:
            self.num_bytes -= self._stored.pop(holder)
            self.num_stored_tokens -= holder.num_kv
        holder.tensors = None

    def _take_back(self, key: int, holder: Holder) -> None:
        if self._promised.get(key) is holder:
            del self._promised[key]
