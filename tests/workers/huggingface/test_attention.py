"""Attention in blocks by torch and by the C kernel: as exact as float32 allows for all shapes; and life without it."""

import itertools
import subprocess
import warnings

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from scaffolding_ext.workers.huggingface import attention as module
from scaffolding_ext.workers.huggingface.attention import Span, _attend_span, kernel, kernel_serves, run_kernel
from scaffolding_ext.workers.huggingface.kv_blocks import LayerKV

needs_kernel = pytest.mark.skipif(kernel is None, reason="the C kernel was not built: no compiler at the installation")


UNIT_ROUNDOFF = torch.finfo(torch.float32).eps / 2


def gamma(num_roundings):
    """Relative error that so many float32 roundings, one after the other, can add up to (Higham 2002, lemma 3.1)."""
    return num_roundings * UNIT_ROUNDOFF / (1 - num_roundings * UNIT_ROUNDOFF)


def attend_by_torch(queries, keys, values, positions, window, scale):
    """Row by row by torch: (heads, rows, size) to (rows, heads, size)."""
    num_groups = queries.shape[0] // keys.shape[1]
    rows = []
    for row, position in enumerate(positions.flatten().tolist()):
        first = max(0, position + 1 - window) if window else 0
        seen_keys, seen_values = (
            t[row, :, first : position + 1].repeat_interleave(num_groups, 0) for t in (keys, values)
        )
        rows.append(scaled_dot_product_attention(queries[:, row, None], seen_keys, seen_values, scale=scale)[:, 0])
    return torch.stack(rows)


def in_blocks(keys, values, block_len):
    """Rows cut into blocks that lie in any order, among others: what attention reads, and the rows' tables."""
    num_rows, num_heads, kv_len, _ = keys.shape
    num_blocks = -(-kv_len // block_len)
    places = torch.randperm(num_rows * num_blocks + 3)[: num_rows * num_blocks].view(num_rows, num_blocks)
    layer = LayerKV(
        *[torch.full((places.numel() + 3, num_heads, block_len, t.shape[3]), torch.nan) for t in (keys, values)]
    )
    for buffer, rows in ((layer.keys, keys), (layer.values, values)):
        for row in range(num_rows):
            for number, part in enumerate(rows[row].split(block_len, 1)):
                buffer[places[row, number], :, : part.shape[1]] = part
    return layer, places


def attend_by_kernel(queries, keys, values, positions, window, scale, block_len=16):
    output = torch.full((queries.shape[1], queries.shape[0], queries.shape[2]), torch.nan)
    layer, tables = in_blocks(keys, values, block_len)
    run_kernel(queries, layer, tables, torch.arange(len(keys)), positions.flatten(), window, scale, output)
    return output


def attend_by_spans(queries, keys, values, positions, window, scale, block_len=16):
    layer, tables = in_blocks(keys.nan_to_num(), values.nan_to_num(), block_len)
    layer = LayerKV(layer.keys.nan_to_num(), layer.values.nan_to_num())  # what is masked must be numbers
    span = Span(0, tables, positions.view(-1, 1), tables.shape[1] * block_len, queries.dtype)
    return _attend_span(queries, layer, span, window, scale)


def error_bound(queries, keys, values, positions, window, scale):
    """Return the largest error of a float32 computation in any order: shape (rows, heads, size).

    A score has `size` products and sums, and a few roundings more; its error is relative to the sum of the products'
    magnitudes. An error d of all scores changes a weight by at most e^(2d). The sums over n positions, of the weights
    and of the weighted values, add 2n roundings.
    """
    num_groups = queries.shape[0] // keys.shape[1]
    longest, size = int(positions.max()) + 1, queries.shape[2]
    magnitudes = torch.einsum("hrs,rhps->rhp", queries.abs(), keys.abs().repeat_interleave(num_groups, 1)) * scale
    score_error = gamma(size + 16) * magnitudes.amax(-1)
    weighted = attend_by_torch(queries, keys, values.abs(), positions, window, scale)
    return (torch.expm1(2 * score_error)[..., None] + gamma(2 * longest + 32)) * weighted


def is_as_exact_as_float32(attend, queries, keys, values, positions, window, scale):
    doubled = [tensor.double() for tensor in (queries, keys, values)]
    exact = attend_by_torch(*doubled, positions, window, scale)
    error = (attend(queries, keys, values, positions, window, scale) - exact).abs()
    return bool((error <= error_bound(*doubled, positions, window, scale)).all())


both = pytest.mark.parametrize("attend", [attend_by_spans, pytest.param(attend_by_kernel, marks=needs_kernel)])


@both
def test_it_is_as_exact_as_its_number_type(attend):
    wrong = []
    sizes, heads, windows = (1, 20, 32, 64, 80, 128), ((1, 1), (4, 1), (2, 3), (1, 8)), (None, 1, 7, 1000)
    for size, (num_kv_heads, num_groups), window in itertools.product(sizes, heads, windows):
        torch.manual_seed(size)
        buffer = torch.randn(2, 9, num_kv_heads, 70, size) * 3  # of which the rows 2 to 7 are attended to
        keys, values = buffer[0, 2:8, :, :60], buffer[1, 2:8, :, :60]
        queries = torch.randn(6, num_kv_heads * num_groups, size).transpose(0, 1)  # strided, as in a model
        positions = torch.tensor([[0], [1], [6], [31], [32], [59]])
        if not is_as_exact_as_float32(attend, queries, keys, values, positions, window, 0.3):
            wrong.append((size, num_kv_heads, num_groups, window))
    assert wrong == []


@both
@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_scores_that_are_tiny_or_huge_are_no_problem(attend, factor):
    torch.manual_seed(0)
    keys, values = torch.randn(1, 1, 2000, 32) * factor, torch.randn(1, 1, 2000, 32)
    positions = torch.tensor([1999])
    assert is_as_exact_as_float32(attend, torch.randn(1, 1, 32), keys, values, positions, None, 1.0)


@needs_kernel
def test_several_tokens_read_through_one_table_whatever_the_blocks():
    torch.manual_seed(0)
    keys, values, queries = torch.randn(2, 2, 100, 32), torch.randn(2, 2, 100, 32), torch.randn(4, 7, 32)
    rows, positions = torch.tensor([0, 1, 1, 1, 0, 1, 1]), torch.tensor([99, 3, 4, 5, 0, 98, 99])
    expected = attend_by_torch(queries, keys[rows], values[rows], positions, None, 0.3)
    for block_len in (16, 32, 128):
        layer, tables = in_blocks(keys, values, block_len)
        output = torch.empty(7, 4, 32)
        run_kernel(queries, layer, tables, rows, positions, None, 0.3, output)
        torch.testing.assert_close(output, expected)


@needs_kernel
def test_what_it_serves(monkeypatch):
    tensor = torch.zeros(1, 1, 1, 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert kernel_serves(tensor[0], LayerKV(tensor, tensor))
    assert not kernel_serves(tensor[0].half(), LayerKV(tensor.half(), tensor.half()))
    assert not kernel_serves(tensor[0], LayerKV(tensor, tensor.half()))
    assert not kernel_serves(
        tensor[0], LayerKV(tensor, torch.zeros(1, 1, 1, 2))
    )  # values of another size than the keys
    meta = torch.zeros(1, 1, 1, 1, device="meta")
    assert not kernel_serves(meta[0], LayerKV(meta, meta))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert not kernel_serves(tensor[0], LayerKV(tensor, tensor))


@pytest.mark.parametrize("kernel", [None, pytest.param(kernel, marks=needs_kernel)])
def test_without_the_kernel_a_worker_warns(monkeypatch, kernel):
    from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

    monkeypatch.setattr(module, "kernel", kernel)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        HuggingFaceWorker("tinylm/draft").shutdown()
    found = [str(each.message) for each in told if "C kernel" in str(each.message)]
    assert len(found) == (kernel is None)
    assert all("install a C compiler" in message for message in found)


def test_a_worker_writes_the_same_text_with_and_without_the_kernel(monkeypatch):
    import asyncio

    from scaffolding_ext.protocol import GenerationTask
    from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

    def texts():
        worker = HuggingFaceWorker("tinylm/draft")
        tasks = [
            GenerationTask(input_tokens=[*range(5, 30 + 9 * i)], max_tokens=80, ignore_eos=True, temperature=0.0)
            for i in range(9)
        ]

        async def run():
            await asyncio.gather(*[worker.run_task(task) for task in tasks])

        asyncio.run(run())
        worker.shutdown()
        return [task.output_tokens for task in tasks]

    num_calls = []
    original = module.run_kernel
    monkeypatch.setattr(module, "run_kernel", lambda *args: (num_calls.append(1), original(*args)))
    with_kernel = texts()
    assert bool(num_calls) == (kernel is not None)
    num_calls.clear()
    monkeypatch.setattr(module, "kernel", None)
    assert texts() == with_kernel
    assert not num_calls


@needs_kernel
def test_loading_it_leaves_the_number_format_of_the_process_alone(warm_torch):
    """A library linked with -ffast-math would make numbers below 1e-38 zero in the thread that loads it."""
    code = (
        "import torch; from scaffolding_ext.workers.huggingface.attention import kernel; assert kernel;"
        "print((torch.tensor(1e-39) * 0.5).item() > 0)"
    )
    run = subprocess.run([warm_torch / "python", "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "True"
