"""Questions that are put in other words, and whether a branch may answer the question as it stood instead."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from benchmarks._lib.lab import Lab
from scaffolding_ext.answers import extract
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.branching import BranchTask
from scaffolding_ext.protocol.lowering import prefixes_of
from scaffolding_ext.workers.huggingface.branches import layer_weighted_similarity
from scaffolding_ext.workers.huggingface.model_loading import load_model

WORKER = "generation"
LEVELS = ("nearly the same", "other words", "another order, more context", "another meaning")
CHANGES_MEANING = 3  # the level from which on another answer is right, mostly
GATE, READ, EMBEDDING, OVERLAP = "eq. 2 on the root's KV", "eq. 2, phrasing read", "embedding", "token overlap"
SIGNALS = (GATE, READ, EMBEDDING, OVERLAP)
ANSWER_LEN = 16  # tokens of an answer that is asked for

_OTHER_WORDS = (
    ("Start with", "Begin at"),
    ("Stand at", "You are at"),
    ("Apply", "Then do"),
    ("Walk", "Then go"),
    ("Count the digits", "How many digits are"),
    ("Find the largest number", "Which is the largest number"),
    ("Find the total", "What is the total"),
    ("Where do you end", "What is the end"),
    ("What is", "Determine"),
    ("Find", "Determine"),
    ("Compute", "Work out"),
    ("How many", "Count how many"),
    ("Let ", "Suppose that "),
)


def remarked(question: str) -> str:
    """Without the mark at its end; with one where it has none."""
    return question[:-1] if question.endswith((".", "?")) else f"{question}."


def reworded(question: str) -> str:
    """The first of some common words that occurs, and the second, in others; a request where none does."""
    found = [pair for pair in _OTHER_WORDS if pair[0] in question][:2]
    for old, new in found:
        question = question.replace(old, new, 1)
    return question if found else f"Determine what is asked for. {question}"


def reordered(question: str) -> str:
    """The last sentence, or what follows a colon or the last comma, first; a sentence behind it where there is none."""
    for border in (r"(?<=[.?!:])\s+", r",\s+"):
        *others, last = re.split(border, question)
        if others:
            return " ".join((last, *others))
    return f"{question} That is the question."


def changed(question: str, which: int) -> str:
    """One of its numbers is another: 1 more, or 1 less behind a 9, so that it is as long."""
    numbers = list(re.finditer(r"\d+", question))
    if not numbers:
        return f"Not {question}"
    number = numbers[which]
    value = int(number[0]) + (-1 if number[0].endswith("9") else 1)
    return question[: number.start()] + str(value) + question[number.end() :]


class Template(NamedTuple):
    """One way to put a question, and how far it goes from the question as it stood (an index of `LEVELS`)."""

    name: str
    level: int
    rewrite: Callable[[str], str]


TEMPLATES = (
    Template("no last mark", 0, remarked),
    Template("a word in front", 0, lambda question: f"Okay. {question}"),
    Template("other verbs", 1, reworded),
    Template("a request in front", 1, lambda question: f"Please work this out. {question}"),
    Template("last sentence first", 2, reordered),
    Template("more context", 2, lambda question: f"I have two minutes for this. {question}"),
    Template("first number changed", 3, lambda question: changed(question, 0)),
    Template("last number changed", 3, lambda question: changed(question, -1)),
)


class Row(NamedTuple):
    """One question in one phrasing.

    Attributes:
        question: Its id.
        template: Index of `TEMPLATES`.
        on_root: The greedy answer on the KV of the question as it stood.
        on_phrasing: The greedy answer on the phrasing.
        target: The question's own answer.
        signals: What might tell whether these agree, in the order of `SIGNALS`.
        phrasing_len: Tokens of the phrasing behind what it begins with as the question does.
        opening_len: Tokens of the branch's own opening.
        num_decoded: Tokens that were written on the phrasing.
    """

    question: str
    template: int
    on_root: str | None
    on_phrasing: str | None
    target: str
    signals: list[float]
    phrasing_len: int
    opening_len: int
    num_decoded: int


class Phraser:
    """Writes answers on the question's KV and on phrasings, and measures how alike these are.

    Which opening goes with which template turns from question to question: the gate sees of a branch its opening alone,
    and must not know the template by it.

    Args:
        lab: Has the model as `WORKER`.
        model: The same model; its hidden states and embeddings are read here.
        openings: How branches begin.
        max_tokens: Budget of a branch.
        ending: Asks every branch for its answer, which stands up to the end of the line or the next `$`; None: answers
            are extracted.
    """

    def __init__(
        self, lab: Lab, model: str, openings: Sequence[str], max_tokens: int, ending: str | None = None
    ) -> None:
        self._lab = lab
        self._network: Any = load_model(model, "float32", "cpu", "sdpa").network
        self._openings = [lab.prompting.encode(opening) for opening in openings]
        self._max_tokens = max_tokens
        self._ending = ending

    def rows(self, samples: Sequence[Example], first: int = 0) -> list[Row]:
        """Every template of each question.

        Args:
            samples: The questions.
            first: How many came before them.
        """
        texts = [[template.rewrite(sample.prompt) for template in TEMPLATES] for sample in samples]
        roots = [self._prompt(sample.prompt) for sample in samples]
        phrasings = [[self._prompt(text) for text in own] for own in texts]
        turns = [[(first + n + t) % len(self._openings) for t in range(len(TEMPLATES))] for n in range(len(samples))]
        # A branch that stays on the root is the same whatever its phrasing: one of each opening is enough.
        on_root = [self._task(root, [[*root, root[-1]]] * len(self._openings), self._openings, -1.0) for root in roots]
        exact = [
            self._task(root, own, [self._openings[opening] for opening in turn])
            for root, own, turn in zip(roots, phrasings, turns, strict=True)
        ]
        self._lab.ask(WORKER, [*on_root, *exact])
        kept, alone = self._answers(on_root), self._answers(exact)
        found = []
        for n, sample in enumerate(samples):
            states = self._last_states(roots[n])
            for t, opening in enumerate(turns[n]):
                similarity = (on_root[n].similarities or [])[opening]
                read = layer_weighted_similarity(self._last_states(phrasings[n][t])[None], states)[0]
                words = self._alike(sample.prompt, texts[n][t])
                shared = sum(
                    1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(roots[n], phrasings[n][t], strict=False))
                )
                found.append(
                    Row(
                        sample.id,
                        t,
                        kept[n][opening],
                        alone[n][t],
                        sample.target,
                        [similarity, float(read), *words],
                        len(phrasings[n][t]) - shared,
                        len(self._openings[opening]),
                        len((exact[n].output_tokens or [])[t]),
                    )
                )
        return found

    def _prompt(self, question: str) -> list[int]:
        task = GenerationTask.create_from_prompt(question)
        self._lab.prompting.apply(task)
        return list(task.input_tokens or ())

    def _task(
        self, root: list[int], phrasings: list[list[int]], suffixes: list[list[int]], least: float | None = None
    ) -> BranchTask:
        return BranchTask(
            prefix_tokens=root,
            phrasings=phrasings,
            suffixes=suffixes,
            max_tokens=self._max_tokens,
            temperature=0.0,
            least_similarity=least,
        )

    def _answers(self, tasks: Sequence[BranchTask]) -> list[list[str | None]]:
        """The answer of each branch."""
        texts = [task.outputs or [] for task in tasks]
        if self._ending is None:
            return [[extract(text) for text in own] for own in texts]
        ending = self._lab.prompting.encode(self._ending)
        asked = [
            [
                GenerationTask(
                    input_tokens=[*prefix, *suffix, *self._open(ids), *ending], max_tokens=ANSWER_LEN, temperature=0.0
                )
                for prefix, suffix, ids in zip(
                    prefixes_of(task, task.on_prefix), task.suffixes, task.output_tokens or [], strict=True
                )
            ]
            for task in tasks
        ]
        self._lab.ask(WORKER, [branch for own in asked for branch in own])
        return [[re.split(r"[$\n]", branch.output_str or "")[0].strip(" .,") for branch in own] for own in asked]

    def _open(self, token_ids: list[int]) -> list[int]:
        """What was written, without the token that ended it."""
        is_ended = token_ids and not self._lab.prompting.decode(token_ids[-1:])
        return token_ids[:-1] if is_ended else token_ids

    def _last_states(self, token_ids: list[int]) -> npt.NDArray[np.float64]:
        """Of the last token after each layer, shape (layers, width)."""
        import torch

        with torch.inference_mode():
            states = self._network(torch.tensor([token_ids]), output_hidden_states=True).hidden_states
        return np.stack([state[0, -1].double().numpy() for state in states[1:]])

    def _alike(self, question: str, text: str) -> tuple[float, float]:
        """Two figures that cost no pass: the cosine of mean input embeddings, and the share of tokens in common."""
        import torch

        ids, others = (self._lab.prompting.encode(words) for words in (question, text))
        with torch.inference_mode():
            table = self._network.get_input_embeddings().weight
            means = [table[torch.tensor(words)].double().mean(0) for words in (ids, others)]
            cosine = torch.nn.functional.cosine_similarity(*means, dim=0).item()
        return cosine, 2 * (Counter(ids) & Counter(others)).total() / (len(ids) + len(others))


def shuffled(samples: Sequence[Example], num: int, seed: int) -> list[Example]:
    """So many of the questions that hold no drawing, which a model would have to read as code."""
    plain = [sample for sample in samples if "[asy]" not in sample.prompt]
    return random.Random(seed).sample(plain, min(num, len(plain)))
