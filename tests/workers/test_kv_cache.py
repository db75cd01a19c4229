"""The prefix index against a brute-force model, and the rows that hold keys and values."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.workers.kv_cache import BLOCK_LEN, Holder, KVRows, PrefixIndex

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
            match = index.find(what, max_tokens)
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
                    assert (gone.tensors, gone.hashes) == (None, [])
        assert index.num_bytes == model.num_bytes <= index.max_bytes
        assert index.num_stored_tokens == sum(holder.num_kv for holder in model.stored)
        assert index.num_evicted == model.num_evicted
        assert all(holder.tensors is not None and holder.row == -1 for holder in model.stored)
    for holder in [*model.running, *model.stored]:
        index.forget(holder)
    assert (index.num_bytes, index.num_stored_tokens, index._by_hash) == (0, 0, {})


def stored(index, token, num_tokens=BLOCK_LEN):
    holder = holding([token] * num_tokens)
    index.extend(holder)
    index.store(holder, kv(num_tokens))
    return holder


def found(index, token):
    return index.find([token] * BLOCK_LEN, BLOCK_LEN) is not None


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
    assert index.find(list(range(3 * BLOCK_LEN)), 3 * BLOCK_LEN) == (holder, BLOCK_LEN + 5)
    assert index.find(list(range(3 * BLOCK_LEN)), BLOCK_LEN) == (holder, BLOCK_LEN)
    assert index.find(list(range(3 * BLOCK_LEN)), BLOCK_LEN - 1) is None
    holder.num_kv = 2 * BLOCK_LEN
    index.extend(holder)
    index.extend(holder)  # nothing is registered twice
    assert len(holder.hashes) == 2
    assert index.find([*range(2 * BLOCK_LEN), 99], 2 * BLOCK_LEN + 1) == (holder, 2 * BLOCK_LEN)


def test_the_same_block_elsewhere_is_another_prefix():
    index = PrefixIndex(10**6)
    holder = holding([1] * BLOCK_LEN + [2] * BLOCK_LEN)
    index.extend(holder)
    assert index.find([2] * BLOCK_LEN, BLOCK_LEN) is None


# ---- rows


NUM_ROWS, CAPACITY, NUM_HEADS, HEAD_SIZE = 3, 6, 2, 4


def rows_with(num_tokens):
    """Two layers of rows, filled by a forward pass with numbers that tell row, token and layer."""
    rows = KVRows(NUM_ROWS, CAPACITY)
    positions = torch.arange(num_tokens).expand(NUM_ROWS, -1)
    rows.aim(0, positions, num_tokens)
    written = []
    for layer in range(2):
        shape = (NUM_ROWS, NUM_HEADS, num_tokens, HEAD_SIZE)
        keys = torch.arange(float(torch.tensor(shape).prod())).reshape(shape) + 1000 * (layer + 1)
        written.append((keys, keys + 0.5))
        seen = rows.update(keys, keys + 0.5, layer)
        assert torch.equal(seen[0], keys)
        assert torch.equal(seen[1], keys + 0.5)
    return rows, written


def test_a_pass_writes_where_it_aims_and_reads_views():
    rows, written = rows_with(4)
    assert rows.get_seq_length() == 4
    rows.aim(1, torch.tensor([[4], [5]]), CAPACITY)
    new = torch.full((2, NUM_HEADS, 1, HEAD_SIZE), -1.0)
    keys, values = rows.update(new, new - 1, 0)
    assert keys.shape == (2, NUM_HEADS, CAPACITY, HEAD_SIZE)
    assert keys.data_ptr() == rows.keys[0][1].data_ptr()  # a view, no copy
    assert torch.equal(keys[:, :, :4], written[0][0][1:])
    assert (keys[0, :, 4] == -1).all()
    assert (keys[1, :, 5] == -1).all()
    assert (values[1, :, 5] == -2).all()
    assert (keys[0, :, 5] == 0).all()
    assert torch.equal(rows.keys[1][1, :, :4], written[1][0][1])  # the other layer is as it was


def test_padding_is_written_behind_the_last_position():
    rows, written = rows_with(4)
    rows.aim(0, torch.tensor([[4, CAPACITY]]), CAPACITY)
    new = torch.full((1, NUM_HEADS, 2, HEAD_SIZE), -1.0)
    keys, _ = rows.update(new, new, 0)
    assert torch.equal(keys[0, :, :4], written[0][0][0])
    assert (keys[0, :, 5] == 0).all()


@pytest.mark.parametrize("num_tokens", [0, 1, 3, 4])
def test_moving_copies_the_first_positions_of_every_layer(num_tokens):
    rows, written = rows_with(4)
    rows.move(0, 2, num_tokens)
    for layer, pair in enumerate(written):
        for buffer, tensor in zip((rows.keys[layer], rows.values[layer]), pair, strict=True):
            assert torch.equal(buffer[2, :, :num_tokens], tensor[0, :, :num_tokens])
            assert torch.equal(buffer[2, :, num_tokens:4], tensor[2, :, num_tokens:])
            assert torch.equal(buffer[:2, :, :4], tensor[:2])


@pytest.mark.parametrize(("num_exported", "num_loaded"), [(4, 4), (4, 2), (3, 3), (0, 0)])
def test_what_is_exported_can_be_loaded_into_another_row(num_exported, num_loaded):
    rows, written = rows_with(4)
    exported = rows.export(1, num_exported)
    assert len(exported) == 4  # keys of both layers, then values
    assert all(tensor.shape == (NUM_HEADS, num_exported, HEAD_SIZE) for tensor in exported)
    rows.keys[0][1] = -1.0  # a copy does not notice
    rows.load(2, exported, num_loaded)
    for layer, pair in enumerate(written):
        for buffer, tensor in zip((rows.keys[layer], rows.values[layer]), pair, strict=True):
            assert torch.equal(buffer[2, :, :num_loaded], tensor[1, :, :num_loaded])
            assert torch.equal(buffer[2, :, num_loaded:4], tensor[2, :, num_loaded:])


def test_a_holder_knows_its_memory():
    holder = holding(range(5))
    assert holder.num_bytes == 0
    holder.tensors = kv(5)
    assert holder.num_bytes == 5 * BYTES_PER_TOKEN
