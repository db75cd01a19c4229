"""The blocks of the transformers engine's memory: free blocks, held blocks, and blocks that stay as cache.

The parent of a block is the block with the tokens before its own, so the blocks form a tree of prefixes. A sequence
that holds a block also holds all blocks before it. Blocks that nobody holds are evicted from the ends of the branches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import islice

from sortedcontainers import SortedList

_NUM_TRIED = 16  # most siblings on one prefix that a look-up compares
_NUM_REMEMBERED = 1 << 16  # evicted prefixes
_ROOT = -1  # index of a root, which has no place in the buffers
_MOST_ROOTS = 1024
GRAIN = 16  # tokens; the lengths at which blocks are looked up are multiples of it

BlockPriority = Callable[[int], float]
"""The priority of a sequence's block in the cache, by the number of the block in the sequence."""


def prefix_key(before: Sequence[int], token_ids: list[int]) -> int:
    """A number that stands for a prefix, computed from the number of the prefix 16 tokens shorter and these 16."""
    return hash((before[-1] if before else 0, tuple(token_ids)))


def salt_keys(salt: str) -> list[int]:
    """The number before the first tokens of a sequence with a salt, in the place of a prefix's number."""
    return [hash(salt)]


class Block:
    """One block: the tokens in it, the blocks that follow it, and the number of sequences that hold it.

    Attributes:
        index: Its place in the buffers.
        token_ids: Its tokens whose KV is computed.
        num_behind: Number of blocks that directly follow it.
        stays: Whether one of its holders wanted it to stay as cache.
        priority: In the cache; blocks of the lowest priority are evicted first.
        owner: The request that alone has held it; None where several have, or nobody says.
        last_use: When it was last freed. Of blocks of equal priority, the least recently used one is evicted first.
        prefix_keys: A number for each 16 of its tokens, as far as look-ups find the block by them.
    """

    __slots__ = (
        "_behind",
        "_num_keys",
        "_parent",
        "index",
        "last_use",
        "num_behind",
        "num_holders",
        "owner",
        "prefix_keys",
        "priority",
        "stays",
        "token_ids",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.token_ids: list[int] = []
        self.prefix_keys: list[int] = []
        self.owner: str | None = None
        self.num_holders = self.num_behind = 0
        self.priority, self.last_use, self.stays = 0.0, 0, False
        self._parent: Block | None = None
        self._num_keys = 0
        self._behind: dict[tuple[int, ...], dict[Block, None]] = {}

    @property
    def parent(self) -> Block | None:
        """The block that it follows; None if no look-up can find it."""
        return self._parent

    def stand_behind(self, parent: Block) -> None:
        """Let look-ups find the block after its parent, by its first 0, 16, 32 and so on tokens."""
        if self._parent is None:
            self._parent = parent
            parent.num_behind += 1
        while self._num_keys * GRAIN <= len(self.token_ids):
            key = tuple(self.token_ids[: self._num_keys * GRAIN])
            parent._behind.setdefault(key, {})[self] = None
            if self._num_keys:
                self.prefix_keys.append(prefix_key(self.prefix_keys or parent.prefix_keys, list(key[-GRAIN:])))
            self._num_keys += 1

    def leave(self) -> None:
        """Be found by nobody any more."""
        parent = self._parent
        if parent is not None:
            for number in range(self._num_keys):
                key = tuple(self.token_ids[: number * GRAIN])
                blocks = parent._behind[key]
                del blocks[self]
                if not blocks:
                    del parent._behind[key]
            parent.num_behind -= 1
            self._parent, self._num_keys = None, 0
            self.prefix_keys = []

    def next(self, token_ids: list[int]) -> Block | None:
        """The next block that agrees with the tokens furthest, among the latest that agree up to a multiple of 16."""
        num_tokens = len(token_ids) // GRAIN * GRAIN
        while num_tokens >= 0:
            found = self._behind.get(tuple(token_ids[:num_tokens]))
            if found:
                latest = islice(reversed(found), _NUM_TRIED)
                return max(latest, key=lambda block: num_common(token_ids, block.token_ids))
            num_tokens -= GRAIN
        return None


class BlockPool:
    """Allocates blocks and takes back blocks that nobody holds; they stay as cache as long as there is room.

    Attributes:
        root: The parent of the first block of every sequence without a salt; it holds nothing.
        num_held: Blocks that sequences hold.
        num_cached_tokens: Tokens in the blocks that stay as cache.
        num_evicted: Blocks that have left the cache for others.
    """

    def __init__(self, num_blocks: int, max_cached: int) -> None:
        self.num_blocks = num_blocks
        self.root = Block(_ROOT)
        self._roots: dict[str, Block] = {}
        self.num_held = self.num_cached_tokens = self.num_evicted = 0
        self.max_cached = max_cached
        self._num_cached = self._num_made = self._now = 0
        self._owned: dict[str, set[Block]] = {}
        self._evicted: dict[int, None] = {}  # the prefixes that left, the oldest first
        self._free: list[Block] = []  # the latest last: blocks that already have memory are used first
        self._ends: SortedList = SortedList(key=lambda block: (block.priority, block.last_use))  # cached, none behind

    def root_of(self, salt: str | None) -> Block:
        if salt is None:
            return self.root
        root = self._roots.get(salt)
        if root is None:
            if len(self._roots) >= _MOST_ROOTS:  # roots without blocks can be made again
                self._roots = {name: root for name, root in self._roots.items() if root.num_behind}
            root = self._roots[salt] = Block(_ROOT)
            root.prefix_keys = salt_keys(salt)
        return root

    @property
    def num_cached(self) -> int:
        """Number of blocks that nobody holds and that stay because a later request may need their content."""
        return self._num_cached

    @property
    def num_free(self) -> int:
        """Blocks that hold nothing."""
        return self.num_blocks - self.num_held - self._num_cached

    @property
    def num_available(self) -> int:
        """Blocks that can be allocated."""
        return self.num_blocks - self.num_held

    def allocate(self, owner: str | None = None) -> Block:
        """An empty block for one holder; if none is free, the cache evicts one. One must be available."""
        if not self._free and self._num_made == self.num_blocks:
            self._evict()
        if self._free:
            block = self._free.pop()
        else:
            block = Block(self._num_made)
            self._num_made += 1
        block.num_holders = 1
        self.num_held += 1
        if owner is not None:
            block.owner = owner
            self._owned.setdefault(owner, set()).add(block)
        return block

    def hold(self, block: Block, owner: str | None = None) -> None:
        """Let one more sequence hold a block; if it is of another request, the block is nobody's own any more."""
        if not block.num_holders:
            self._take_from_cache(block)
            self.num_held += 1
        if block.owner != owner:
            self._disown(block)
        block.num_holders += 1

    def free(self, block: Block, keep: bool, priority: float | None = None) -> bool:
        """End a sequence's hold on a block; returns whether its content is gone. Sequences are freed from their end.

        Args:
            block: The block.
            keep: Whether the block stays as cache. It always stays if an earlier holder wanted this.
            priority: Of the block in the cache; None leaves it as it is.
        """
        if keep:
            block.stays = True
            block.priority = block.priority if priority is None else priority
        block.num_holders -= 1
        if block.num_holders:
            return False
        self.num_held -= 1
        if not block.num_behind and not (block.stays and block.parent is not None):
            self._free_block(block)
            return True
        self._now += 1
        block.last_use = self._now
        self._num_cached += 1
        self.num_cached_tokens += len(block.token_ids)
        if not block.num_behind:
            self._ends.add(block)
        while self._num_cached > self.max_cached:
            self._evict()
        return False

    def keep(self, owner: str, blocks: Collection[Block]) -> None:
        """Free the cached blocks that a request alone has used, but for some; these age like all others."""
        others = self._owned.get(owner, set()).difference(blocks)
        ends = [block for block in others if not (block.num_holders or block.num_behind)]
        while ends:
            block = ends.pop()
            parent = block.parent
            self._drop(block)
            if parent in others and not (parent.num_holders or parent.num_behind):
                ends.append(parent)

    def end(self, owner: str) -> None:
        """A request has ended: its blocks stay as cache like all others."""
        for block in self._owned.pop(owner, ()):
            is_end = not (block.num_holders or block.num_behind)
            if is_end:
                self._ends.remove(block)
            block.priority, block.owner = 0.0, None
            if is_end:
                self._ends.add(block)

    def come_back(self, keys: list[int]) -> int:
        """Note that prefixes are computed, and count how many of them had been evicted."""
        before = len(self._evicted)
        for key in keys:
            self._evicted.pop(key, None)
        return before - len(self._evicted)

    def _take_from_cache(self, block: Block) -> None:
        self._num_cached -= 1
        self.num_cached_tokens -= len(block.token_ids)
        if not block.num_behind:
            self._ends.remove(block)

    def _evict(self) -> None:
        """Evict the block of the lowest priority among those at the ends of branches."""
        self.num_evicted += 1
        self._drop(self._ends[0])

    def _drop(self, block: Block) -> None:
        """Free a block at the end of a branch that nobody holds, and remember its prefix."""
        self._take_from_cache(block)
        self._evicted |= dict.fromkeys(block.prefix_keys)
        while len(self._evicted) > _NUM_REMEMBERED:
            del self._evicted[next(iter(self._evicted))]
        self._free_block(block)

    def _free_block(self, block: Block) -> None:
        parent = block.parent
        self._disown(block)
        block.leave()
        block.token_ids, block.stays = [], False
        self._free.append(block)
        if parent is not None and parent.index != _ROOT and not (parent.num_behind or parent.num_holders):
            self._ends.add(parent)

    def _disown(self, block: Block) -> None:
        block.priority = 0.0
        if block.owner is not None:
            owned = self._owned[block.owner]
            owned.discard(block)
            if not owned:
                del self._owned[block.owner]
            block.owner = None


def num_common(some: list[int], others: list[int]) -> int:
    """How many tokens two lists have in common from their beginning."""
    limit = min(len(some), len(others))
    if some[:limit] == others[:limit]:
        return limit
    return next(place for place in range(limit) if some[place] != others[place])
