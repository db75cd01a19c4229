"""The batched decoder: transformers' own greedy text, whatever shares a batch, and samples as likely as they are."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from benchmarks.tinylm.decoder import Decoder  # noqa: E402  # needs torch
from scaffolding_ext.tinylm.embedded import model_folder  # noqa: E402
from scaffolding_ext.tinylm.grammar import CLOSE, sample_problem  # noqa: E402

FOLDER = model_folder("tinylm/draft")
MAX_LEN = 40


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder(FOLDER)


@pytest.fixture(scope="module")
def network() -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)


@pytest.fixture(scope="module")
def prompts(decoder: Decoder) -> list[list[int]]:
    rng = random.Random(0)
    return [decoder.encode(f"<|user|>{sample_problem(rng).question}<|assistant|><think>\n") for _ in range(5)]


def generator() -> Any:
    return torch.Generator().manual_seed(3)


def test_greedy_text_is_that_of_transformers(decoder: Decoder, network: Any, prompts: list[list[int]]) -> None:
    ours = decoder.continuations(prompts, [0.0] * len(prompts), generator(), max_len=MAX_LEN)
    for prompt, continued in zip(prompts, ours, strict=True):
        ids = torch.tensor([prompt])
        theirs = network.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=MAX_LEN)
        assert continued == theirs[0, len(prompt) :].tolist()


def test_greedy_text_does_not_depend_on_the_batch(decoder: Decoder, prompts: list[list[int]]) -> None:
    temperatures = [0.0, 0.7, 0.0, 0.7, 0.0]
    together = decoder.continuations(prompts, temperatures, generator(), max_len=MAX_LEN)
    alone = decoder.continuations(prompts, temperatures, generator(), max_len=MAX_LEN, batch_size=1)
    assert together[::2] == alone[::2]


def test_samples_depend_on_the_generator_alone(decoder: Decoder, prompts: list[list[int]]) -> None:
    one, other = (decoder.continuations(prompts, [0.7] * 5, generator(), max_len=MAX_LEN) for _ in range(2))
    assert one == other


def test_first_tokens_are_drawn_by_the_models_probabilities(
    decoder: Decoder, network: Any, prompts: list[list[int]]
) -> None:
    """Of 2,000 rows at temperature 2; each share within four standard deviations."""
    drawn = decoder.continuations(prompts[:1] * 2_000, [2.0] * 2_000, generator(), max_len=1, batch_size=2_000)
    with torch.inference_mode():
        expected = (network(torch.tensor(prompts[:1])).logits[0, -1] / 2.0).softmax(-1)
    counts = torch.tensor([row[0] for row in drawn]).bincount(minlength=len(expected))
    assert ((counts / 2_000 - expected).abs() <= 4 * (expected / 2_000).sqrt() + 1e-3).all()


def test_a_chain_runs_to_its_end_and_finished_rows_are_dropped(decoder: Decoder, prompts: list[list[int]]) -> None:
    written = decoder.continuations(prompts, [0.0] * len(prompts), generator(), batch_size=5)
    end = decoder.encode("<|end|>")
    assert all(row[-1:] == end and row.count(*end) == 1 for row in written)
    assert len({len(row) for row in written}) > 1
    assert "</think>" in decoder.decode(written[0])
    assert "<|end|>" not in decoder.decode(written[0])


def test_forced_answers_follow_each_cut(decoder: Decoder, prompts: list[list[int]]) -> None:
    (chain,) = decoder.continuations(prompts[:1], [0.0], generator())
    suffix = decoder.encode(CLOSE)
    cuts = [len(prompts[0]) + share * len(chain) // 4 for share in (1, 2, 3)]
    replies = decoder.forced(prompts[0] + chain, cuts, suffix)
    for cut, reply in zip(cuts, replies, strict=True):
        (expected,) = decoder.continuations([[*(prompts[0] + chain)[:cut], *suffix]], [0.0], generator(), max_len=8)
        assert reply == decoder.decode(expected)
        assert reply.rstrip(".").endswith("}")
