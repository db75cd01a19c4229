"""The size of the embedded models, their weights before training, and what trains which of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from benchmarks.tinylm.tokenizer import CONTEXT_LEN

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast


class Shape(NamedTuple):
    """The size of a Llama model."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int


SHAPES = {"target": Shape(128, 384, 4, 4), "draft": Shape(96, 288, 3, 3)}


def build_model(shape: Shape, tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A randomly initialised Llama of the given shape for the tokenizer's vocabulary."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=-(-len(tokenizer) // 8) * 8,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_heads,
        max_position_embeddings=CONTEXT_LEN,
        tie_word_embeddings=True,
        initializer_range=0.03,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


def build_optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings and norms."""
    import torch

    from benchmarks.tinylm.muon import Muon

    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        Muon(matrices, lr=0.006, weight_decay=0.01, momentum=0.95),
        torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0),
    ]
