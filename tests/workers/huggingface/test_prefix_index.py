"""The prefix index against a brute-force model."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.workers.huggingface.prefix_index import BLOCK_LEN, Holder, PrefixIndex

BYTES_PER_TOKEN = 8  # one float32 key and value a token


def kv(num_tokens):
    return [torch.zeros(1, num_tokens, 1), torch.zeros(1, num_tokens, 1)]


def holding(token_ids, num_kv=None):
    holder = Holder(list(token_ids))
    holder.num_kv = len(token_ids) if num_kv is None else num_kv
    return holder


def shared_len(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


class Model:
    """What an index should do, by looking at everything."""

    def __init__(self, max_bytes):
        self.max_bytes = max_bytes
        self.running = []
        self.stored = []  # least recently used first
        self.num_evicted = 0

    def longest(self, query, max_tokens):
        """The longest prefix of the query of which any holder has the KV."""
        holders = [*self.running, *self.stored]
        lengths = [min(shared_len(h.token_ids, query), h.num_kv, max_tokens) for h in holders]
        return max(lengths, default=0)

    def used(self, holder):
        if holder in self.stored:
            self.stored.remove(holder)
            self.stored.append(holder)

    def store(self, holder):
        self.running.remove(holder)
        if holder.num_kv * BYTES_PER_TOKEN > self.max_bytes:
            return []
        self.stored.append(holder)
        evicted = []
        while self.num_bytes > self.max_bytes:
            evicted.append(self.stored.pop(0))
        self.num_evicted += len(evicted)
        return evicted

    @property
    def num_bytes(self):
        return sum(holder.num_kv for holder in self.stored) * BYTES_PER_TOKEN


# Few different blocks and ragged ends, so that sequences share prefixes of all lengths.
_BLOCKS = [[token] * BLOCK_LEN for token in (1, 2)] + [[1] * (BLOCK_LEN - 1) + [3]]
_TOKENS = st.builds(
    lambda blocks, end: [token for block in blocks for token in block] + end,
    st.lists(st.sampled_from(_BLOCKS), max_size=4),
    st.lists(st.integers(1, 3), max_size=BLOCK_LEN),
)
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("start"), _TOKENS.filter(bool), st.integers(0, 80)),
        st.tuples(st.just("grow"), st.integers(0, 9), st.lists(st.integers(1, 3), max_size=40)),
        st.tuples(st.just("store"), st.integers(0, 9), st.none()),
        st.tuples(st.just("drop"), st.integers(0, 9), st.none()),
        st.tuples(st.just("find"), _TOKENS.filter(bool), st.integers(0, 80)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(_STEPS, st.integers(0, 300))
def test_the_index_agrees_with_the_model(steps, max_stored_tokens):
    index, model = PrefixIndex(max_stored_tokens * BYTES_PER_TOKEN), Model(max_stored_tokens * BYTES_PER_TOKEN)
    for action, what, how in steps:
        if action == "start":
            holder = holding(what, min(how, len(what)))
            model.running.append(holder)
            index.extend(holder)
        elif action == "find":
            max_tokens = min(how, len(what))
            longest = model.longest(what, max_tokens)
            match = index.find(holding(what, 0), max_tokens)
            if match is None:
                assert longest < BLOCK_LEN
                continue
            assert match.holder in model.running or match.holder in model.stored
            assert match.holder.token_ids[: match.num_tokens] == what[: match.num_tokens]  # never wrong
            assert match.num_tokens <= min(longest, match.holder.num_kv)  # never longer than the true longest
            assert match.num_tokens >= longest // BLOCK_LEN * BLOCK_LEN  # and short of it by less than a block
            model.used(match.holder)
        elif model.running:
            holder = model.running[what % len(model.running)]
            if action == "grow":
                holder.token_ids += how
                holder.num_kv = len(holder.token_ids)
                index.extend(holder)
            elif action == "drop":
                model.running.remove(holder)
                index.forget(holder)
            else:
                evicted = model.store(holder)
                index.store(holder, kv(holder.num_kv))
                for gone in (*evicted, *([holder] if holder not in model.stored else [])):
                    assert (gone.tensors, gone.num_indexed) == (None, 0)
        assert index.num_bytes == model.num_bytes <= index.max_bytes
        assert index.num_stored_tokens == sum(holder.num_kv for holder in model.stored)
        assert index.num_evicted == model.num_evicted
        assert all(holder.tensors is not None and holder.row == -1 for holder in model.stored)
    for holder in [*model.running, *model.stored]:
        index.forget(holder)
    assert (index.num_bytes, index.num_stored_tokens, index._by_key) == (0, 0, {})


def stored(index, token, num_tokens=BLOCK_LEN):
    holder = holding([token] * num_tokens)
    index.extend(holder)
    index.store(holder, kv(num_tokens))
    return holder


def find(index, token_ids, max_tokens):
    return index.find(holding(token_ids, 0), max_tokens)


def found(index, token):
    return find(index, [token] * BLOCK_LEN, BLOCK_LEN) is not None


def test_the_least_recently_used_leave_first():
    index = PrefixIndex(3 * BLOCK_LEN * BYTES_PER_TOKEN)
    for token in (1, 2, 3):
        stored(index, token)
    assert found(index, 1)  # a look-up is a use
    stored(index, 4)
    assert [found(index, token) for token in (1, 2, 3, 4)] == [True, False, True, True]
    assert index.num_evicted == 1
    stored(index, 5, 2 * BLOCK_LEN)
    assert [found(index, token) for token in (1, 2, 3, 4, 5)] == [False, False, False, True, True]
    assert index.num_evicted == 3
    assert index.num_bytes == index.max_bytes


def test_what_is_larger_than_the_cap_is_not_stored_and_evicts_nothing():
    index = PrefixIndex(BLOCK_LEN * BYTES_PER_TOKEN)
    stored(index, 1)
    assert stored(index, 2, 2 * BLOCK_LEN).tensors is None
    assert [found(index, token) for token in (1, 2)] == [True, False]
    assert index.num_evicted == 0


def test_a_running_row_is_found_as_far_as_its_kv_reaches():
    index = PrefixIndex(0)
    holder = holding(range(3 * BLOCK_LEN), num_kv=BLOCK_LEN + 5)
    index.extend(holder)
    assert find(index, range(3 * BLOCK_LEN), 3 * BLOCK_LEN) == (holder, BLOCK_LEN + 5)
    assert find(index, range(3 * BLOCK_LEN), BLOCK_LEN) == (holder, BLOCK_LEN)
    assert find(index, range(3 * BLOCK_LEN), BLOCK_LEN - 1) is None
    holder.num_kv = 2 * BLOCK_LEN
    index.extend(holder)
    index.extend(holder)  # nothing is registered twice
    assert holder.num_indexed == 2
    assert find(index, [*range(2 * BLOCK_LEN), 99], 2 * BLOCK_LEN + 1) == (holder, 2 * BLOCK_LEN)


def test_the_same_block_elsewhere_is_another_prefix():
    index = PrefixIndex(10**6)
    holder = holding([1] * BLOCK_LEN + [2] * BLOCK_LEN)
    index.extend(holder)
    assert find(index, [2] * BLOCK_LEN, BLOCK_LEN) is None


def test_a_holder_knows_its_memory():
    holder = holding(range(5))
    assert holder.num_bytes == 0
    holder.tensors = kv(5)
    assert holder.num_bytes == 5 * BYTES_PER_TOKEN


def test_what_is_promised_is_waited_for():
    index = PrefixIndex(10**6)
    tokens = list(range(3 * BLOCK_LEN))
    first, second = holding(tokens, 0), holding([*tokens[: 2 * BLOCK_LEN], 99], 0)
    index.promise(first)
    index.promise(second)
    assert not index.promised(first, 0, 3 * BLOCK_LEN)  # by itself
    assert index.promised(second, 0, 2 * BLOCK_LEN)
    assert not index.promised(second, 0, BLOCK_LEN - 1)  # no whole block
    assert not index.promised(holding([7] * BLOCK_LEN, 0), 0, BLOCK_LEN)
    first.num_kv = BLOCK_LEN
    index.extend(first)
    assert not index.promised(second, 0, 2 * BLOCK_LEN)  # the first block is there
    assert index.promised(second, BLOCK_LEN, 2 * BLOCK_LEN)
    index.forget(first)
    assert not index.promised(second, 0, 2 * BLOCK_LEN)


def test_a_disabled_index_finds_and_promises_nothing():
    index = PrefixIndex(10**6, enabled=False)
    holder = holding([1] * BLOCK_LEN)
    index.promise(holder)
    index.extend(holder)
    assert holder.num_indexed == 0
    assert not found(index, 1)
    assert not index.promised(holding([1] * BLOCK_LEN, 0), 0, BLOCK_LEN)
