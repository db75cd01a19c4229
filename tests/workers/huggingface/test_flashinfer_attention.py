"""Attention by FlashInfer: what its wrapper is told of requests in blocks; on CUDA, what its kernels make of it.

The double reads what FlashInfer documents (version 0.7.2; the page table as compressed sparse rows) and computes it.
"""

import asyncio
import itertools
import sys
import types

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.testing import float32_tolerance
from scaffolding_ext.workers.huggingface import flashinfer_attention
from scaffolding_ext.workers.huggingface.flashinfer_attention import FlashInferPlans
from scaffolding_ext.workers.huggingface.kv_blocks import LayerKV
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker


class Wrapper:
    """`flashinfer.BatchPrefillWithPagedKVCacheWrapper`, by torch."""

    made: list["Wrapper"]

    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        qo_indptr_buf=None,
        paged_kv_indptr_buf=None,
        paged_kv_indices_buf=None,
        paged_kv_last_page_len_buf=None,
        custom_mask_buf=None,
        mask_indptr_buf=None,
        backend="auto",
    ):
        assert kv_layout == "HND"
        assert float_workspace_buffer.dtype is torch.uint8
        self.num_plans = 0
        self.made.append(self)

    def plan(
        self,
        qo_indptr,
        paged_kv_indptr,
        paged_kv_indices,
        paged_kv_last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        page_size,
        head_dim_vo=None,
        custom_mask=None,
        packed_custom_mask=None,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        sm_scale=None,
        window_left=-1,
        logits_soft_cap=None,
        rope_scale=None,
        rope_theta=None,
        q_data_type="float16",
        kv_data_type=None,
    ):
        for indices in (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len):
            assert indices.dtype is torch.int32
        assert causal
        assert ((paged_kv_last_page_len >= 1) & (paged_kv_last_page_len <= page_size)).all()
        assert len(paged_kv_indices) == paged_kv_indptr[-1]
        self.num_plans += 1
        self.pages = [paged_kv_indices[a:b] for a, b in itertools.pairwise(paged_kv_indptr)]
        self.last, self.ends, self.heads = paged_kv_last_page_len, qo_indptr, (num_qo_heads, num_kv_heads, head_dim_qk)
        self.page_size, self.scale, self.window_left, self.dtype = page_size, sm_scale, window_left, q_data_type

    def run(self, q, paged_kv_cache):
        keys, values = paged_kv_cache
        num_heads, num_kv_heads, size = self.heads
        assert q.shape == (self.ends[-1], num_heads, size)
        assert q.dtype is self.dtype
        assert q.is_contiguous()
        assert keys.shape[1:] == (num_kv_heads, self.page_size, size)
        return torch.cat([self._attend(number, q, keys, values) for number in range(len(self.pages))])

    def _attend(self, number, q, keys, values):
        queries = q[self.ends[number] : self.ends[number + 1]].transpose(0, 1)
        num_seen = (len(self.pages[number]) - 1) * self.page_size + int(self.last[number])
        seen = [
            t[self.pages[number]]
            .transpose(0, 1)
            .flatten(1, 2)[:, :num_seen]
            .repeat_interleave(self.heads[0] // self.heads[1], 0)
            for t in (keys, values)
        ]
        places = torch.arange(num_seen)
        own = places[num_seen - queries.shape[1] :, None]
        mask = places <= own
        if self.window_left >= 0:
            mask &= places >= own - self.window_left
        return scaled_dot_product_attention(queries, *seen, attn_mask=mask, scale=self.scale).transpose(0, 1)


@pytest.fixture
def wrappers(monkeypatch):
    """The wrappers that are made of a FlashInfer that serves every device."""
    module = types.ModuleType("flashinfer")
    module.BatchPrefillWithPagedKVCacheWrapper = Wrapper
    monkeypatch.setattr(Wrapper, "made", [], raising=False)
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setattr(flashinfer_attention, "serves", lambda queries, kv: True)
    return Wrapper.made


def plans(num_tokens, kv_lens, tables, known=None):
    return FlashInferPlans({} if known is None else known, num_tokens, kv_lens, torch.tensor(tables))


def test_a_layer_that_attends_like_another_is_not_planned_again(wrappers):
    kv, queries = LayerKV(torch.randn(6, 2, 4, 8), torch.randn(6, 2, 4, 8)), torch.randn(4, 3, 8)
    known = {}
    step = plans([1, 2], [6, 4], [[5, 1], [2, 2]], known)
    for window in (None, None, 3):
        step.attend(queries, kv, window, 0.5)
    assert [wrapper.num_plans for wrapper in wrappers] == [1, 1]
    plans([3], [9], [[0, 1, 3]], known).attend(queries, kv, 3, 0.5)  # the next pass
    assert [wrapper.num_plans for wrapper in wrappers] == [1, 2]


@pytest.mark.parametrize("window", [None, 1, 3, 100])
def test_each_token_sees_its_own_request_up_to_itself(wrappers, window):
    torch.manual_seed(0)
    kv, queries = LayerKV(torch.randn(6, 2, 4, 8), torch.randn(6, 2, 4, 8)), torch.randn(4, 6, 8)
    num_tokens, kv_lens, tables = [1, 2, 3], [4, 5, 11], [[5, 0, 0], [1, 3, 0], [1, 0, 2]]
    output = plans(num_tokens, kv_lens, tables).attend(queries, kv, window, 0.5)
    flat = [
        (row, kv_len - count + i)
        for row, (count, kv_len) in enumerate(zip(num_tokens, kv_lens, strict=True))
        for i in range(count)
    ]
    for token, (row, position) in enumerate(flat):
        keys, values = (t[torch.tensor(tables[row])].transpose(0, 1).flatten(1, 2) for t in (kv.keys, kv.values))
        seen = slice(0 if window is None else max(0, position + 1 - window), position + 1)
        for head in range(4):
            weights = (keys[head // 2, seen] @ queries[head, token] * 0.5).softmax(-1)
            torch.testing.assert_close(output[token, head], weights @ values[head // 2, seen])


def scores(tasks):
    """Log-probabilities of texts that the engine reads at once, in passes of at most 40 tokens."""
    worker = HuggingFaceWorker("tinylm/draft", max_batch_size=4, prefill_chunk=40)

    async def all_of_them():
        await asyncio.gather(*(worker.run_task(task) for task in tasks))

    asyncio.run(all_of_them())
    worker.shutdown()
    return [logprob for task in tasks for logprob in task.logprobs]


def test_a_model_on_it_gives_the_scores_of_torch(wrappers, monkeypatch):
    def tasks():
        ids = [5 + 37 * i % 400 for i in range(150)]
        return [ScoreTask(input_tokens=ids[:stop], continuation_tokens=ids[stop : stop + 30]) for stop in (2, 33, 100)]

    by_flashinfer = scores(tasks())
    assert wrappers[-1].num_plans > 3  # in the engine's thread, one a pass for all layers
    assert len(wrappers) == 2  # the other measured what a token takes
    monkeypatch.setattr(flashinfer_attention, "serves", lambda queries, kv: False)
    assert scores(tasks()) == pytest.approx(by_flashinfer, abs=float32_tolerance(1024, 32, 32.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cpu_is_never_served(monkeypatch, dtype):
    monkeypatch.setattr(flashinfer_attention, "_is_installed", lambda: True)
    tensor = torch.zeros(1, 1, 64, 64, dtype=dtype)
    assert not flashinfer_attention.serves(tensor[0], LayerKV(tensor, tensor))


@pytest.mark.integration
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
@pytest.mark.parametrize("window", [None, 40])
def test_its_kernels_compute_what_torch_does(window):
    pytest.importorskip("flashinfer")
    torch.manual_seed(0)
    keys, values = (torch.randn(12, 2, 32, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    queries = torch.randn(14, 73, 64, device="cuda", dtype=torch.bfloat16)
    tables = torch.tensor([[7, 2, 9], [7, 4, 7], [1, 3, 11]], device="cuda")
    lengths = [1, 2, 70], [70, 40, 96]
    found = FlashInferPlans({}, *lengths, tables).attend(queries, LayerKV(keys, values), window, 0.125)
    double = {(14, 2, 64, window, 0.125): Wrapper.__new__(Wrapper)}
    double[14, 2, 64, window, 0.125].num_plans = 0
    expected = FlashInferPlans(double, *lengths, tables.cpu()).attend(
        queries.cpu(), LayerKV(keys.cpu(), values.cpu()), window, 0.125
    )
    torch.testing.assert_close(found.cpu(), expected, rtol=2e-2, atol=2e-2)
