"""Key-value storage of the transformers engine: rows for running requests, and a store of computed prefixes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from transformers.cache_utils import Cache

if TYPE_CHECKING:
    import torch

BLOCK_LEN = 16  # tokens; shorter prefixes are not worth finding


class KVRows(Cache):  # type: ignore[misc]
    """Preallocated keys and values, one row a running request; a batch is always a contiguous range of rows.

    The model writes through `update`, to the positions set by `aim`, and reads views, never copies.

    Args:
        num_rows: Requests that can run at once.
        capacity: Positions in a row; one more is allocated, which takes the writes of padding.
    """

    def __init__(self, num_rows: int, capacity: int) -> None:
        super().__init__(layers=[])
        self.num_rows = num_rows
        self.capacity = capacity
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []
        self._rows = slice(0, 0)
        self._row_index: Any = None
        self._positions: Any = None
        self._kv_len = 0

    def aim(self, first_row: int, positions: torch.Tensor, kv_len: int) -> None:
        """Set where the next forward pass writes and how much it reads.

        Args:
            first_row: First row of the batch.
            positions: Where each token goes, shape (rows, tokens); `capacity` for padding.
            kv_len: Positions that attention sees.
        """
        import torch

        self._rows = slice(first_row, first_row + positions.shape[0])
        self._row_index = torch.arange(first_row, first_row + positions.shape[0], device=positions.device)[:, None]
        self._positions = positions
        self._kv_len = kv_len

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write one layer's new keys and values, shape (rows, heads, tokens, head size); return all that is visible."""
        while len(self.keys) <= layer_idx:
            new_keys, new_values = (  # both, before either is kept: one of them may not fit into the memory
                states.new_zeros(self.num_rows, states.shape[1], self.capacity + 1, states.shape[3])
                for states in (key_states, value_states)
            )
            self.keys.append(new_keys)
            self.values.append(new_values)
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        keys[self._row_index, :, self._positions] = key_states.transpose(1, 2)
        values[self._row_index, :, self._positions] = value_states.transpose(1, 2)
        return keys[self._rows, :, : self._kv_len], values[self._rows, :, : self._kv_len]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions that attention sees; asked for by models that derive positions themselves."""
        return self._kv_len

    def move(self, source: int, target: int, num_tokens: int) -> None:
        """Copy the first positions of one row to another."""
        for buffer in (*self.keys, *self.values):
            buffer[target, :, :num_tokens] = buffer[source, :, :num_tokens]

    def export(self, row: int, num_tokens: int) -> list[torch.Tensor]:
        """A copy of a row's first positions: keys of every layer, then values."""
        return [buffer[row, :, :num_tokens].clone() for buffer in (*self.keys, *self.values)]

    def load(self, row: int, tensors: Sequence[torch.Tensor], num_tokens: int) -> None:
        """Copy the first exported positions into a row."""
        for buffer, tensor in zip((*self.keys, *self.values), tensors, strict=True):
            buffer[row, :, :num_tokens] = tensor[:, :num_tokens]


class Holder:
    """Something that holds the KV of a token sequence: a running row (`tensors` is None) or a stored prefix.

    Attributes:
        token_ids: The sequence; it may grow.
        num_kv: Its first positions whose KV is there.
        row: The row, while it runs.
        tensors: The exported KV, once it is stored.
    """

    __slots__ = ("hashes", "num_kv", "row", "tensors", "token_ids")

    def __init__(self, token_ids: list[int]) -> None:
        self.token_ids = token_ids
        self.num_kv = 0
        self.row = -1
        self.tensors: list[torch.Tensor] | None = None
        self.hashes: list[int] = []

    @property
    def num_bytes(self) -> int:
        """Memory of the stored tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors or ())


class Match(NamedTuple):
    """A cached prefix: who holds it, and how many tokens of it can be reused."""

    holder: Holder
    num_tokens: int


class PrefixIndex:
    """Finds the longest cached prefix of a token sequence, and keeps stored prefixes under a memory cap.

    Sequences are registered by the hashes of their whole blocks, chained from the start, so that a look-up touches each
    block of the query once; inside the last block the tokens themselves are compared.

    Args:
        max_bytes: Cap on the stored prefixes; the least recently used leave first. Running rows do not count.

    Attributes:
        num_bytes: Memory of the stored prefixes.
        num_stored_tokens: Tokens whose KV is stored outside of running rows.
        num_evicted: Stored prefixes that left under the cap.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.num_stored_tokens = 0
        self.num_evicted = 0
        self._by_hash: dict[int, dict[Holder, None]] = {}
        self._stored: OrderedDict[Holder, int] = OrderedDict()

    def extend(self, holder: Holder) -> None:
        """Register the blocks that the holder has completed since the last call."""
        while (len(holder.hashes) + 1) * BLOCK_LEN <= holder.num_kv:
            start = len(holder.hashes) * BLOCK_LEN
            block = tuple(holder.token_ids[start : start + BLOCK_LEN])
            key = hash((holder.hashes[-1] if holder.hashes else 0, block))
            holder.hashes.append(key)
            self._by_hash.setdefault(key, {})[holder] = None

    def find(self, token_ids: list[int], max_tokens: int) -> Match | None:
        """The longest cached prefix of at most `max_tokens` tokens, or None."""
        key, best = 0, None
        for start in range(0, max_tokens - BLOCK_LEN + 1, BLOCK_LEN):
            key = hash((key, tuple(token_ids[start : start + BLOCK_LEN])))
            holders = self._by_hash.get(key)
            if not holders:
                break
            best = next(reversed(holders))
        if best is None:
            return None
        limit = min(best.num_kv, max_tokens)
        num_tokens = 0
        while num_tokens < limit and best.token_ids[num_tokens] == token_ids[num_tokens]:
            num_tokens += 1
        if best in self._stored:
            self._stored.move_to_end(best)
        return Match(best, num_tokens) if num_tokens >= BLOCK_LEN else None

    def store(self, holder: Holder, tensors: list[torch.Tensor]) -> None:
        """Keep a finished row's KV; what it makes too much is evicted, least recently used first."""
        holder.tensors, holder.row = tensors, -1
        size = holder.num_bytes
        if size > self.max_bytes:
            self.forget(holder)
            return
        self._stored[holder] = size
        self.num_bytes += size
        self.num_stored_tokens += holder.num_kv
        while self.num_bytes > self.max_bytes:
            oldest = next(iter(self._stored))
            self.forget(oldest)
            self.num_evicted += 1

    def forget(self, holder: Holder) -> None:
        """Drop a holder and free what it stored."""
        for key in holder.hashes:
            holders = self._by_hash.get(key)
            if holders is not None:
                holders.pop(holder, None)
                if not holders:
                    del self._by_hash[key]
        holder.hashes.clear()
        if holder in self._stored:
            self.num_bytes -= self._stored.pop(holder)
            self.num_stored_tokens -= holder.num_kv
        holder.tensors = None
