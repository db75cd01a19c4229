"""Sequences and their blocks against a brute-force model: what is found is there, and every block is accounted for."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.protocol.branching import block_score
from scaffolding_ext.workers.huggingface.block_pool import BlockPool, BlockPriority, TokenSequence
from scaffolding_ext.workers.huggingface.kv_blocks import KVBlocks

BLOCK_LEN = 8
LONGEST = 5 * BLOCK_LEN


class Memory:
    """A pool over real blocks, in which a token's key tells all the tokens up to it."""

    def __init__(self, num_blocks=64, max_cached=64, shares=True, idle_first=False):
        self.kv = KVBlocks(num_blocks, BLOCK_LEN)
        self.pool = BlockPool(num_blocks, BLOCK_LEN, max_cached, shares, idle_first)

    def begin(self, token_ids, owner=None, salt=None, announces=True):
        """A sequence with what is found of it; None where there is no room, or another one is about to compute it."""
        sequence = TokenSequence(list(token_ids), salt, owner)
        found = self.pool.find(sequence, len(sequence.token_ids) - 1)
        if not all(block.is_computed for block in found):
            return None
        if self.pool.num_needed(sequence, found) > self.pool.num_available:
            return None
        self.pool.begin(sequence, found, announces)
        return sequence

    def compute(self, sequence, num_tokens):
        """Compute the next tokens, as far as there are any."""
        stop = min(len(sequence.token_ids), sequence.num_kv + num_tokens)
        positions = range(sequence.num_kv, stop)
        if positions:
            blocks = torch.tensor([sequence.table[position // BLOCK_LEN] for position in positions])
            offsets = torch.tensor([position % BLOCK_LEN for position in positions])
            keys = torch.tensor([history(sequence.token_ids, position) for position in positions]).double()
            self.kv.write(0, keys[None, :, None], keys[None, :, None], blocks, offsets)
            self.pool.advance([(sequence, len(positions))])

    def running(self, token_ids, num_computed=LONGEST, **options):
        sequence = self.begin(token_ids, **options)
        self.compute(sequence, num_computed)
        return sequence

    def num_found(self, token_ids, salt=None):
        """Tokens that are found and computed."""
        found = self.pool.find(TokenSequence(list(token_ids), salt), len(token_ids))
        return sum(block.is_computed for block in found) * BLOCK_LEN

    def check(self, sequences):
        """Every sequence holds its own tokens' KV, and every block is free, held or cached."""
        held = {}
        for sequence in sequences:
            assert list(sequence.table) == [block.index for block in sequence.blocks]
            assert sequence.num_kv <= sequence.num_blocks * BLOCK_LEN
            for block in sequence.blocks:
                held[block] = held.get(block, 0) + 1
            for position in range(sequence.num_kv):
                block, offset = sequence.table[position // BLOCK_LEN], position % BLOCK_LEN
                assert self.kv.buffers[0][block, 0, offset, 0] == history(sequence.token_ids, position)
        pool = self.pool
        assert all(block.num_holders == number for block, number in held.items())
        assert pool.num_held == len(held)
        assert pool.num_free + pool.num_held + pool.num_cached == pool.num_blocks
        assert pool.num_free >= 0
        assert pool.num_cached <= pool.max_cached


def history(token_ids, position):
    """A number that float64 holds, and that no two prefixes of these tests share."""
    return hash(tuple(token_ids[: position + 1])) % 2**52


# Few different blocks and ragged ends, so that sequences share prefixes of all lengths.
_BLOCKS = [[token] * BLOCK_LEN for token in (1, 2)] + [[1] * (BLOCK_LEN - 1) + [3]]
_TOKENS = st.builds(
    lambda blocks, end: [token for block in blocks for token in block] + end,
    st.lists(st.sampled_from(_BLOCKS), max_size=3),
    st.lists(st.integers(1, 3), min_size=1, max_size=BLOCK_LEN),
)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), _TOKENS, st.booleans()),
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
@given(_STEPS, st.integers(4, 12), st.integers(0, 12))
def test_sequences_hold_their_own_kv_whatever_they_share(steps, num_blocks, max_cached):
    memory, running = Memory(num_blocks, max_cached), []
    pool = memory.pool
    for action, what, how in steps:
        if action == "begin":
            sequence = memory.begin(what, ("one", "two", None)[len(what) % 3], announces=how)
            running += [] if sequence is None else [sequence]
        elif action == "keep":
            pool.keep(what, None, how)
        elif action == "end":
            pool.end(what)
        elif running:
            sequence = running[what % len(running)]
            if action == "compute":
                memory.compute(sequence, how)
            elif action == "decode" and sequence.num_kv == len(sequence.token_ids) < LONGEST:
                if sequence.num_kv == sequence.num_blocks * BLOCK_LEN:
                    if not pool.num_available:
                        continue
                    pool.grow(sequence)
                sequence.token_ids.append(how)
                memory.compute(sequence, 1)
            elif action == "free":
                pool.free(sequence, how)
                running.remove(sequence)
            elif action == "discard":
                running.remove(sequence)
                for index in pool.discard(sequence):
                    memory.kv.clear(index)
        memory.check(running)
    for sequence in running:
        pool.free(sequence, keep=False)
    memory.check([])
    rest = TokenSequence([7] * num_blocks * BLOCK_LEN)
    pool.begin(rest, [], announces=False)  # takes every block
    assert pool.num_cached == pool.num_free == 0
    assert not pool._found


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(_TOKENS, st.integers(0, LONGEST)), max_size=8), _TOKENS)
def test_all_whole_blocks_are_found_and_nothing_else(given_sequences, asked):
    memory, known = Memory(), []
    for token_ids, num_computed in given_sequences:
        sequence = memory.begin(token_ids, announces=False)
        memory.compute(sequence, num_computed)
        known.append(sequence)
    longest = max((shared_len(asked, s.token_ids[: s.num_kv]) for s in known), default=0)
    assert memory.num_found(asked) == longest // BLOCK_LEN * BLOCK_LEN
    for sequence in known:
        memory.pool.free(sequence, keep=True)
    assert memory.num_found(asked) == longest // BLOCK_LEN * BLOCK_LEN
    assert memory.pool.num_cached == len(memory.pool._found)  # no block that nobody could find


def shared_len(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def test_a_block_is_announced_until_it_is_computed():
    memory = Memory()
    tokens = list(range(2 * BLOCK_LEN + 1))
    first = memory.begin(tokens)
    assert memory.begin([*tokens, 5]) is None  # the first sequence is about to compute both blocks
    assert memory.begin([*tokens[:BLOCK_LEN], 99]) is None
    assert memory.begin([7] * BLOCK_LEN) is not None
    memory.compute(first, BLOCK_LEN)
    assert memory.begin([*tokens[:BLOCK_LEN], 99]).num_kv == BLOCK_LEN
    assert memory.begin([*tokens, 5]) is None
    memory.pool.free(first, keep=True)  # it was cancelled
    assert memory.begin([*tokens, 5]).num_kv == BLOCK_LEN


def test_a_block_is_found_when_an_equal_one_that_came_before_it_is_freed():
    """A probe of a chain computes the chain's last block before the chain does, and leaves nothing behind."""
    memory = Memory()
    chain = memory.begin(range(BLOCK_LEN // 2))
    memory.compute(chain, BLOCK_LEN // 2)
    probe = memory.begin(range(BLOCK_LEN + 1))
    memory.compute(probe, BLOCK_LEN + 1)
    chain.token_ids += range(BLOCK_LEN // 2, BLOCK_LEN)
    memory.compute(chain, BLOCK_LEN // 2)
    memory.pool.free(probe, keep=False)
    assert memory.num_found(range(BLOCK_LEN + 1)) == BLOCK_LEN
    memory.pool.free(chain, keep=False)
    assert memory.num_found(range(BLOCK_LEN + 1)) == 0
    assert memory.pool.num_free == memory.pool.num_blocks
    assert not memory.pool._equal


def test_who_leaves_nothing_behind_leaves_what_it_found():
    """True if it was in the cache before, or its keeper let go of it while the other held it."""
    memory = Memory()
    memory.pool.free(memory.running(range(2 * BLOCK_LEN)), keep=True, priority=BlockPriority(0, 0.5))
    asked = [*range(2 * BLOCK_LEN), 99]
    memory.pool.free(memory.running(asked), keep=False)
    assert memory.num_found(asked) == 2 * BLOCK_LEN
    assert {block.priority for block in memory.pool._cached} == {0.5}
    kept = memory.running(range(500, 500 + BLOCK_LEN))
    other = memory.running([*range(500, 500 + BLOCK_LEN), 99])
    memory.pool.free(kept, keep=True)
    memory.pool.free(other, keep=False)
    assert memory.pool.num_cached == 3
    memory.pool.discard(memory.running(asked))  # but what is wrong is given up
    assert memory.pool.num_cached == 1


def test_the_least_recently_used_leave_first_and_from_their_ends():
    memory = Memory(num_blocks=6)
    one, two, three = (memory.running([number] * 2 * BLOCK_LEN) for number in (1, 2, 3))
    for sequence in (one, two, three):
        memory.pool.free(sequence, keep=True)
    memory.pool.free(memory.begin([1] * 2 * BLOCK_LEN + [9]), keep=True)  # evicts a block for its last token
    assert [memory.num_found([number] * 2 * BLOCK_LEN) for number in (1, 2, 3)] == [16, 8, 16]
    memory.begin([8] * 3 * BLOCK_LEN)
    assert [memory.num_found([number] * 2 * BLOCK_LEN) for number in (1, 2, 3)] == [16, 0, 8]
    assert memory.pool.num_evicted == 3


def test_a_plain_request_s_blocks_stay_longer_than_a_branch_s():
    """Omega of a plain prompt is 1, that of a branch its score by its depth: whoever was used last."""
    memory = Memory(num_blocks=8, max_cached=4)
    plain, branch = (range(start, start + 2 * BLOCK_LEN) for start in (0, 100))
    memory.pool.free(memory.running(plain), keep=True)
    memory.pool.free(memory.running(branch), keep=True, priority=BlockPriority(0, block_score(0.9, 1)))
    memory.pool.free(memory.running(range(200, 200 + 2 * BLOCK_LEN)), keep=True)
    assert memory.num_found(plain) == 2 * BLOCK_LEN
    assert memory.num_found(branch) == 0


def test_of_2_080_scored_blocks_the_80_lowest_leave_a_cache_of_2_000():
    """RKSC's stress test (table 11): all 80 that leave are those of the lowest score by depth."""
    memory = Memory(num_blocks=2080, max_cached=2000)
    rng = np.random.default_rng(0)
    omegas = [
        block_score(score, int(depth)) for score, depth in zip(rng.random(2080), rng.integers(0, 4, 2080), strict=True)
    ]
    for number, omega in enumerate(omegas):
        memory.pool.free(memory.running([number] * BLOCK_LEN), keep=True, priority=BlockPriority(0, omega))
    left = {number for number in range(2080) if not memory.num_found([number] * BLOCK_LEN)}
    assert left == set(np.argsort(omegas)[:80].tolist())


def test_an_owner_frees_what_only_it_has_used():
    memory = Memory()
    for number, owner in ((1, "one"), (2, "one"), (3, "two")):
        memory.pool.free(memory.running([number] * BLOCK_LEN, owner=owner), keep=True)
    memory.pool.free(memory.running([2] * BLOCK_LEN + [9], owner="two"), keep=True)
    memory.pool.free(memory.running([4] * BLOCK_LEN, owner="one"), keep=True)
    memory.pool.keep("one", None, [[4] * BLOCK_LEN])
    assert [memory.num_found([number] * BLOCK_LEN) for number in (1, 2, 3, 4)] == [0, 8, 8, 8]


def test_a_pool_that_does_not_share_finds_and_keeps_nothing():
    memory = Memory(shares=False)
    sequence = memory.running([1] * BLOCK_LEN)
    assert memory.num_found([1] * BLOCK_LEN) == 0
    memory.pool.free(sequence, keep=True)
    assert memory.pool.num_free == memory.pool.num_blocks


def test_sequences_of_different_salts_share_nothing():
    memory = Memory()
    tokens = list(range(2 * BLOCK_LEN))
    for salt in (None, "", "ours", "theirs"):
        assert memory.num_found(tokens, salt) == 0
        memory.pool.free(memory.running(tokens, salt=salt), keep=True)
        assert memory.num_found(tokens, salt) == 2 * BLOCK_LEN
    assert memory.num_found(tokens, "another") == 0


def test_blocks_of_idle_owners_leave_first_however_recently_they_were_used():
    memory = Memory(num_blocks=8, idle_first=True)
    prompts = {"busy": [1] * 2 * BLOCK_LEN, "idle": [2] * 2 * BLOCK_LEN}
    waiting = TokenSequence(prompts["busy"], owner="busy")
    memory.pool.count(waiting, 1)  # the owner has another request in the engine
    for owner, prompt in prompts.items():
        sequence = TokenSequence(prompt, owner=owner)
        memory.pool.count(sequence, 1)
        memory.pool.begin(sequence, [], announces=True)
        memory.compute(sequence, LONGEST)
        memory.pool.free(sequence, keep=True)
        memory.pool.count(sequence, -1)

    def fill(start):
        memory.pool.discard(memory.begin(range(start, start + 6 * BLOCK_LEN)))

    fill(100)  # evicts two blocks
    assert [memory.num_found(prompt) for prompt in prompts.values()] == [2 * BLOCK_LEN, 0]
    memory.pool.count(waiting, -1)
    back = memory.running(prompts["idle"], owner="idle")
    memory.pool.count(back, 1)  # now the other owner is idle
    memory.pool.free(back, keep=True)
    fill(200)
    assert [memory.num_found(prompt) for prompt in prompts.values()] == [0, 2 * BLOCK_LEN]


def test_blocks_that_another_owner_has_used_are_not_idle():
    memory = Memory(num_blocks=6, idle_first=True)
    shared, own = [1] * 2 * BLOCK_LEN, [2] * 2 * BLOCK_LEN
    for prompt, owner in ((shared, "a"), ([*shared, 5], "b"), (own, "b")):
        sequence = memory.running(prompt, owner=owner)
        memory.pool.count(sequence, 1)
        memory.pool.free(sequence, keep=True)
        memory.pool.count(sequence, -1)
    memory.pool.discard(memory.begin(range(300, 300 + 4 * BLOCK_LEN)))
    assert [memory.num_found(prompt) for prompt in (shared, own)] == [2 * BLOCK_LEN, 0]
