"""The blocks that hold keys and values."""

import torch

from scaffolding_ext.workers.huggingface.kv_blocks import KVBlocks

NUM_BLOCKS, BLOCK_LEN, NUM_HEADS, HEAD_SIZE = 5, 4, 2, 3


def slots(places):
    return torch.tensor([block for block, _ in places]), torch.tensor([offset for _, offset in places])


def filled():
    """Two layers, every place of every block written by one pass with a number of its own."""
    blocks = KVBlocks(NUM_BLOCKS, BLOCK_LEN)
    places = slots([(block, offset) for block in range(NUM_BLOCKS) for offset in range(BLOCK_LEN)])
    layers = []
    for layer in range(2):
        keys = torch.randn(NUM_HEADS, NUM_BLOCKS * BLOCK_LEN, HEAD_SIZE, generator=torch.Generator().manual_seed(layer))
        layers.append((blocks.write(layer, keys, keys + 0.5, *places), keys))
    return blocks, layers


def test_a_sequence_reads_what_was_written_in_the_order_of_its_table():
    _, layers = filled()
    tables = torch.tensor([[3, 0], [1, 4]])
    for kv, keys in layers:
        seen_keys, seen_values = kv.gather(tables)
        assert seen_keys.shape == (2, NUM_HEADS, 2 * BLOCK_LEN, HEAD_SIZE)
        for row, table in enumerate(tables.tolist()):
            expected = torch.cat([keys[:, block * BLOCK_LEN : (block + 1) * BLOCK_LEN] for block in table], 1)
            assert torch.equal(seen_keys[row], expected)
            assert torch.equal(seen_values[row], expected + 0.5)


def test_a_pass_writes_into_its_slots_alone():
    blocks, layers = filled()
    before = [buffer.clone() for buffer in blocks.buffers]
    new = torch.full((NUM_HEADS, 3, HEAD_SIZE), -1.0)
    kv = blocks.write(0, new, new - 1, *slots([(2, 3), (4, 0), (1, 1)]))
    for buffer, old, value in ((kv.keys, before[0], -1), (kv.values, before[1], -2)):
        for block, offset in ((2, 3), (4, 0), (1, 1)):
            assert (buffer[block, :, offset] == value).all()
            old[block, :, offset] = value
        assert torch.equal(buffer, old)
    assert torch.equal(layers[1][0].keys, before[2])  # the other layer is as it was


def test_keys_and_values_may_have_other_sizes_and_layers_other_heads():
    blocks = KVBlocks(2, 8)
    place = slots([(1, 3)])
    blocks.write(0, torch.ones(2, 1, 4), torch.ones(2, 1, 3), *place)
    blocks.write(1, torch.ones(1, 1, 4), torch.ones(1, 1, 4), *place)
    shapes = [(2, 2, 8, 4), (2, 2, 8, 3), (2, 1, 8, 4), (2, 1, 8, 4)]
    assert [tuple(buffer.shape) for buffer in blocks.buffers] == shapes
    assert all(buffer.sum() == buffer[1, :, 3].numel() for buffer in blocks.buffers)


def test_a_cleared_block_holds_nothing():
    blocks, _ = filled()
    before = [buffer.clone() for buffer in blocks.buffers]
    blocks.clear(2)
    for buffer, old in zip(blocks.buffers, before, strict=True):
        old[2] = 0
        assert torch.equal(buffer, old)
