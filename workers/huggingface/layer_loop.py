"""A model whose layers are called one by one.

A plain pass skips work that transformers does around the layers: masks that nobody reads, and containers of results.
Another kind of pass reads the states after each layer, for hidden states and for verdicts that settle early. There the
final norm and the unembedding give the next token so far (RKSC, equation 5). A request leaves once its rule says that
this has settled, and the others go on without it. A request that left early has no KV in the layers above, so it leaves
nothing in the cache. A request without a rule runs through all layers, and its KV can be reused.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from scaffolding_ext.workers.huggingface.attention import ATTENTION, AttentionMetadata, current_step
from scaffolding_ext.workers.huggingface.engine_request import EngineRequest, Work

if TYPE_CHECKING:
    from transformers import PreTrainedModel


# Their decoder is only embedding, layers and norm; the unembedding of its output gives the logits.
_KINDS = ("llama", "mistral", "qwen2", "qwen3")


def why_not_layer_by_layer(model: PreTrainedModel) -> str | None:
    """Why a model's layers cannot be called one by one; None where they can."""
    config = model.config.get_text_config()
    if config.model_type not in _KINDS:
        return f"the worker calls only layers of {', '.join(_KINDS)} one by one, and the model is a {config.model_type}"
    if config._attn_implementation != ATTENTION:
        return "the worker calls layers one by one only while attn_implementation is not set"
    return None


class LayerLoop:
    """Runs a model for which `why_not_layer_by_layer` gives no reason."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._decoder: Any = model.base_model
        self._unembed: Any = model.get_output_embeddings()

    def logits(self, ids: torch.Tensor, step: AttentionMetadata, wanted: torch.Tensor) -> torch.Tensor:
        """Run token ids, shape (tokens,), through all layers; returns the wanted logits, shape (wanted, vocabulary)."""
        decoder = self._decoder
        hidden = decoder.embed_tokens(ids[None])
        rotations = decoder.rotary_emb(hidden, position_ids=step.positions[None])
        for layer in decoder.layers:
            hidden = _through(layer, hidden, step, rotations)
        logits: torch.Tensor = self._unembed(decoder.norm(hidden[0, wanted]))
        return logits

    def run(
        self, works: list[Work], prepare: Callable[[list[Work]], tuple[torch.Tensor, AttentionMetadata]]
    ) -> torch.Tensor:
        """Compute all of these requests' pending tokens, each up to the layer after which it leaves.

        Args:
            works: The works, in the order of tokens; each completes its request. A request with a `layer_exit` gets its
                `exit_layer`. A request that wants hidden states gets `hidden_states`, the last of them after the final
                norm.
            prepare: Returns the token ids of some works, flat, and what attention must know about them.

        Returns:
            Logits of the next token of each request, shape (requests, vocabulary), float32.
        """
        decoder, left = self._decoder, list(works)
        num_layers = len(decoder.layers)
        read: dict[EngineRequest, torch.Tensor] = {}
        states: dict[EngineRequest, list[torch.Tensor]] = {
            work.request: [] for work in works if work.request.wants.states
        }
        entropies: torch.Tensor | None = None
        ids, step = prepare(left)
        hidden = decoder.embed_tokens(ids[None])
        rotations, ends = decoder.rotary_emb(hidden, position_ids=step.positions[None]), _ends(left)
        for number, layer in enumerate(decoder.layers, 1):
            hidden = _through(layer, hidden, step, rotations)
            is_last = number == num_layers
            may_leave = is_last or any(number + 1 >= _first_layer(work) for work in left)
            if not (may_leave or states):
                continue
            last = hidden[0, [end - 1 for end in ends]]
            normed = decoder.norm(last)
            for row, work in enumerate(left):
                if work.request in states:
                    states[work.request].append((normed if is_last else last)[row])
            if not may_leave:
                continue
            logits = self._unembed(normed).float()
            before, entropies = entropies, _entropies(logits)
            leaves = [is_last or _leaves(work, number, i, entropies, before) for i, work in enumerate(left)]
            for row, work in enumerate(left):
                if leaves[row]:
                    read[work.request] = logits[row]
                    if work.request.wants.layer_exit is not None:
                        work.request.exit_layer = number
            if all(leaves):
                break
            if not any(leaves):
                continue
            stays = [row for row in range(len(left)) if not leaves[row]]
            tokens = [place for row in stays for place in range(ends[row] - left[row].num_tokens, ends[row])]
            hidden, entropies = hidden[:, tokens], entropies[stays]
            left = [left[row] for row in stays]
            step = prepare(left)[1]
            rotations, ends = decoder.rotary_emb(hidden, position_ids=step.positions[None]), _ends(left)
        for request, after_each in states.items():
            request.hidden_states = torch.stack(after_each).float().cpu()
        return torch.stack([read[work.request] for work in works])


def _ends(works: list[Work]) -> list[int]:
    """Where the tokens of each work end."""
    return list(itertools.accumulate(work.num_tokens for work in works))


def _entropies(logits: torch.Tensor) -> torch.Tensor:
    """Of each row's distribution, in nats; a token without probability counts nothing."""
    probabilities = logits.softmax(-1)
    return -torch.xlogy(probabilities, probabilities).sum(-1)


def _through(
    layer: Any, hidden: torch.Tensor, step: AttentionMetadata, rotations: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    token = current_step.set(step)
    try:
        output = layer(hidden, attention_mask=None, position_embeddings=rotations, use_cache=False)
    finally:
        current_step.reset(token)
    states: torch.Tensor = output[0] if isinstance(output, tuple) else output  # a tuple before transformers 4.55
    return states


def _first_layer(work: Work) -> float:
    """The first layer after which a request may leave."""
    rule = work.request.wants.layer_exit
    return math.inf if rule is None else rule.min_layer


def _leaves(work: Work, layer: int, row: int, now: torch.Tensor, before: torch.Tensor | None) -> bool:
    rule = work.request.wants.layer_exit
    if rule is None or before is None:
        return False
    return bool(rule.settled(layer, now[row].item(), before[row].item()))
