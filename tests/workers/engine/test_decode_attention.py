"""The C kernel for decoding rows: what torch computes, for all shapes, lengths and windows; and life without it."""

import subprocess
import sys

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from scaffolding_ext.workers.engine import attention
from scaffolding_ext.workers.engine import decode_attention as module
from scaffolding_ext.workers.engine.decode_attention import decode_attention, library, serves

needs_compiler = pytest.mark.skipif(library() is None, reason="no C compiler")


def reference(queries, keys, values, positions, window, scale):
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


@needs_compiler
@pytest.mark.parametrize("size", [1, 16, 20, 32, 64, 80, 128])
@pytest.mark.parametrize(("num_kv_heads", "num_groups"), [(1, 1), (4, 1), (2, 3), (1, 8)])
@pytest.mark.parametrize("window", [None, 1, 7, 1000])
def test_the_kernel_computes_what_torch_computes(size, num_kv_heads, num_groups, window):
    torch.manual_seed(size)
    buffer = torch.randn(2, 9, num_kv_heads, 70, size) * 3  # of which the rows 2 to 7 are attended to
    keys, values = buffer[0, 2:8, :, :60], buffer[1, 2:8, :, :60]
    queries = torch.randn(6, num_kv_heads * num_groups, size).transpose(0, 1)  # strided, as in a model
    positions = torch.tensor([[0], [1], [6], [31], [32], [59]])
    output = torch.full((6, num_kv_heads * num_groups, size), torch.nan)
    decode_attention(queries, keys, values, positions, window, 0.3, output)
    assert torch.allclose(output, reference(queries, keys, values, positions, window, 0.3), atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_scores_that_are_tiny_or_huge_are_no_problem(factor):
    torch.manual_seed(0)
    keys, values = torch.randn(1, 1, 40, 32) * factor, torch.randn(1, 1, 40, 32)
    queries, positions, output = torch.randn(1, 1, 32), torch.tensor([39]), torch.empty(1, 1, 32)
    decode_attention(queries, keys, values, positions, None, 1.0, output)
    assert torch.allclose(output, reference(queries, keys, values, positions, None, 1.0), atol=1e-5)


@needs_compiler
def test_what_it_serves(monkeypatch):
    tensor = torch.zeros(1, 1, 1, 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert serves(tensor, tensor, tensor)
    assert not serves(tensor, tensor.bfloat16(), tensor)
    assert not serves(tensor, tensor, torch.zeros(1, 1, 1, 2))  # values of another size than the keys
    assert not serves(tensor, torch.zeros(1, 1, 1, 1, device="meta"), tensor)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert not serves(tensor, tensor, tensor)


@pytest.mark.parametrize("compiler", ["false", "no-such-compiler"])
def test_without_a_compiler_there_is_no_kernel_and_nothing_breaks(monkeypatch, compiler):
    monkeypatch.setenv("CC", compiler)
    assert library.__wrapped__() is None
    monkeypatch.setattr(module, "library", lambda: None)
    tensor = torch.zeros(1, 1, 1, 1)
    assert not serves(tensor, tensor, tensor)


def test_a_worker_writes_the_same_text_with_and_without_the_kernel(monkeypatch):
    import asyncio

    from scaffolding_ext.protocol import GenerationTask
    from scaffolding_ext.workers.huggingface import HuggingFaceWorker

    def texts():
        worker = HuggingFaceWorker("tinylm/draft")
        tasks = [GenerationTask(input_tokens=[*range(5, 30 + 9 * i)], max_tokens=80, ignore_eos=True) for i in range(9)]

        async def run():
            await asyncio.gather(*[worker.run_task(task) for task in tasks])

        asyncio.run(run())
        worker.shutdown()
        return [task.output_tokens for task in tasks]

    num_calls = []
    original = module.decode_attention
    monkeypatch.setattr(attention, "decode_attention", lambda *args: (num_calls.append(1), original(*args)))
    with_kernel = texts()
    assert bool(num_calls) == (library() is not None)
    num_calls.clear()
    monkeypatch.setattr(module, "library", lambda: None)
    assert texts() == with_kernel
    assert not num_calls


@needs_compiler
def test_loading_it_leaves_the_number_format_of_the_process_alone():
    """A library linked with -ffast-math would make numbers below 1e-38 zero in the thread that loads it."""
    code = (
        "import torch; from scaffolding_ext.workers.engine.decode_attention import library; assert library();"
        "print((torch.tensor(1e-39) * 0.5).item() > 0)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "True"
