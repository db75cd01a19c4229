"""Training sequences of the embedded models: token ids, and the positions that are learnt.

Each sequence shows one of the prompts that the controllers use: a whole chain, or a chain cut at a random token and
then probed, closed by force, or closed and asked whether its answer is correct. Of a cut chain the thinking and the
reply are learnt. Before its first answer it is taught the true answer (the model's best guess), which half of the
probes hedge; after it the answer that the chain believes in.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from scaffolding_ext.tinylm.chains import sample_chain
from scaffolding_ext.tinylm.grammar import (
    CLOSE,
    HEDGE,
    MAX_NUM_STEPS,
    NO,
    PROBE,
    VERDICT,
    YES,
    Problem,
    sample_problem,
)
from scaffolding_ext.tinylm.tokenizer import END

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from transformers import PreTrainedTokenizerFast

PROBE_SHARE, CLOSE_SHARE, VERDICT_SHARE = 0.2, 0.12, 0.12  # of the sequences; the others are whole chains
HEDGE_SHARE = 0.5  # of the probes before the first answer
IGNORED = -100  # the label that the loss leaves out
_LEN_STEP = 32  # lengths are rounded up, so that few shapes occur
_MAX_REDRAWS = 12  # of a chain whose answer should be wrong, or right


class Example(NamedTuple):
    """One training sequence: `ids[i]` is predicted where `labels[i]` is not `IGNORED`; both have the same length."""

    ids: list[int]
    labels: list[int]


class Batch(NamedTuple):
    """Right-padded int64 arrays of shape (rows, length)."""

    ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]


class _Chain(NamedTuple):
    """Token ids of a chain, and the answer believed after each of them."""

    ids: list[int]
    beliefs: list[str | None]


class ExampleStream:
    """Draws training examples; every draw depends on the generator that is passed in alone."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._encode = tokenizer.backend_tokenizer.encode
        self._pad_id: int = tokenizer.pad_token_id
        self._lines: dict[str, list[int]] = {}

    def sample(self, rng: random.Random, max_num_steps: int = MAX_NUM_STEPS) -> Example:
        """Draw one example from the training split, of a problem with at most `max_num_steps` steps.

        Below `MAX_NUM_STEPS` chains are shorter, too: one to two times `max_num_steps` lines.
        """
        problem = sample_problem(rng, "train", max_num_steps=max_num_steps)
        num_lines = None if max_num_steps == MAX_NUM_STEPS else rng.randint(max_num_steps, 2 * max_num_steps)
        draw = rng.random()
        if draw < VERDICT_SHARE:
            return self._verdict(problem, rng, num_lines)
        chain = self._chain(problem, rng, num_lines)
        if draw < VERDICT_SHARE + PROBE_SHARE + CLOSE_SHARE:
            cut = rng.randint(0, len(chain.ids))
            belief = chain.beliefs[cut - 1] if cut else None
            if draw < VERDICT_SHARE + CLOSE_SHARE:
                return self._example(problem, chain.ids[:cut], CLOSE, (belief or problem.answer) + "}." + END)
            hedge = HEDGE if belief is None and rng.random() < HEDGE_SHARE else ""
            return self._example(problem, chain.ids[:cut], PROBE, (belief or problem.answer) + "}" + hedge + END)
        completion = chain.ids + self._ids(f"{CLOSE}{chain.beliefs[-1]}}}.{END}")
        return self._example(problem, completion)

    def fingerprint(self, num_examples: int = 300) -> str:
        """A digest of the first examples of a fixed seed: two runs that agree in it learn from the same data."""
        rng = random.Random("fingerprint")
        digest = hashlib.sha256()
        for _ in range(num_examples):
            digest.update(json.dumps(self.sample(rng)).encode())
        return digest.hexdigest()[:16]

    def _verdict(self, problem: Problem, rng: random.Random, num_lines: int | None) -> Example:
        """A chain closed after its first answer and asked for a verdict; YES and NO are about equally frequent."""
        wanted = rng.random() < 0.5
        for _ in range(_MAX_REDRAWS):
            chain = self._chain(problem, rng, num_lines)
            cut = rng.randint(chain.beliefs.count(None) + 1, len(chain.ids))
            belief = chain.beliefs[cut - 1]
            if (belief == problem.answer) == wanted:
                break
        question = f"{CLOSE}{belief}}}.{VERDICT}"
        return self._example(problem, chain.ids[:cut], question, (YES if belief == problem.answer else NO) + END)

    def _example(self, problem: Problem, thinking: list[int], suffix: str = "", reply: str = "") -> Example:
        """Prompt and suffix are given, thinking and reply are learnt."""
        prompt = self._ids(f"<|user|>{problem.question}<|assistant|><think>\n")
        suffix_ids, reply_ids = self._ids(suffix), self._ids(reply)
        ids = prompt + thinking + suffix_ids + reply_ids
        labels = [IGNORED] * len(prompt) + thinking + [IGNORED] * len(suffix_ids) + reply_ids
        return Example(ids, labels)

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

    def _chain(self, problem: Problem, rng: random.Random, num_lines: int | None) -> _Chain:
        chain = _Chain([], [])
        belief: str | None = None
        for segment in sample_chain(problem, rng, num_lines):
            line = self._ids(segment.text)
            chain.ids.extend(line)
            chain.beliefs.extend([belief] * (len(line) - 1) + [segment.belief])
            belief = segment.belief
        return chain

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
