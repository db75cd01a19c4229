"""Training sequences of the embedded models: token ids, and the positions that are learnt.

A sequence is a whole chain with its branches: the prompts that the controllers send, each put where the chain stands
after some of its tokens. A branch sees the chain up to there and itself, and its reply is learnt; so one chain, read
once, teaches its tokens and a dozen replies. What a branch is taught:

- A probe or a forced answer: before the chain's first answer the true one (the model's best guess), which half of the
  probes hedge; after it the answer that the chain believes in. Until two passes have agreed, a probe may hedge, and
  after a correction it may give the answer before.
- A verdict after an answer that was closed: whether it is right.
- A written check after such an answer: one more pass, and whether it leads to that answer.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerFast

from benchmarks.tinylm.chains import Segment, sample_chain, written_check
from benchmarks.tinylm.tokenizer import END
from scaffolding_ext.tinylm.grammar import (
    CHECK,
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

NUM_PROBES, NUM_CLOSES = 3, 1  # a chain, each after any of its tokens
NUM_VERDICTS = 2  # a chain: at its end, and where another answer is believed
CHECK_SHARE = 0.2  # of the chains have a written check at one of those places
HEDGE_SHARE = 0.5  # of the probes before the first answer
# Of the probes of problems with so many steps, this share hedges from the first answer until two passes have agreed.
DOUBT_SHARE, MIN_DOUBTED_STEPS = 0.6, 5
RIVAL_SHARE = 0.5  # of the probes after a correction that is not settled give the answer before it
IGNORED = -100  # the label that the loss leaves out
_LEN_STEP = 32  # lengths are rounded up, so that few shapes occur


class Example(NamedTuple):
    """One training sequence; all lists have the same length.

    Attributes:
        ids: The chain with its prompt, then its branches.
        labels: `ids[i]` is predicted where `labels[i]` is not `IGNORED`.
        positions: Where each token stands: in a branch as if it followed the chain at once.
        branches: Of each token the number of its branch; 0 is the chain.
        cuts: How many tokens of the chain each token may see.
    """

    ids: list[int]
    labels: list[int]
    positions: list[int]
    branches: list[int]
    cuts: list[int]

    def add(self, ids: list[int], labels: list[int], branch: int, cut: int) -> None:
        """Append tokens that follow the first `cut` tokens of the chain."""
        self.ids.extend(ids)
        self.labels.extend(labels)
        self.positions.extend(range(cut, cut + len(ids)))
        self.branches.extend([branch] * len(ids))
        self.cuts.extend([cut] * len(ids))


class Batch(NamedTuple):
    """Right-padded int64 arrays of shape (rows, length), as in `Example`; padding is of branch -1."""

    ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    branches: npt.NDArray[np.int64]
    cuts: npt.NDArray[np.int64]

    def mask(self) -> npt.NDArray[np.bool_]:
        """The tokens that each token sees, of shape (rows, 1, length, length); padding sees only padding."""
        length = self.ids.shape[1]
        own = self.branches[:, :, None] == self.branches[:, None, :]
        chain = (self.branches == 0)[:, None, :] & (np.arange(length) < self.cuts[:, :, None])
        seen: npt.NDArray[np.bool_] = np.tril(np.ones((length, length), bool)) & (own | chain)
        return seen[:, None]


class _Chain(NamedTuple):
    """Token ids of a chain, and after each of them the last line that is complete (None before the first)."""

    ids: list[int]
    written: list[Segment | None]

    def belief(self, cut: int) -> str | None:
        """The answer that is believed after so many tokens."""
        segment = self.written[cut - 1] if cut else None
        return segment.belief if segment else None


class ExampleStream:
    """Draws training examples; every draw depends on the generator that is passed in alone."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._encode = tokenizer.backend_tokenizer.encode
        self._pad_id: int = tokenizer.pad_token_id
        self._lines: dict[str, list[int]] = {}

    def sample(self, rng: random.Random, max_num_steps: int = MAX_NUM_STEPS) -> Example:
        """Draw a chain with its branches from the training split, of a problem with at most `max_num_steps` steps.

        Below `MAX_NUM_STEPS` chains are shorter, too: one to two times `max_num_steps` lines.
        """
        problem = sample_problem(rng, "train", None, max_num_steps)
        num_lines = None if max_num_steps == MAX_NUM_STEPS else rng.randint(max_num_steps, 2 * max_num_steps)
        segments = sample_chain(problem, rng, num_lines)
        chain = self._chain(segments)
        prompt = self._ids(f"<|user|>{problem.question}<|assistant|><think>\n")
        completion = chain.ids + self._ids(f"{CLOSE}{segments[-1].belief}}}.{END}")
        example = Example([], [], [], [], [])
        example.add(prompt + completion, [IGNORED] * len(prompt) + completion, 0, 0)
        for branch, (cut, suffix, reply) in enumerate(self._branches(problem, chain, rng), 1):
            suffix_ids, reply_ids = self._ids(suffix), self._ids(reply + END)
            labels = [IGNORED] * len(suffix_ids) + reply_ids
            example.add(suffix_ids + reply_ids, labels, branch, len(prompt) + cut)
        return example

    def _branches(self, problem: Problem, chain: _Chain, rng: random.Random) -> Iterator[tuple[int, str, str]]:
        """After how many tokens of the chain each branch stands, what it asks, and the reply."""
        for _ in range(NUM_PROBES):
            cut = rng.randint(0, len(chain.ids))
            yield cut, PROBE, self._probed(problem, chain.written[cut - 1] if cut else None, rng)
        for _ in range(NUM_CLOSES):
            cut = rng.randint(0, len(chain.ids))
            yield cut, CLOSE, (chain.belief(cut) or problem.answer) + "}."
        cuts = [len(chain.ids), *self._other_beliefs(chain, rng)]
        for cut in cuts:
            belief = str(chain.belief(cut))
            yield cut, f"{CLOSE}{belief}}}.{VERDICT}", YES if belief == problem.answer else NO
        if rng.random() < CHECK_SHARE:
            cut = rng.choice(cuts)
            belief = str(chain.belief(cut))
            yield cut, f"{CLOSE}{belief}}}.{CHECK}", written_check(problem, belief, rng)

    def _probed(self, problem: Problem, written: Segment | None, rng: random.Random) -> str:
        """The reply to a probe behind a line."""
        if written is None or written.belief is None:
            return problem.answer + "}" + (HEDGE if rng.random() < HEDGE_SHARE else "")
        is_doubted = not written.is_settled and problem.num_steps >= MIN_DOUBTED_STEPS
        hedge = HEDGE if is_doubted and rng.random() < DOUBT_SHARE else ""
        answer = written.rival if written.rival and rng.random() < RIVAL_SHARE else written.belief
        return answer + "}" + hedge

    def _other_beliefs(self, chain: _Chain, rng: random.Random) -> Iterator[int]:
        """Further places at which verdicts are asked for: those that believe another answer than the last."""
        answered = [cut for cut in range(1, len(chain.ids) + 1) if chain.belief(cut) is not None]
        others = [cut for cut in answered if chain.belief(cut) != chain.belief(len(chain.ids))]
        for _ in range(NUM_VERDICTS - 1):
            yield rng.choice(others or answered)

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

    def _chain(self, segments: list[Segment]) -> _Chain:
        chain = _Chain([], [])
        written: Segment | None = None
        for segment in segments:
            line = self._ids(segment.text)
            chain.ids.extend(line)
            chain.written.extend([written] * (len(line) - 1) + [segment])
            written = segment
        return chain

    def _ids(self, text: str) -> list[int]:
        ids = self._lines.get(text)
        if ids is None:
            ids = self._encode(text, add_special_tokens=False).ids
            if len(self._lines) < 400_000:
                self._lines[text] = ids
        return ids

    def _pad(self, examples: list[Example]) -> Batch:
        length = -(-max(len(example.ids) for example in examples) // _LEN_STEP) * _LEN_STEP
        shape = (len(examples), length)
        batch = Batch(*(np.full(shape, padding, np.int64) for padding in (self._pad_id, IGNORED, 0, -1, 0)))
        for row, example in enumerate(examples):
            for array, values in zip(batch, example, strict=True):
                array[row, : len(values)] = values
        return batch
