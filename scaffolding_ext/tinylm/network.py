"""The embedded models' network in plain torch, without transformers, whose import would dominate a short run.

It is LLaMA's decoder with the operations of transformers in the same order, so its numbers are equal to the last bit.
It has only what the generation engine needs of a transformers model whose layers it calls directly.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import embedding, linear, silu

Attend = Callable[..., tuple[torch.Tensor, Any]]
_Rotations = tuple[torch.Tensor, torch.Tensor]


class Network:
    """A causal LM of the embedded models' architecture, in evaluation mode.

    Args:
        folder: Folder with `config.json`, `generation_config.json` and `model.safetensors`.
        dtype: Dtype of the weights.
        device: Device of the weights.
        attend: Attention over the visible positions, with the signature of transformers' `AttentionInterface`.
        attn_implementation: Name of `attend`.

    Raises:
        ValueError: The folder holds another architecture.
    """

    def __init__(
        self, folder: str, dtype: torch.dtype, device: torch.device | str, attend: Attend, attn_implementation: str
    ) -> None:
        from safetensors.torch import load_file

        config, generation = (
            json.loads(Path(folder, name).read_text(encoding="utf-8"))
            for name in ("config.json", "generation_config.json")
        )
        known = {"model_type": "llama", "hidden_act": "silu", "attention_bias": False, "mlp_bias": False}
        if other := {name: config[name] for name, value in known.items() if config[name] != value}:
            raise ValueError(f"{folder} has an unsupported architecture: config.json has {other}")
        self.device, self.dtype = torch.device(device), dtype
        self.config = _Config(**config, _attn_implementation=attn_implementation)
        self.generation_config = SimpleNamespace(**generation)
        self._weights = {
            name: weights.to(device, dtype)
            for name, weights in load_file(Path(folder, "model.safetensors")).items()
            if name != "lm_head.weight" or not config["tie_word_embeddings"]
        }
        self.base_model = _Decoder(self._weights, config, attend, self.device)
        self._unembedding = self._weights.get("lm_head.weight", self.base_model.embed_tokens.weight)

    def forward(self, *_: Any) -> Any:
        """Raise TypeError: the layers are called one by one."""
        raise TypeError("the layers of this network are called one by one; load the model with transformers")

    def get_input_embeddings(self) -> Any:
        return self.base_model.embed_tokens

    def get_output_embeddings(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the function from normed hidden states to logits."""
        return functools.partial(linear, weight=self._unembedding)

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        return iter(self._weights.items())


class _Config(SimpleNamespace):
    def get_text_config(self) -> _Config:
        return self


class _Embedding:
    """Token ids to hidden states, shape (1, tokens, hidden)."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.weight = weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return embedding(ids, self.weight)

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        return self.forward(ids)


class _Decoder:
    def __init__(
        self, weights: dict[str, torch.Tensor], config: dict[str, Any], attend: Attend, device: torch.device
    ) -> None:
        self.embed_tokens = _Embedding(weights["model.embed_tokens.weight"])
        self.norm = _Norm(weights["model.norm.weight"], config["rms_norm_eps"])
        self.layers = [_Layer(weights, config, index, attend) for index in range(config["num_hidden_layers"])]
        size, theta = config["head_dim"], config["rope_parameters"]["rope_theta"]
        self._frequencies = (1.0 / (theta ** (torch.arange(0, size, 2, dtype=torch.float) / size))).to(device)

    def rotary_emb(self, hidden: torch.Tensor, position_ids: torch.Tensor) -> _Rotations:
        """Cosine and sine of each position's angles, shape (1, tokens, head size)."""
        angles = position_ids[..., None].float() * self._frequencies
        both = torch.cat((angles, angles), dim=-1)
        return both.cos().to(hidden.dtype), both.sin().to(hidden.dtype)


class _Norm:
    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        self._weight = weight
        self._epsilon = epsilon

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        states = hidden.to(torch.float32)
        states = states * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + self._epsilon)
        return self._weight * states.to(hidden.dtype)


class _Layer:
    """Attention and MLP, each after a norm and with a residual."""

    def __init__(self, weights: dict[str, torch.Tensor], config: dict[str, Any], index: int, attend: Attend) -> None:
        def of(name: str) -> torch.Tensor:
            return weights[f"model.layers.{index}.{name}.weight"]

        self.layer_idx = index
        self._attend = attend
        self._head_size = config["head_dim"]
        self._norms = [
            _Norm(of(name), config["rms_norm_eps"]) for name in ("input_layernorm", "post_attention_layernorm")
        ]
        self._query, self._key, self._value, self._output = (of(f"self_attn.{name}_proj") for name in "qkvo")
        self._gate, self._up, self._down = (of(f"mlp.{name}_proj") for name in ("gate", "up", "down"))

    def __call__(
        self,
        hidden: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_embeddings: _Rotations,
        use_cache: bool = False,
    ) -> torch.Tensor:
        shape = (*hidden.shape[:-1], -1, self._head_size)
        normed = self._norms[0](hidden)
        query, key, value = (
            linear(normed, weights).view(shape).transpose(1, 2) for weights in (self._query, self._key, self._value)
        )
        cosines, sines = (part.unsqueeze(1) for part in position_embeddings)
        query = query * cosines + _half_rotated(query) * sines
        key = key * cosines + _half_rotated(key) * sines
        seen, _ = self._attend(self, query, key, value, attention_mask, scaling=self._head_size**-0.5)
        hidden = hidden + linear(seen.reshape(*hidden.shape[:-1], -1).contiguous(), self._output)
        normed = self._norms[1](hidden)
        return hidden + linear(silu(linear(normed, self._gate)) * linear(normed, self._up), self._down)


def _half_rotated(states: torch.Tensor) -> torch.Tensor:
    first, second = states.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)
