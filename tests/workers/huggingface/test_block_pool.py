"""Blocks: who holds them, which stay as cache, and in which order they leave."""

import pytest

from scaffolding_ext.workers.huggingface.block_pool import GRAIN, BlockPool


def computed(pool, tokens, parent=None):
    """A block with tokens of its own behind another one."""
    block = pool.allocate()
    block.token_ids = list(tokens)
    block.stand_behind(parent or pool.root)
    return block


def counts(pool):
    return pool.num_free, pool.num_held, pool.num_cached


def tokens(first):
    return list(range(first, first + 2 * GRAIN))


def test_blocks_go_from_free_to_held_to_cached_to_free():
    pool = BlockPool(2, max_cached=2)
    block = computed(pool, tokens(0))
    assert counts(pool) == (1, 1, 0)
    pool.hold(block)
    assert not pool.free(block, keep=True)
    assert counts(pool) == (1, 1, 0)  # the other one holds it still
    assert not pool.free(block, keep=True)
    assert counts(pool) == (1, 0, 1)
    assert pool.num_cached_tokens == 2 * GRAIN
    pool.hold(block)
    assert counts(pool) == (1, 1, 0)
    assert pool.num_cached_tokens == 0
    assert not pool.free(block, keep=False)
    assert counts(pool) == (1, 0, 1)  # who had it first wanted it to stay
    pool.hold(block)
    block.stays = False
    assert pool.free(block, keep=False)
    assert counts(pool) == (2, 0, 0)
    assert pool.root.next(tokens(0)) is None


def test_what_was_freed_last_is_given_out_first():
    pool = BlockPool(9, max_cached=0)
    first, second = pool.allocate(), pool.allocate()
    pool.free(first, keep=False)
    assert pool.allocate() is first
    assert pool.allocate().index == 2
    assert second.index == 1


def test_what_is_in_no_tree_is_not_kept():
    pool = BlockPool(1, max_cached=1)
    assert pool.free(pool.allocate(), keep=True)
    assert counts(pool) == (1, 0, 0)


def test_the_least_recently_used_leave_first():
    pool = BlockPool(3, max_cached=3)
    blocks = [computed(pool, tokens(100 * number)) for number in range(3)]
    for block in blocks:
        pool.free(block, keep=True)
    pool.hold(blocks[0])
    pool.free(blocks[0], keep=True)
    assert [pool.allocate() for _ in range(3)] == [blocks[1], blocks[2], blocks[0]]
    assert pool.num_evicted == 3


def test_an_owner_can_say_what_leaves_first():
    pool = BlockPool(3, max_cached=3)
    blocks = [computed(pool, tokens(100 * number)) for number in range(3)]
    for block, priority in zip(blocks, (0.5, 0.9, 0.1), strict=True):
        pool.free(block, keep=True, priority=priority)
    assert [pool.allocate() for _ in range(3)] == [blocks[2], blocks[0], blocks[1]]


def test_branches_leave_from_their_ends():
    pool = BlockPool(3, max_cached=3)
    trunk = computed(pool, tokens(0))
    branches = [computed(pool, tokens(100 * number), trunk) for number in (1, 2)]
    pool.free(trunk, keep=True, priority=-1.0)
    for block in branches:
        pool.free(block, keep=True)
    assert [pool.allocate() for _ in range(3)] == [*branches, trunk]


def test_no_more_is_cached_than_may_be():
    pool = BlockPool(9, max_cached=2)
    blocks = [computed(pool, tokens(100 * number)) for number in range(4)]
    for block in blocks:
        pool.free(block, keep=True)
    assert counts(pool) == (7, 0, 2)
    assert [block.parent for block in blocks] == [None, None, pool.root, pool.root]
    assert pool.num_evicted == 2


@pytest.mark.parametrize(
    ("num_common", "num_after", "found"),
    [(2 * GRAIN, 16, True), (GRAIN + 3, 16, True), (GRAIN - 1, 15, True), (GRAIN - 1, 16, False)],
)
def test_a_block_is_found_by_the_first_of_its_tokens(num_common, num_after, found):
    pool = BlockPool(17, max_cached=0)
    before = computed(pool, tokens(0))
    after = [computed(pool, tokens(500 * number)) for number in range(1, 1 + num_after)][-1]
    asked = [*before.token_ids[:num_common], *[7] * (2 * GRAIN - num_common)]
    assert pool.root.next(asked) is (before if found else after)  # among the 16 latest by any of them


def test_a_block_that_grows_is_found_by_more():
    pool = BlockPool(17, max_cached=0)
    block = pool.allocate()
    block.token_ids = tokens(0)[:3]
    block.stand_behind(pool.root)
    others = [computed(pool, tokens(500 * number)) for number in range(1, 17)]
    assert pool.root.next(tokens(0)) is others[-1]
    block.token_ids += tokens(0)[3:GRAIN]
    block.stand_behind(pool.root)
    assert pool.root.next(tokens(0)) is block
    assert pool.root.num_behind == 17
