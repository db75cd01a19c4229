"""The rows that hold keys and values, and the order in which they lie."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from scaffolding_ext.workers.huggingface.kv_cache import KVRows, Slots
from scaffolding_ext.workers.huggingface.prefix_index import Holder
from scaffolding_ext.workers.huggingface.row_order import RowOrder, _class_of

NUM_ROWS, CAPACITY, NUM_HEADS, HEAD_SIZE = 3, 6, 2, 4


def slots(places):
    return Slots(torch.tensor([row for row, _ in places]), torch.tensor([position for _, position in places]))


def rows_with(num_tokens):
    """Two layers of rows, filled by a pass with numbers that tell row, token and layer."""
    rows = KVRows(NUM_ROWS, CAPACITY)
    written = []
    places = slots([(row, position) for row in range(NUM_ROWS) for position in range(num_tokens)])
    for layer in range(2):
        shape = (NUM_ROWS, NUM_HEADS, num_tokens, HEAD_SIZE)
        keys = torch.arange(float(torch.tensor(shape).prod())).reshape(shape) + 1000 * (layer + 1)
        written.append((keys, keys + 0.5))
        flat = keys.transpose(0, 1).flatten(1, 2)
        rows.write(layer, flat, flat + 0.5, places)
        seen = rows.read(layer, 0, NUM_ROWS, num_tokens)
        assert torch.equal(seen[0], keys)
        assert torch.equal(seen[1], keys + 0.5)
    return rows, written


def read(rows, layer):
    return rows.read(layer, 0, NUM_ROWS, CAPACITY)


def test_a_pass_writes_where_its_slots_are_and_reads_views():
    rows, written = rows_with(4)
    new = torch.full((NUM_HEADS, 2, HEAD_SIZE), -1.0)
    rows.write(0, new, new - 1, slots([(1, 4), (2, 5)]))
    keys, values = rows.read(0, 1, 2, CAPACITY)
    assert keys.shape == (2, NUM_HEADS, CAPACITY, HEAD_SIZE)
    assert keys.data_ptr() == rows.read(0, 1, 1, 1)[0].data_ptr()  # a view, no copy
    assert torch.equal(keys[:, :, :4], written[0][0][1:])
    assert (keys[0, :, 4] == -1).all()
    assert (keys[1, :, 5] == -1).all()
    assert (values[1, :, 5] == -2).all()
    assert (keys[0, :, 5] == 0).all()
    assert torch.equal(read(rows, 1)[0][1, :, :4], written[1][0][1])  # the other layer is as it was


def test_keys_and_values_may_have_other_sizes_and_layers_other_heads():
    rows = KVRows(2, 8)
    place = slots([(1, 3)])
    rows.write(0, torch.ones(2, 1, 4), torch.ones(2, 1, 3), place)
    rows.write(1, torch.ones(1, 1, 4), torch.ones(1, 1, 4), place)
    assert [tuple(buffer.shape) for layer in (0, 1) for buffer in rows.read(layer, 0, 2, 8)] == [
        (2, 2, 8, 4),
        (2, 2, 8, 3),
        (2, 1, 8, 4),
        (2, 1, 8, 4),
    ]
    assert all(buffer.sum() == buffer[1, :, 3].numel() for layer in (0, 1) for buffer in rows.read(layer, 0, 2, 8))


def test_padding_is_written_behind_the_last_position():
    rows, written = rows_with(4)
    new = torch.full((NUM_HEADS, 2, HEAD_SIZE), -1.0)
    rows.write(0, new, new, slots([(0, 4), (0, CAPACITY)]))
    keys, _ = rows.read(0, 0, 1, CAPACITY)
    assert torch.equal(keys[0, :, :4], written[0][0][0])
    assert (keys[0, :, 4] == -1).all()
    assert (keys[0, :, 5] == 0).all()


@pytest.mark.parametrize("num_tokens", [0, 1, 3, 4])
def test_moving_copies_the_first_positions_of_every_layer(num_tokens):
    rows, written = rows_with(4)
    rows.move(0, 2, num_tokens)
    for layer, pair in enumerate(written):
        for buffer, tensor in zip(read(rows, layer), pair, strict=True):
            assert torch.equal(buffer[2, :, :num_tokens], tensor[0, :, :num_tokens])
            assert torch.equal(buffer[2, :, num_tokens:4], tensor[2, :, num_tokens:])
            assert torch.equal(buffer[:2, :, :4], tensor[:2])


@pytest.mark.parametrize(("num_exported", "num_loaded"), [(4, 4), (4, 2), (3, 3), (0, 0)])
def test_what_is_exported_can_be_loaded_into_another_row(num_exported, num_loaded):
    rows, written = rows_with(4)
    exported = rows.export(1, num_exported)
    assert len(exported) == 4  # keys of both layers, then values
    assert all(tensor.shape == (NUM_HEADS, num_exported, HEAD_SIZE) for tensor in exported)
    read(rows, 0)[0][1] = -1.0  # a copy does not notice
    rows.load(2, exported, num_loaded)
    for layer, pair in enumerate(written):
        for buffer, tensor in zip(read(rows, layer), pair, strict=True):
            assert torch.equal(buffer[2, :, :num_loaded], tensor[1, :, :num_loaded])
            assert torch.equal(buffer[2, :, num_loaded:4], tensor[2, :, num_loaded:])


# ---- order


class Running:
    """A request as far as the order knows it."""

    def __init__(self, number, num_tokens):
        self.number = number
        self.holder = Holder([])
        self.holder.num_kv = num_tokens


class Rows:
    """Remembers whose keys and values lie in which row."""

    def __init__(self):
        self.owner = {}

    def move(self, source, target, num_tokens):
        self.owner[target] = self.owner[source]

    def export(self, row, num_tokens):
        return self.owner[row]

    def load(self, row, tensors, num_tokens):
        self.owner[row] = tensors


def test_classes_double():
    assert [_class_of(n) for n in (0, 1, 64)] == [23, 23, 23]
    assert [_class_of(n) for n in (65, 128, 129, 256, 257)] == [22, 22, 21, 21, 20]
    assert _class_of(1 << 60) == 0


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(0, 3000), st.just(0)),
        st.tuples(st.just("grow"), st.integers(0, 50), st.integers(0, 1500)),
        st.tuples(st.just("remove"), st.integers(0, 50), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(_STEPS)
def test_rows_stay_dense_ordered_and_with_their_keys_and_values(steps):
    kv = Rows()
    order, running = RowOrder(kv), []
    for number, (action, what, how) in enumerate(steps):
        if action == "add":
            running.append(Running(number, what))
            order.add(running[-1], what)
            kv.owner[running[-1].holder.row] = number
        elif not running:
            continue
        elif action == "grow":
            request = running[what % len(running)]
            request.holder.num_kv += how
            order.refile(request)
        else:
            order.remove(running.pop(what % len(running)))
        assert len(order) == len(running)
        assert {id(request) for request in order.requests} == {id(request) for request in running}
        assert [request.holder.row for request in order.requests] == list(range(len(order)))
        assert all(kv.owner[request.holder.row] == request.number for request in running)
        classes = [_class_of(request.holder.num_kv) for request in order.requests]
        assert classes == sorted(classes)
        assert classes == [order.class_of_row(row) for row in range(len(order))]
