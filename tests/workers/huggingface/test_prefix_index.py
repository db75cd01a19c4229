"""Sequences and their blocks against a brute-force model: what is found is there, and every block is accounted for."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.workers.huggingface.block_pool import GRAIN, BlockPool
from scaffolding_ext.workers.huggingface.kv_blocks import KVBlocks, Slots
from scaffolding_ext.workers.huggingface.prefix_index import NO_MATCH, PrefixIndex, TokenSequence

BLOCK_LEN = 2 * GRAIN
LONGEST = 4 * BLOCK_LEN


class Memory:
    """An index over real blocks, in which a token's key tells all the tokens up to it."""

    def __init__(self, num_blocks=64, max_cached=64, enabled=True, partial=True):
        self.kv, self.pool = KVBlocks(num_blocks, BLOCK_LEN), BlockPool(num_blocks, max_cached)
        self.index = PrefixIndex(self.kv, self.pool, enabled, partial)

    def allocate(self, token_ids, may_adopt=True, owner=None):
        """A sequence with what is found of it, or None where there is no room."""
        sequence = TokenSequence(list(token_ids), owner=owner)
        match = self.index.find(sequence, len(sequence.token_ids) - 1)
        if self.index.num_needed(sequence, match) > self.pool.num_available:
            return None
        self.index.allocate(sequence, match, may_adopt)
        assert sequence.num_kv == match.num_tokens
        return sequence

    def compute(self, sequence, num_tokens, decodes=False):
        """Compute the next tokens, as far as there are any; `decodes` notes it as a step of a batch does."""
        stop = min(len(sequence.token_ids), sequence.num_kv + num_tokens)
        num_tokens = stop - sequence.num_kv
        if num_tokens:
            places = [divmod(position, BLOCK_LEN) for position in range(sequence.num_kv, stop)]
            slots = Slots(
                torch.tensor([sequence.table[number] for number, _ in places]),
                torch.tensor([offset for _, offset in places]),
            )
            keys = torch.tensor([history(sequence.token_ids, position) for position in range(sequence.num_kv, stop)])
            self.kv.write(0, keys.double()[None, :, None], keys.double()[None, :, None], slots)
            if decodes:
                self.index.extend_each([sequence])
            else:
                self.index.extend(sequence, num_tokens)

    def check(self, sequences):
        """Every sequence holds its own tokens' KV, and every block is free, held or cached."""
        held = {}
        for sequence in sequences:
            assert list(sequence.table) == [block.index for block in sequence.blocks]
            assert sequence.num_blocks == len(sequence.blocks)
            assert len(sequence.blocks) * BLOCK_LEN >= sequence.num_kv
            for block in sequence.blocks:
                held[block] = held.get(block, 0) + 1
            for position in range(sequence.num_kv):
                block, offset = sequence.table[position // BLOCK_LEN], position % BLOCK_LEN
                assert self.kv.buffers[0][block, 0, offset, 0] == history(sequence.token_ids, position)
        assert all(block.num_holders == number for block, number in held.items())
        assert self.pool.num_held == len(held)
        assert self.pool.num_free + self.pool.num_held + self.pool.num_cached == self.pool.num_blocks
        assert min(self.pool.num_free, self.pool.num_cached) >= 0
        assert self.pool.num_cached <= self.pool.max_cached


def history(token_ids, position):
    """A number that float64 holds, and that no two prefixes of these tests share."""
    return hash(tuple(token_ids[: position + 1])) % 2**52


# Few different blocks and ragged ends, so that sequences share prefixes of all lengths.
_BLOCKS = [[token] * BLOCK_LEN for token in (1, 2)] + [[1] * (BLOCK_LEN - 1) + [3], [1] * GRAIN + [2] * GRAIN]
_TOKENS = st.builds(
    lambda blocks, end: [token for block in blocks for token in block] + end,
    st.lists(st.sampled_from(_BLOCKS), max_size=3),
    st.lists(st.integers(1, 3), min_size=1, max_size=BLOCK_LEN),
)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), _TOKENS, st.booleans()),
        st.tuples(st.just("compute"), st.integers(0, 9), st.integers(1, LONGEST)),
        st.tuples(st.just("decode"), st.integers(0, 9), st.integers(1, 3)),
        st.tuples(st.just("free"), st.integers(0, 9), st.booleans()),
        st.tuples(st.just("discard"), st.integers(0, 9), st.none()),
        st.tuples(st.just("keep"), st.sampled_from(["one", "two"]), st.lists(_TOKENS, max_size=3)),
        st.tuples(st.just("end"), st.sampled_from(["one", "two"]), st.none()),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(_STEPS, st.integers(4, 12), st.integers(0, 12), st.booleans())
def test_sequences_hold_their_own_kv_whatever_they_share(steps, num_blocks, max_cached, partial):
    memory, running = Memory(num_blocks, max_cached, partial=partial), []
    for action, what, how in steps:
        if action == "allocate":
            sequence = memory.allocate(what, how, ("one", "two", None)[len(what) % 3])
            if sequence is not None:
                running.append(sequence)
        elif action == "keep":
            memory.index.keep(what, None, how)
        elif action == "end":
            memory.pool.end(what)
        elif running:
            sequence = running[what % len(running)]
            if action == "compute":
                memory.compute(sequence, how)
            elif action == "decode" and sequence.num_kv == len(sequence.token_ids) < LONGEST:
                sequence.token_ids.append(how)
                if memory.index.lacking([sequence]):
                    if not memory.pool.num_available:
                        sequence.token_ids.pop()
                        continue
                    memory.index.grow(sequence)
                memory.compute(sequence, 1, decodes=True)
            elif action == "free":
                memory.index.free(sequence, how)
                running.remove(sequence)
            elif action == "discard":
                running.remove(sequence)
                memory.index.discard(sequence)
        memory.check(running)
    for sequence in running:
        memory.index.free(sequence, keep=False)
    memory.check([])
    for _ in range(num_blocks):
        memory.pool.allocate()
    assert memory.pool.num_cached == 0
    assert not memory.pool._owned
    assert not memory.pool.root.num_behind


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("block_len", [8, 32])
def test_a_token_of_each_is_found_as_one_token_is(enabled, partial, block_len):
    """Two indices get the same tokens, one of them many sequences at once; after each step they find the same."""
    kv, prompts = KVBlocks(64, block_len), [[1] * 3, [1] * 20, [2] * 15, [1] * 30 + [2], [2] * 15]
    indices = [PrefixIndex(kv, BlockPool(64, 64), enabled, partial) for _ in range(2)]
    sides = [[TokenSequence(list(prompt)) for prompt in prompts] for _ in indices]
    for index, sequences in zip(indices, sides, strict=True):
        for sequence in sequences:
            index.allocate(sequence, NO_MATCH, may_adopt=True)
            index.promise(sequence)
            index.extend(sequence, len(sequence.token_ids))
    for step in range(2 * block_len + 3):
        for index, sequences in zip(indices, sides, strict=True):
            for sequence in sequences:
                sequence.token_ids.append(1 + step % 2)
            for number in index.lacking(sequences):
                index.grow(sequences[number])
        for sequence in sides[0]:
            indices[0].extend(sequence, 1)
        indices[1].extend_each(sides[1])
        states = [
            (
                [(s.num_kv, list(s.table), [block.token_ids for block in s.blocks]) for s in sequences],
                [index.find(TokenSequence([*s.token_ids, 1, 2, 1]), s.num_kv + 2).num_tokens for s in sequences],
                sorted(index._promised),
            )
            for index, sequences in zip(indices, sides, strict=True)
        ]
        assert states[0] == states[1]
    assert (max(states[0][1]) > block_len) is enabled


def shared_len(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(_TOKENS, st.integers(0, LONGEST)), max_size=8), _TOKENS)
def test_what_is_found_is_the_longest_there_is_but_for_less_than_sixteen_tokens(given_sequences, asked):
    memory, known = Memory(), []
    for token_ids, num_computed in given_sequences:
        sequence = memory.allocate(token_ids)
        memory.compute(sequence, num_computed)
        known.append(sequence)
    longest = max((shared_len(asked, s.token_ids[: s.num_kv]) for s in known), default=0)
    match = memory.index.find(TokenSequence(asked), len(asked))
    assert match.num_tokens == len(match.blocks) * BLOCK_LEN + match.num_rest <= longest
    assert match.num_tokens >= longest // GRAIN * GRAIN


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(_TOKENS, st.integers(0, LONGEST)), max_size=8), _TOKENS)
def test_without_partial_reuse_all_whole_blocks_are_found_and_nothing_else(given_sequences, asked):
    memory, known = Memory(partial=False), []
    for token_ids, num_computed in given_sequences:
        known.append(running(memory, token_ids, num_computed))
    longest = max((shared_len(asked, s.token_ids[: s.num_kv]) for s in known), default=0)
    match = memory.index.find(TokenSequence(asked), len(asked))
    assert match.num_tokens == longest // BLOCK_LEN * BLOCK_LEN
    for sequence in known:
        memory.index.free(sequence, keep=True)
    assert memory.pool.num_cached_tokens == memory.pool.num_cached * BLOCK_LEN  # no block that nobody could find


def running(memory, token_ids, num_computed=None):
    sequence = memory.allocate(token_ids)
    memory.compute(sequence, len(token_ids) if num_computed is None else num_computed)
    return sequence


def test_a_branch_shares_whole_blocks_and_copies_the_last():
    memory = Memory()
    prefix = list(range(3 * BLOCK_LEN + 5))
    first = running(memory, [*prefix, 900])
    branches = [running(memory, [*prefix, 901 + number]) for number in range(4)]
    assert all(branch.blocks[:3] == first.blocks[:3] for branch in branches)
    assert memory.pool.num_held == 3 + 5
    memory.check([first, *branches])


def test_equal_blocks_that_were_computed_side_by_side_become_one():
    memory = Memory()
    first, second = (memory.allocate(range(2 * BLOCK_LEN)) for _ in range(2))
    for sequence in (first, second):
        memory.compute(sequence, 2 * BLOCK_LEN)
    assert first.blocks == second.blocks
    assert memory.pool.num_held == 2
    memory.check([first, second])


def test_who_goes_on_behind_an_ended_sequence_goes_on_in_its_last_block():
    memory = Memory()
    ended = running(memory, range(BLOCK_LEN + 3))
    blocks = list(ended.blocks)
    memory.index.free(ended, keep=True)
    assert memory.pool.num_cached_tokens == BLOCK_LEN + 3
    asked = range(BLOCK_LEN + 9)
    assert memory.allocate(asked, may_adopt=True).blocks == blocks
    assert memory.allocate(asked, may_adopt=True).blocks[1] is not blocks[1]  # it is somebody's now


def test_who_leaves_nothing_behind_goes_on_in_a_copy():
    memory = Memory()
    memory.index.free(running(memory, range(BLOCK_LEN + 3)), keep=True)
    memory.index.free(memory.allocate(range(BLOCK_LEN + 9), may_adopt=False), keep=False)
    assert memory.pool.num_cached_tokens == BLOCK_LEN + 3


def test_who_leaves_nothing_behind_leaves_what_it_found():
    """Whether it was in the cache before, or was let go of by who keeps it while the other held it."""
    memory = Memory()
    memory.index.free(running(memory, range(2 * BLOCK_LEN)), keep=True, priority=lambda number: 0.5)
    asked = [*range(2 * BLOCK_LEN), 99]
    memory.index.free(running(memory, asked), keep=False)
    assert memory.index.find(TokenSequence(asked), 2 * BLOCK_LEN).num_tokens == 2 * BLOCK_LEN
    assert {block.priority for block in memory.index.find(TokenSequence(asked), 2 * BLOCK_LEN).blocks} == {0.5}
    kept = running(memory, range(500, 500 + BLOCK_LEN))
    other = running(memory, [*range(500, 500 + BLOCK_LEN), 99])
    memory.index.free(kept, keep=True)
    memory.index.free(other, keep=False)
    assert memory.pool.num_cached_tokens == 3 * BLOCK_LEN
    memory.index.discard(running(memory, asked))  # but what is wrong is given up
    assert memory.pool.num_cached_tokens == BLOCK_LEN


def test_where_memory_is_full_a_copy_takes_the_place_of_what_it_copies():
    memory = Memory(num_blocks=2)
    memory.index.free(running(memory, range(BLOCK_LEN + 5)), keep=True)
    branch = running(memory, [*range(BLOCK_LEN + 4), 99])
    memory.check([branch])
    assert memory.pool.num_evicted == 1


def test_what_is_freed_leaves_by_what_its_owner_says_and_from_its_end():
    memory = Memory(num_blocks=5)
    worthless, worthy = running(memory, range(2 * BLOCK_LEN)), running(memory, range(500, 500 + 2 * BLOCK_LEN))
    memory.index.free(worthy, keep=True, priority=lambda number: 1.0 / (number + 1))
    memory.index.free(worthless, keep=True)
    taken = [memory.pool.allocate() for _ in range(4)]
    assert memory.index.find(worthless, 2 * BLOCK_LEN) == NO_MATCH
    assert memory.index.find(worthy, 2 * BLOCK_LEN).num_tokens == BLOCK_LEN
    assert len(set(taken)) == 4


def test_the_same_block_elsewhere_is_another_prefix():
    memory = Memory()
    running(memory, [1] * BLOCK_LEN + [2] * BLOCK_LEN)
    assert memory.index.find(TokenSequence([2] * BLOCK_LEN), BLOCK_LEN) == NO_MATCH


def test_a_sequence_is_found_as_far_as_its_kv_reaches():
    memory = Memory()
    sequence = running(memory, range(3 * BLOCK_LEN), BLOCK_LEN + 5)
    asked = TokenSequence(list(range(3 * BLOCK_LEN)))
    assert memory.index.find(asked, 3 * BLOCK_LEN).num_tokens == BLOCK_LEN + 5
    assert memory.index.find(asked, BLOCK_LEN).num_tokens == BLOCK_LEN
    assert memory.index.find(asked, GRAIN - 1) == NO_MATCH
    memory.compute(sequence, 1)
    assert memory.index.find(asked, 3 * BLOCK_LEN).num_tokens == BLOCK_LEN + 6


def test_what_is_promised_is_waited_for():
    memory = Memory()
    tokens = list(range(3 * GRAIN))
    first, second = memory.allocate(tokens), TokenSequence([*tokens[: 2 * GRAIN], 99])
    memory.index.promise(first)
    memory.index.promise(second)
    assert not memory.index.promised(first, 0, 3 * GRAIN)  # by itself
    assert memory.index.promised(second, 0, 2 * GRAIN)
    assert not memory.index.promised(second, 0, GRAIN - 1)  # not enough to be found
    assert not memory.index.promised(TokenSequence([7] * GRAIN), 0, GRAIN)
    memory.compute(first, GRAIN)
    assert not memory.index.promised(second, 0, 2 * GRAIN)  # the first 16 are there
    assert memory.index.promised(second, GRAIN, 2 * GRAIN)
    memory.index.free(first, keep=False)
    assert not memory.index.promised(second, 0, 2 * GRAIN)


def test_without_partial_reuse_whole_blocks_are_waited_for():
    memory = Memory(partial=False)
    tokens = list(range(BLOCK_LEN + GRAIN))
    first, second = memory.allocate(tokens), TokenSequence([*tokens, 99])
    memory.index.promise(first)
    assert memory.index.promised(second, 0, BLOCK_LEN)
    assert not memory.index.promised(second, 0, BLOCK_LEN - 1)
    assert not memory.index.promised(second, BLOCK_LEN, BLOCK_LEN + GRAIN)  # the first 16 of a block are no use
    memory.compute(first, GRAIN)
    assert memory.index.promised(second, 0, BLOCK_LEN)
    memory.compute(first, GRAIN)
    assert not memory.index.promised(second, 0, BLOCK_LEN)


def test_a_disabled_index_finds_promises_and_keeps_nothing():
    memory = Memory(enabled=False)
    tokens = [1] * BLOCK_LEN
    sequence = running(memory, tokens)
    memory.index.promise(sequence)
    assert memory.index.find(TokenSequence(tokens), BLOCK_LEN) == NO_MATCH
    assert not memory.index.promised(TokenSequence(tokens), 0, BLOCK_LEN)
    memory.index.free(sequence, keep=True)
    assert memory.pool.num_free == memory.pool.num_blocks


def test_sequences_of_different_salts_share_nothing():
    memory = Memory()
    tokens = list(range(2 * BLOCK_LEN))
    for salt in (None, "ours", "theirs"):
        asked = TokenSequence(tokens, salt)
        assert memory.index.find(asked, len(tokens)) == NO_MATCH
        memory.index.promise(asked)
        assert memory.index.promised(TokenSequence(tokens, salt), 0, GRAIN)
        assert not memory.index.promised(TokenSequence(tokens, f"not {salt}"), 0, GRAIN)
        memory.index.allocate(asked, NO_MATCH, may_adopt=False)
        memory.compute(asked, len(tokens))
        memory.index.free(asked, keep=True)
    for salt in (None, "ours", "theirs"):
        assert memory.index.find(TokenSequence(tokens, salt), len(tokens)).num_tokens == len(tokens)
    assert memory.index.find(TokenSequence(tokens, "another"), len(tokens)) == NO_MATCH


def test_roots_of_salts_that_nothing_stands_behind_are_forgotten():
    memory = Memory()
    for number in range(3000):
        memory.pool.root_of(str(number))
    assert len(memory.pool._roots) <= 1024
