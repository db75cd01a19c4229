"""Training sequences of the embedded models: token ids, and the positions that are learnt.

Each sequence shows one of the prompts that the controllers use: a whole chain, a chain cut at a random token and
probed, or a chain cut at a random token whose thinking is closed by force. Before its first answer a cut chain is
taught the true answer (the model's best guess), after it the answer that the chain believes in.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from scaffolding_ext.tinylm.grammar import CLOSE, MAX_NUM_STEPS, PROBE, Problem, sample_chain, sample_problem
from scaffolding_ext.tinylm.tokenizer import END

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from transformers import PreTrainedTokenizerFast

PROBE_SHARE, CLOSE_SHARE = 0.16, 0.1
IGNORED = -100  # the label that the loss leaves out
_LEN_STEP = 32  # lengths are rounded up, so that few shapes occur


class Example(NamedTuple):
    """One training sequence: `ids[i]` is predicted where `labels[i]` is not `IGNORED`; both have the same length."""

    ids: list[int]
    labels: list[int]


class Batch(NamedTuple):
    """Right-padded int64 arrays of shape (rows, length)."""

    ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]


class ExampleStream:
    """Draws training examples; every draw depends on the generator that is passed in alone."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._encode = tokenizer.backend_tokenizer.encode
        self._pad_id: int = tokenizer.pad_token_id
        self._lines: dict[str, list[int]] = {}

    def sample(self, rng: random.Random, max_num_steps: int = MAX_NUM_STEPS) -> Example:
        """Draw one example from the training split, of a problem with at most `max_num_steps` steps."""
        problem = sample_problem(rng, "train", max_num_steps=max_num_steps)
        prompt = self._ids(f"<|user|>{problem.question}<|assistant|><think>\n")
        chain, beliefs = self._chain(problem, rng)
        draw = rng.random()
        if draw >= PROBE_SHARE + CLOSE_SHARE:
            completion = chain + self._ids(CLOSE + problem.answer + "}." + END)
            return Example(prompt + completion, [IGNORED] * len(prompt) + completion)
        cut = rng.randint(0, len(chain))
        belief = (beliefs[cut - 1] if cut else None) or problem.answer
        suffix, tail = (PROBE, "}" + END) if draw < PROBE_SHARE else (CLOSE, "}." + END)
        suffix_ids, answer_ids = self._ids(suffix), self._ids(belief) + self._ids(tail)
        ids = prompt + chain[:cut] + suffix_ids + answer_ids
        return Example(ids, [IGNORED] * (len(ids) - len(answer_ids)) + answer_ids)

    def batches(
        self, rng: random.Random, batch_tokens: int, num_examples: int, max_num_steps: int = MAX_NUM_STEPS
    ) -> Iterator[Batch]:
        """Draw `num_examples`, group them by length, and yield shuffled batches of about `batch_tokens` each."""
        buckets: dict[int, list[Example]] = {}
        full: list[list[Example]] = []
        for _ in range(num_examples):
            example = self.sample(rng, max_num_steps)
            length = -(-len(example.ids) // _LEN_STEP) * _LEN_STEP
            bucket = buckets.setdefault(length, [])
            bucket.append(example)
            if len(bucket) >= max(1, batch_tokens // length):
                full.append(buckets.pop(length))
        full += buckets.values()
        rng.shuffle(full)
        return map(self._pad, full)

    def _chain(self, problem: Problem, rng: random.Random) -> tuple[list[int], list[str | None]]:
        """Token ids of a sampled chain, and the belief after each token."""
        ids: list[int] = []
        beliefs: list[str | None] = []
        belief: str | None = None
        for segment in sample_chain(problem, rng):
            line = self._ids(segment.text)
            ids += line
            beliefs += [belief] * (len(line) - 1) + [segment.belief]
            belief = segment.belief
        return ids, beliefs

    def _ids(self, text: str) -> list[int]:
        ids = self._lines.get(text)
        if ids is None:
            ids = self._encode(text, add_special_tokens=False).ids
            if len(self._lines) < 400_000:
                self._lines[text] = ids
        return ids

    def _pad(self, examples: list[Example]) -> Batch:
        import numpy as np

        length = -(-max(len(example.ids) for example in examples) // _LEN_STEP) * _LEN_STEP
        ids = np.full((len(examples), length), self._pad_id, np.int64)
        labels = np.full((len(examples), length), IGNORED, np.int64)
        for row, example in enumerate(examples):
            ids[row, : len(example.ids)] = example.ids
            labels[row, : len(example.ids)] = example.labels
        return Batch(ids, labels)
