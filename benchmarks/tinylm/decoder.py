"""A batched decoder for many chains of one embedded model on one core.

The engine of the package serves controllers: it schedules, shares prefixes and forks. A study of thousands of chains
needs none of this, so here all rows of a batch step together, in float32 as the engine does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch.nn.functional import silu
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.tinylm.tokenizer import CONTEXT_LEN, END

_MAX_LEN = 1000  # tokens of a chain
_KEPT_SHARE = 0.75  # of the rows of a batch still run, or finished rows are dropped
_ROPE_BASE = 10_000.0


class _Layer(NamedTuple):
    """Weights of a layer, transposed for `x @ w`; query, key and value side by side, gate and up likewise."""

    attention_norm: torch.Tensor
    query_key_value: torch.Tensor
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class _Cache:
    """Keys and values of the rows of a batch, each layer's of shape (rows, heads, tokens, head size)."""

    def __init__(self, keys: list[torch.Tensor], values: list[torch.Tensor], length: int = 0) -> None:
        self.keys, self.values, self.length = keys, values, length

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write behind `length`; the caller moves `length` once all layers are written."""
        end = self.length + keys.shape[2]
        self.keys[layer][:, :, self.length : end] = keys
        self.values[layer][:, :, self.length : end] = values
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def rows(self, index: torch.Tensor, num_free: int = 0) -> _Cache:
        """A copy of some rows, of each as often as it is named, with room for so many further tokens."""
        end = self.length + num_free if num_free else self.keys[0].shape[2]

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            copied = tensor.new_zeros(len(index), tensor.shape[1], end, tensor.shape[3])
            copied[:, :, : self.length] = tensor[index, :, : self.length]
            return copied

        return _Cache([copy(t) for t in self.keys], [copy(t) for t in self.values], self.length)


class Decoder:
    """An embedded model whose rows step together.

    Args:
        folder: Weights of a Llama model with as many key as query heads, and its tokenizer.
    """

    def __init__(self, folder: str) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(folder).backend_tokenizer
        network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        config, weights = network.config, network.state_dict()
        self._num_heads = config.num_attention_heads
        self._head_size = config.hidden_size // config.num_attention_heads
        self._eps = config.rms_norm_eps
        self._embedding, self._norm = weights["model.embed_tokens.weight"], weights["model.norm.weight"]
        self._layers = []
        for number in range(config.num_hidden_layers):
            names = ("q_proj", "k_proj", "v_proj", "o_proj")
            query, key, value, output = (weights[f"model.layers.{number}.self_attn.{n}.weight"] for n in names)
            gate, up, down = (
                weights[f"model.layers.{number}.mlp.{n}.weight"] for n in ("gate_proj", "up_proj", "down_proj")
            )
            before, between = (
                weights[f"model.layers.{number}.{n}.weight"] for n in ("input_layernorm", "post_attention_layernorm")
            )
            self._layers.append(
                _Layer(
                    before,
                    torch.cat([query, key, value]).t().contiguous(),
                    output.t().contiguous(),
                    between,
                    torch.cat([gate, up]).t().contiguous(),
                    down.t().contiguous(),
                )
            )
        frequencies = _ROPE_BASE ** -(torch.arange(0, self._head_size, 2) / self._head_size)
        angles = (torch.arange(CONTEXT_LEN)[:, None] * frequencies).repeat(1, 2)
        self._cos, self._sin = angles.cos(), angles.sin()
        (self._end_id,) = self.encode(END)

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, without the token that ends it."""
        return str(self._tokenizer.decode([i for i in ids if i != self._end_id], skip_special_tokens=False))

    @torch.inference_mode()
    def continuations(
        self,
        prompts: Sequence[Sequence[int]],
        temperatures: Sequence[float],
        generator: torch.Generator,
        *,
        max_len: int = _MAX_LEN,
        batch_size: int = 48,
    ) -> list[list[int]]:
        """Continue each prompt to its end, which is kept, or to `max_len` tokens; at temperature 0 greedily."""
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))  # rows of a batch need little padding
        written: list[list[int]] = [[] for _ in prompts]
        for start in range(0, len(order), batch_size):
            rows = order[start : start + batch_size]
            longest = max(len(prompts[row]) for row in rows)
            padding = torch.tensor([longest - len(prompts[row]) for row in rows])
            ids = torch.tensor([[0] * (longest - len(prompts[row])) + list(prompts[row]) for row in rows])
            temperature = torch.tensor([temperatures[row] for row in rows])
            shape = (len(rows), self._num_heads, longest + max_len, self._head_size)
            keys, values = ([torch.zeros(shape) for _ in self._layers] for _ in range(2))
            cache = _Cache(keys, values)
            while rows:
                hidden = self._forward(ids, padding, cache)
                tokens = _sample(hidden @ self._embedding.t(), temperature, generator)
                for row, token in zip(rows, tokens.tolist(), strict=True):
                    if not written[row] or (written[row][-1] != self._end_id and len(written[row]) < max_len):
                        written[row].append(token)
                ids = tokens[:, None]
                running = [
                    i for i, row in enumerate(rows) if written[row][-1] != self._end_id and len(written[row]) < max_len
                ]
                if len(running) < _KEPT_SHARE * len(rows):
                    index = torch.tensor(running, dtype=torch.long)
                    cache, padding, ids = cache.rows(index), padding[index], ids[index]
                    temperature, rows = temperature[index], [rows[i] for i in running]
        return written

    @torch.inference_mode()
    def forced(self, ids: Sequence[int], cuts: Sequence[int], suffix: Sequence[int], max_len: int = 8) -> list[str]:
        """The greedy reply to a suffix behind the first `cut` tokens, for each cut."""
        prompts = [[*ids[:cut], *suffix] for cut in cuts]
        replies = self.continuations(prompts, [0.0] * len(cuts), torch.Generator(), max_len=max_len)
        return [self.decode(reply) for reply in replies]

    def _forward(self, ids: torch.Tensor, padding: torch.Tensor, cache: _Cache) -> torch.Tensor:
        """Run ids behind the cache; returns the last position of each row, of shape (rows, hidden size)."""
        num_rows, num_new = ids.shape
        columns = torch.arange(cache.length, cache.length + num_new)
        positions = (columns - padding[:, None]).clamp(min=0)
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        seen = torch.arange(cache.length + num_new)
        hidden_from = (seen < padding[:, None])[:, None, None] | (seen > columns[:, None])
        hidden_from &= seen != columns[:, None]  # padding sees itself, so that its softmax is finite
        bias = torch.zeros(hidden_from.shape).masked_fill_(hidden_from, float("-inf"))
        x = self._embedding[ids]
        for number, layer in enumerate(self._layers):
            mixed = self._normed(x, layer.attention_norm) @ layer.query_key_value
            query, key, value = mixed.view(num_rows, num_new, 3, self._num_heads, -1).permute(2, 0, 3, 1, 4)
            keys, values = cache.append(number, _rotated(key, cos, sin), value)
            scores = _rotated(query, cos, sin) @ keys.mT * self._head_size**-0.5 + bias
            x = x + (scores.softmax(-1) @ values).transpose(1, 2).reshape(num_rows, num_new, -1) @ layer.output
            gate, up = (self._normed(x, layer.mlp_norm) @ layer.gate_up).chunk(2, -1)
            x = x + (silu(gate) * up) @ layer.down
        cache.length += num_new
        return self._normed(x[:, -1], self._norm)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._eps) * weight


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


def _sample(logits: torch.Tensor, temperature: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    is_greedy = temperature == 0
    probabilities = (logits / temperature.masked_fill(is_greedy, 1.0)[:, None]).softmax(-1)
    drawn = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
    return torch.where(is_greedy, logits.argmax(-1), drawn)
