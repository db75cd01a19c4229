"""Sequences of tokens in blocks of keys and values: which KV of a new sequence exists, and who holds which block."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from scaffolding_ext.workers.huggingface.block_pool import (
    GRAIN,
    Block,
    BlockPool,
    BlockPriority,
    num_common,
    prefix_key,
    salt_keys,
)

if TYPE_CHECKING:
    from scaffolding_ext.workers.huggingface.kv_blocks import KVBlocks


class TokenSequence:
    """A sequence of tokens, and the blocks that hold their keys and values.

    Attributes:
        token_ids: The tokens so far.
        salt: Sequences with different salts share no blocks.
        owner: The request that they serve; see `BlockPool.keep`.
        num_kv: How many of its first tokens have computed KV.
        blocks: The blocks that it holds, in order.
        table: The places of these blocks in the buffers.
    """

    __slots__ = ("_prefix_keys", "blocks", "num_blocks", "num_kv", "owner", "salt", "table", "token_ids")

    def __init__(self, token_ids: list[int], salt: str | None = None, owner: str | None = None) -> None:
        self.salt = salt
        self.owner = owner
        self.token_ids = token_ids
        self.num_kv = 0
        self.blocks: list[Block] = []
        self.num_blocks = 0
        self.table: array[int] = array("q")
        self._prefix_keys: list[int] = []

    def add(self, block: Block) -> None:
        self.blocks.append(block)
        self.table.append(block.index)
        self.num_blocks += 1

    def clear(self) -> None:
        self.blocks.clear()
        del self.table[:]
        self.num_blocks = self.num_kv = 0

    def prefix_keys(self, num_tokens: int) -> list[int]:
        """A number for each 16 of the first tokens; it stands for all tokens up to their end."""
        keys = self._prefix_keys
        while (len(keys) + 1) * GRAIN <= num_tokens:
            start = len(keys) * GRAIN
            before = keys if keys or self.salt is None else salt_keys(self.salt)
            keys.append(prefix_key(before, self.token_ids[start : start + GRAIN]))
        return keys[: num_tokens // GRAIN]


class Match(NamedTuple):
    """The cached KV of a sequence.

    Attributes:
        blocks: Whole blocks that it can hold with others.
        rest: The block that holds the tokens after these blocks, or None.
        num_rest: How many of the first tokens of `rest` match.
        num_tokens: Tokens in all.
    """

    blocks: list[Block]
    rest: Block | None
    num_rest: int
    num_tokens: int


NO_MATCH = Match([], None, 0, 0)


class PrefixIndex:
    """Finds the cached KV of a sequence, and gives sequences their blocks.

    Args:
        kv: The keys and values.
        pool: Their blocks.
        enabled: False finds nothing and keeps nothing.
        partial: False finds and keeps only whole blocks. True also copies the first tokens of a block.
    """

    def __init__(self, kv: KVBlocks, pool: BlockPool, enabled: bool = True, partial: bool = True) -> None:
        self.enabled = enabled
        self._partial = partial
        self._kv = kv
        self._pool = pool
        self._block_len = kv.tokens_per_block
        self._step_len = min(GRAIN, self._block_len)  # tokens; whoever looks finds more of a sequence after as many
        self._least = GRAIN if partial else self._block_len  # fewest tokens that a request waits for
        self._promised: dict[int, TokenSequence] = {}

    def promise(self, sequence: TokenSequence) -> None:
        """Say that the KV of a sequence's tokens is about to be computed."""
        if self.enabled:
            for key in sequence.prefix_keys(len(sequence.token_ids)):
                self._promised.setdefault(key, sequence)

    def promised(self, sequence: TokenSequence, num_cached: int, max_tokens: int) -> bool:
        """Whether another sequence is about to compute the tokens that this one needs after its cached tokens."""
        keys = sequence.prefix_keys(max_tokens)
        number = (num_cached // self._least + 1) * self._least // GRAIN - 1
        return number < len(keys) and self._promised.get(keys[number], sequence) is not sequence

    def find(self, sequence: TokenSequence, max_tokens: int) -> Match:
        """The cached KV of a sequence's first `max_tokens` tokens; prefixes below 16 tokens are not looked up."""
        blocks: list[Block] = []
        if not self.enabled:
            return NO_MATCH
        last, start = self._pool.root_of(sequence.salt), 0
        while start < max_tokens:
            ours = sequence.token_ids[start : min(start + self._block_len, max_tokens)]
            block = last.next(ours)
            if block is None:
                break
            num_tokens = num_common(ours, block.token_ids)
            if num_tokens < self._block_len:
                if self._partial and start + num_tokens >= GRAIN and num_tokens:
                    return Match(blocks, block, num_tokens, start + num_tokens)
                break
            blocks.append(block)
            last, start = block, start + self._block_len
        return Match(blocks, None, 0, start)

    def num_reread(self, sequence: TokenSequence, match: Match) -> int:
        """Tokens of a new sequence, in whole 16s, whose KV had been cached and was evicted."""
        keys = sequence.prefix_keys(len(sequence.token_ids))
        return GRAIN * self._pool.come_back(keys[-(-match.num_tokens // GRAIN) :])

    def num_needed(self, sequence: TokenSequence, match: Match) -> int:
        """Number of available blocks that a sequence needs to begin: all its blocks except those that others hold."""
        num_blocks = -(-len(sequence.token_ids) // self._block_len)
        return num_blocks - sum(block.num_holders > 0 for block in match.blocks)

    def allocate(self, sequence: TokenSequence, match: Match, may_adopt: bool) -> None:
        """Give a sequence its blocks: those that match, a copy of the rest, and new ones for its other tokens.

        Args:
            sequence: A sequence that holds nothing yet.
            match: Its cached KV.
            may_adopt: Whether the sequence may go on in the block `rest` itself, if nobody holds that block and all of
                it matches. Otherwise it gets a copy.
        """
        pool, rest = self._pool, match.rest
        for block in match.blocks:
            pool.hold(block, sequence.owner)
            sequence.add(block)
        if rest is not None:
            if may_adopt and not (rest.num_holders or rest.num_behind) and len(rest.token_ids) == match.num_rest:
                pool.hold(rest, sequence.owner)
                sequence.add(rest)
            else:
                self._copy(sequence, rest, match.num_rest)
        sequence.num_kv = match.num_tokens
        while len(sequence.blocks) * self._block_len < len(sequence.token_ids):
            sequence.add(pool.allocate(sequence.owner))

    def lacking(self, sequences: Sequence[TokenSequence]) -> list[int]:
        """Which of some sequences have no room for their next token."""
        block_len = self._block_len
        return [
            number for number, sequence in enumerate(sequences) if sequence.num_kv == sequence.num_blocks * block_len
        ]

    def grow(self, sequence: TokenSequence) -> None:
        """Give a sequence one more block; there must be one available."""
        sequence.add(self._pool.allocate(sequence.owner))

    def extend(self, sequence: TokenSequence, num_tokens: int) -> None:
        """Note that the KV of `num_tokens` more tokens of a sequence is computed, so that others find it."""
        start = sequence.num_kv
        stop = sequence.num_kv = start + num_tokens
        if not self.enabled:
            return
        for number in range(start // self._block_len, -(-stop // self._block_len)):
            block = sequence.blocks[number]
            parent = sequence.blocks[number - 1] if number else self._pool.root_of(sequence.salt)
            end = min(stop, (number + 1) * self._block_len)
            block.token_ids += sequence.token_ids[start:end]
            start = end
            if len(block.token_ids) == self._block_len:
                self._complete(sequence, number, parent)
            elif self._partial and (num_tokens > 1 or len(block.token_ids) == 1 or len(block.token_ids) % GRAIN == 0):
                block.stand_behind(parent)
        if self._promised:
            for key in sequence.prefix_keys(stop)[(stop - num_tokens) // GRAIN :]:
                self._take_back(key, sequence)

    def extend_each(self, sequences: Sequence[TokenSequence]) -> None:
        """`extend` each of some sequences by one token: this is done for every token that is generated."""
        enabled, block_len, step_len = self.enabled, self._block_len, self._step_len
        for sequence in sequences:
            start = sequence.num_kv
            if enabled and (start + 1) % step_len <= 1:
                self.extend(sequence, 1)
                continue
            sequence.num_kv = start + 1
            if enabled:
                sequence.blocks[start // block_len].token_ids += sequence.token_ids[start : start + 1]

    def free(self, sequence: TokenSequence, keep: bool, priority: BlockPriority | None = None) -> None:
        """Free a sequence's blocks, and take back its promises. `keep`: blocks that nobody else holds stay as cache."""
        for number in reversed(range(len(sequence.blocks))):
            own = None if priority is None else priority(number)
            self._pool.free(sequence.blocks[number], keep and self.enabled, own)
        sequence.clear()
        if self._promised:
            for key in sequence.prefix_keys(len(sequence.token_ids)):
                self._take_back(key, sequence)

    def keep(self, owner: str, salt: str | None, sequences: Sequence[list[int]]) -> None:
        """Free the cached blocks that a request alone has held, but for those of these token ids."""
        kept: set[Block] = set()
        for token_ids in sequences:
            match = self.find(TokenSequence(token_ids, salt), len(token_ids))
            kept |= {*match.blocks, *([] if match.rest is None else [match.rest])}
        self._pool.keep(owner, kept)

    def discard(self, sequence: TokenSequence) -> None:
        """Free a sequence's blocks and clear those that nobody else holds: their content is wrong."""
        blocks = list(sequence.blocks)
        for block in blocks:
            block.stays = False
        self.free(sequence, keep=False)
        for block in blocks:
            if not block.token_ids and not block.num_holders:
                self._kv.clear(block.index)

    def _copy(self, sequence: TokenSequence, source: Block, num_tokens: int) -> None:
        token_ids, parent = source.token_ids[:num_tokens], source.parent
        block = self._pool.allocate(sequence.owner)
        if block is not source:  # otherwise the cache has just evicted this block, and its content is still there
            self._kv.copy(source.index, block.index, num_tokens)
        block.token_ids = token_ids
        if parent is not None:
            block.stand_behind(parent)
        sequence.add(block)

    def _complete(self, sequence: TokenSequence, number: int, parent: Block) -> None:
        """Let look-ups find a full block, or replace it by an equal block that they already find."""
        block = sequence.blocks[number]
        twin = parent.next(block.token_ids)
        if twin is None or twin is block or len(twin.token_ids) < self._block_len or twin.token_ids != block.token_ids:
            block.stand_behind(parent)
            return
        self._pool.hold(twin, sequence.owner)
        block.stays = False
        self._pool.free(block, keep=False)
        sequence.blocks[number] = twin
        sequence.table[number] = twin.index

    def _take_back(self, key: int, sequence: TokenSequence) -> None:
        if self._promised.get(key) is sequence:
            del self._promised[key]
