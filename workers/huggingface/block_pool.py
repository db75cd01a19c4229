"""Blocks of the engine's KV memory: their holders, the cache, and sharing between sequences.

A full block has a key, a digest of all tokens up to its end, so sequences with a common beginning share its whole
blocks. A block is announced under its key when a sequence is about to compute it; others that need it wait until it is
computed. A shared block is full, so it is never written. Blocks without a holder stay as cache until their memory is
needed.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import NamedTuple

_DIGEST_BYTES = 16
IDLE = 0.0  # priority of a block of a request without work in the engine, evicted first
PLAIN = 1.0  # priority of a block of no branch: that of RKSC's branches of score 1 at depth 0


class BlockPriority(NamedTuple):
    """Priority of a branch's blocks in the cache: 1 for those of the prefix, then the branch's score."""

    num_shared: int  # blocks of the prefix
    score: float


class Block:
    """One block."""

    __slots__ = ("index", "is_computed", "key", "num_holders", "owner", "priority", "stays")

    def __init__(self, index: int) -> None:
        self.index = index  # in the buffers
        self.key: bytes | None = None  # digest for look-ups
        self.is_computed = False  # the KV of all its tokens exists
        self.num_holders = 0  # sequences
        self.stays = False  # one of its holders wanted it to stay as cache
        self.priority = PLAIN  # lowest is evicted first from the cache
        self.owner: str | None = None  # the only request that has held it, if known


class TokenSequence:
    """A sequence of tokens, and the blocks with their keys and values.

    Sequences with different salts share no blocks. `owner` is the request that the sequence serves; see
    `BlockPool.keep`.
    """

    __slots__ = ("_keys", "_root", "blocks", "num_blocks", "num_kv", "owner", "table", "token_ids")

    def __init__(self, token_ids: list[int], salt: str | None = None, owner: str | None = None) -> None:
        self.token_ids, self.owner = token_ids, owner
        self.num_kv = 0  # first tokens with computed KV
        self.blocks: list[Block] = []
        self.table: array[int] = array("q")  # indices of these blocks in the buffers
        self.num_blocks = 0
        self._root = b"" if salt is None else blake2b(salt.encode(), digest_size=_DIGEST_BYTES).digest()
        self._keys: list[bytes] = []

    def add(self, block: Block) -> None:
        self.blocks.append(block)
        self.table.append(block.index)
        self.num_blocks += 1

    def clear(self) -> None:
        self.blocks.clear()
        del self.table[:]
        self.num_blocks = self.num_kv = 0

    def keys(self, num_blocks: int, block_len: int) -> list[bytes]:
        keys = self._keys
        for start in range(len(keys) * block_len, num_blocks * block_len, block_len):
            tokens = array("q", self.token_ids[start : start + block_len]).tobytes()
            keys.append(blake2b((keys[-1] if keys else self._root) + tokens, digest_size=_DIGEST_BYTES).digest())
        return keys[:num_blocks]


class BlockPool:
    """Allocates blocks to sequences. The cache evicts the block of the lowest worth, the least recently used of equals.

    Args:
        num_blocks: Blocks in all.
        block_len: Tokens of a block.
        max_cached: Maximum number of blocks that stay as cache.
        shares: False disables sharing and caching.
        idle_first: Evict first the blocks that only one owner has used, which is idle (Certaindex, appendix D.3.2).
    """

    def __init__(
        self, num_blocks: int, block_len: int, max_cached: int, shares: bool = True, idle_first: bool = False
    ) -> None:
        self.num_blocks, self.block_len, self.max_cached = num_blocks, block_len, max_cached
        self.num_held = self.num_evicted = 0  # blocks held by sequences, and evicted from the cache
        self._shares, self._idle_first = shares, idle_first
        self._is_ranked = idle_first  # blocks may differ in worth; also set by a priority
        self._num_open: Counter[str] = Counter()  # waiting and running sequences of each owner
        # The latest is last, so that blocks with allocated memory are reused first.
        self._free = [Block(index) for index in reversed(range(num_blocks))]
        self._found: dict[bytes, Block] = {}
        self._equal: dict[bytes, list[Block]] = {}  # further blocks of the same tokens, each to take that one's place
        self._cached: dict[Block, None] = {}  # the least recently used first

    @property
    def num_cached(self) -> int:
        """Blocks without a holder, kept for later requests."""
        return len(self._cached)

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_available(self) -> int:
        """Blocks that can be given to a sequence."""
        return self.num_blocks - self.num_held

    def find(self, sequence: TokenSequence, max_tokens: int) -> list[Block]:
        """Return the existing blocks of a sequence's first `max_tokens` tokens; some may not be computed yet."""
        found: list[Block] = []
        for key in sequence.keys(max_tokens // self.block_len, self.block_len) if self._shares else ():
            block = self._found.get(key)
            if block is None:
                break
            found.append(block)
        return found

    def prefix_len(self, sequence: TokenSequence) -> int:
        """Return the number of first tokens of a sequence whose KV is computed; from any thread, as of this moment."""
        found = self.find(sequence, len(sequence.token_ids) - 1)
        return self.block_len * sum(block.is_computed for block in found)

    def num_needed(self, sequence: TokenSequence, found: list[Block]) -> int:
        """Number of available blocks that a sequence needs to begin: all its blocks except those that others hold."""
        num_blocks = -(-len(sequence.token_ids) // self.block_len)
        return num_blocks - sum(block.num_holders > 0 for block in found)

    def begin(self, sequence: TokenSequence, found: list[Block], announces: bool) -> None:
        """Give a new sequence its blocks: the computed ones that were found, and new ones for its other tokens.

        With `announces`, other sequences may wait for the blocks that it is about to compute.
        """
        for block in found:
            self._hold(block, sequence.owner)
            sequence.add(block)
        sequence.num_kv = len(found) * self.block_len
        while sequence.num_blocks * self.block_len < len(sequence.token_ids):
            self.grow(sequence)
        if announces:
            keys = sequence.keys(len(sequence.token_ids) // self.block_len, self.block_len)
            for number in range(len(found), len(keys)):
                self._name(sequence.blocks[number], keys[number])

    def grow(self, sequence: TokenSequence) -> None:
        """Give a sequence one more block; one must be available."""
        if not self._free:
            self._evict()
        block = self._free.pop()
        block.num_holders = 1
        self.num_held += 1
        block.owner = sequence.owner
        sequence.add(block)

    def advance(self, computed: Iterable[tuple[TokenSequence, int]]) -> None:
        """Record how many more tokens of some sequences are computed, so that others find their full blocks."""
        for sequence, num_tokens in computed:
            first, last = sequence.num_kv // self.block_len, (sequence.num_kv + num_tokens) // self.block_len
            sequence.num_kv += num_tokens
            if first < last:
                keys = sequence.keys(last, self.block_len)
                for number in range(first, last):
                    sequence.blocks[number].is_computed = True
                    self._name(sequence.blocks[number], keys[number])

    def free(self, sequence: TokenSequence, keep: bool, priority: BlockPriority | None = None) -> None:
        """Take a sequence's blocks, last first, so that the cache evicts them in this order.

        With `keep` its computed blocks stay as cache with this `priority`; None leaves it unchanged. A block stays if
        any of its holders wanted this.
        """
        self._is_ranked = self._is_ranked or (keep and priority is not None)
        for number in reversed(range(sequence.num_blocks)):
            block = sequence.blocks[number]
            if keep:
                block.stays = True
                if priority is not None:
                    block.priority = PLAIN if number < priority.num_shared else priority.score
            block.num_holders -= 1
            if block.num_holders:
                continue
            self.num_held -= 1
            if not (block.stays and block.is_computed and block.key is not None and self._found[block.key] is block):
                self._empty(block)
                continue
            self._cached[block] = None
            if len(self._cached) > self.max_cached:
                self._evict()
        sequence.clear()

    def discard(self, sequence: TokenSequence) -> list[int]:
        """Take a sequence's invalid blocks; return the indices of those without another holder."""
        blocks = list(sequence.blocks)
        for block in blocks:
            block.stays = False
        self.free(sequence, keep=False)
        return [block.index for block in blocks if not block.num_holders]

    def keep(self, owner: str, salt: str | None, sequences: Sequence[list[int]]) -> None:
        """Free the cached blocks that only `owner` has used, except those of these token ids; they age like others."""
        kept = {block for ids in sequences for block in self.find(TokenSequence(ids, salt), len(ids))}
        for block in [block for block in self._cached if block.owner == owner and block not in kept]:
            self._drop(block)

    def end(self, owner: str) -> None:
        """Let an ended request's blocks be evicted first; those that another request has used keep their priority."""
        for block in [block for block in self._cached if block.owner == owner]:
            block.priority, block.owner = IDLE, None

    def count(self, sequence: TokenSequence, change: int) -> None:
        """Note that a sequence waits (1) or has ended (-1); its owner is idle while it has none."""
        if sequence.owner is not None:
            self._num_open[sequence.owner] += change
            if not self._num_open[sequence.owner]:
                del self._num_open[sequence.owner]

    def _worth(self, block: Block) -> float:
        is_idle = self._idle_first and block.owner is not None and block.owner not in self._num_open
        return IDLE if is_idle else block.priority

    def _evict(self) -> None:
        self.num_evicted += 1
        self._drop(min(self._cached, key=self._worth) if self._is_ranked else next(iter(self._cached)))

    def _hold(self, block: Block, owner: str | None) -> None:
        if not block.num_holders:
            del self._cached[block]
            self.num_held += 1
        if block.owner != owner:
            block.owner, block.priority = None, PLAIN
        block.num_holders += 1

    def _name(self, block: Block, key: bytes) -> None:
        """Let look-ups find a block; an equal one that they find already is found until it is emptied."""
        if self._shares and block.key is None:
            block.key = key
            if self._found.setdefault(key, block) is not block:
                self._equal.setdefault(key, []).append(block)

    def _unname(self, block: Block, key: bytes) -> None:
        equal = self._equal.get(key, [])
        if block in equal:
            equal.remove(block)
        elif equal:
            self._found[key] = equal.pop()
        else:
            del self._found[key]
        if not equal:
            self._equal.pop(key, None)

    def _drop(self, block: Block) -> None:
        del self._cached[block]
        self._empty(block)

    def _empty(self, block: Block) -> None:
        if block.key is not None:
            self._unname(block, block.key)
        block.key, block.owner, block.priority = None, None, PLAIN
        block.is_computed = block.stays = False
        self._free.append(block)
