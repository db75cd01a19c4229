"""Linear layers whose matrices take less memory than float32: on a CPU a single request mostly waits for reading them.

Everything else stays float32. Each row is computed without the others, so a text does not depend on other requests.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import linear

from scaffolding_ext.errors import ConfigError

_MOST = 127  # largest int8 whose negative is an int8, too
_LEAST = 1e-30  # so that a row of zeros can be divided


class BFloat16Linear(torch.nn.Module):  # type: ignore[misc]
    """A linear layer in bfloat16, for float32 on both sides; weights and inputs are rounded to 8 significant bits."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.register_buffer("matrix", layer.weight.detach().bfloat16())
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().bfloat16())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return linear(inputs.bfloat16(), self.matrix, self.bias).float()


class Int8Linear(torch.nn.Module):  # type: ignore[misc]
    """A linear layer in whole numbers of 8 bits, for float32 on both sides.

    The weights of each output have their own scale, and so have the inputs of each token; sums are exact.

    Args:
        layer: Its weights are copied, rounded to the nearest of 255 numbers of equal distance.

    Reference:
        Dettmers et al., LLM.int8() (arXiv 2208.07339), section 2.1, vector-wise quantization. Deviation: outliers among
        the inputs are not computed separately.
    """

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        weights = layer.weight.detach()
        scales = weights.abs().amax(1).clamp(min=_LEAST) / _MOST
        self.register_buffer("matrix", (weights / scales[:, None]).round().to(torch.int8))
        self.register_buffer("scales", scales)
        self.register_buffer("bias", None if layer.bias is None else layer.bias.detach().clone())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        rows = inputs.reshape(-1, inputs.shape[-1])
        own = rows.abs().amax(1, keepdim=True).clamp_(min=_LEAST) / _MOST
        sums = torch._int_mm((rows / own).round_().to(torch.int8), self.matrix.t())
        outputs = sums.float().mul_(own).mul_(self.scales)
        if self.bias is not None:
            outputs += self.bias
        return outputs.unflatten(0, inputs.shape[:-1])


LAYERS = {"bfloat16": BFloat16Linear, "int8": Int8Linear}
# The processor instructions that make torch's kernel fast, and torch's function that says whether a processor has them.
# Without them the kernel gives the same results many times more slowly.
_NEEDS = {"bfloat16": ("AVX512_BF16", "_is_avx512_bf16_supported"), "int8": ("AVX512_VNNI", "_is_vnni_supported")}


def narrow_weights(network: Any, weight_dtype: str) -> None:
    """Put layers of `weight_dtype` (one of `LAYERS`) in the place of the linear layers of a float32 model on the CPU.

    Raises:
        ConfigError: This processor computes the type slowly, the model has no linear layer, or the model is an embedded
            one, whose weights fit into the processor's cache.
    """
    key = "weight_dtype"
    if not isinstance(network, torch.nn.Module):
        raise ConfigError(
            f"is {weight_dtype!r}, and the embedded models are no faster with narrow weights: leave it out", key
        )
    needed, has_it = _NEEDS[weight_dtype]
    if not getattr(torch.cpu, has_it, bool)():
        raise ConfigError(
            f"is {weight_dtype!r}, and this processor computes such weights slowly, since it lacks {needed}: leave it "
            "out",
            key,
        )
    found = [
        (parent, name, child)
        for parent in network.modules()
        for name, child in parent.named_children()
        if isinstance(child, torch.nn.Linear)
    ]
    if not found:
        raise ConfigError(
            f"is {weight_dtype!r}, and the model has no linear layer whose weights could be narrow: leave it out", key
        )
    for parent, name, child in found:
        setattr(parent, name, LAYERS[weight_dtype](child))
