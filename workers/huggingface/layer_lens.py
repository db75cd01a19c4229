"""The verdict that each layer would give: its hidden state goes through the final norm and the unembedding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol.branching import entropy
from scaffolding_ext.workers.huggingface.model_loading import load_model

_NORMS = ("norm", "final_layernorm", "ln_f", "final_layer_norm")  # names of the final norm in decoders


class LayerCurve(NamedTuple):
    """One verdict after each layer, shape (layers,) each.

    Attributes:
        entropies: Entropy of the next token's distribution, in nats.
        scores: P(yes) / (P(yes) + P(no)).
    """

    entropies: npt.NDArray[np.float64]
    scores: npt.NDArray[np.float64]


class ReadBranch(NamedTuple):
    """A branch that the model read and did not write.

    Attributes:
        verdict: The verdict after each layer.
        logprobs: Natural-log probability of each written token, shape (written,).
        top_logprobs: Log-probability of the likeliest token at each of these places, shape (written,).
    """

    verdict: LayerCurve
    logprobs: npt.NDArray[np.float64]
    top_logprobs: npt.NDArray[np.float64]


class LayerLens:
    """A separate model whose layers are read one by one: for calibrations, not for serving.

    Raises:
        ConfigError: The model cannot be loaded, or its final norm is not found.
    """

    def __init__(self, model: str, dtype: str = "float32", device: str = "cpu") -> None:
        self._network = load_model(model, dtype, device, "sdpa").network
        base = self._network.base_model
        norm = next((getattr(base, name) for name in _NORMS if hasattr(base, name)), None)
        if norm is None:
            raise ConfigError(
                f"is a {type(base).__name__}, which has no final norm under a known name ({', '.join(_NORMS)}): "
                "choose another model",
                "model",
            )
        self._norm: Any = norm

    def curve(self, token_ids: Sequence[int], yes_token: int, no_token: int) -> LayerCurve:
        """The verdict on a text that ends where YES or NO is to follow."""
        return self.read(token_ids, slice(0, 0), yes_token, no_token).verdict

    def read(self, token_ids: Sequence[int], written: slice, yes_token: int, no_token: int) -> ReadBranch:
        """The verdict on a text, and how sure the model was of a part of it.

        Args:
            token_ids: A branch, followed by the question.
            written: The positions of its written tokens.
            yes_token: The first token of an affirmative verdict.
            no_token: The first token of a negative verdict.
        """
        import torch
        from scipy.special import expit

        with torch.inference_mode():
            ids = torch.tensor([list(token_ids)], device=self._network.device)
            output: Any = self._network.base_model(ids, output_hidden_states=True, use_cache=False)
            unembed = self._network.get_output_embeddings()
            last = [state[0, -1] for state in output.hidden_states[1:-1]]
            normed = [*map(self._norm, last), output.last_hidden_state[0, -1]]  # it has the final norm
            logits = unembed(torch.stack(normed)).double().cpu().numpy()
            before = output.last_hidden_state[0, max(0, written.start - 1) : max(0, written.stop - 1)]
            logprobs = unembed(before).float().log_softmax(-1)
            drawn = logprobs.gather(-1, ids[0, written, None])[:, 0].double().cpu().numpy()
            top = logprobs.amax(-1).double().cpu().numpy() if len(drawn) else drawn
        curve = LayerCurve(entropy(logits), expit(logits[:, yes_token] - logits[:, no_token]))
        return ReadBranch(curve, drawn, top)
