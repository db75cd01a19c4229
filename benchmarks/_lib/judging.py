"""What an embedded model says of chains and of their steps: verdicts of one token, and written checks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks._lib.chains import Author, Chain
from scaffolding_ext.evaluation.run.datasets import Sample
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.request.seeds import derive_seed
from scaffolding_ext.tinylm.chains import read_chain
from scaffolding_ext.tinylm.grammar import CHECK, NO, STEP_VERDICT, VERDICT, YES, Problem, sample_problem
from scaffolding_ext.tinylm.tokenizer import END

CHECK_LEN = 256  # tokens of a written check at most
NUM_RIGHT_STEPS = 2  # right steps of a chain that are judged, beside all wrong ones


class Check(NamedTuple):
    """A check that the model has written: P(YES) where its verdict stands, and the tokens up to there."""

    score: float
    num_tokens: int


class JudgedStep(NamedTuple):
    """A step of a chain: P(YES), and whether it follows from the one before it."""

    score: float
    is_right: bool


def problems_of(samples: Sequence[Sample], seed: int, kind: str | None = None) -> dict[str, Problem]:
    """The problem of each question of an embedded dataset, drawn again."""
    rng = random.Random(seed)
    problems: dict[str, Problem] = {}
    while not {sample.prompt for sample in samples} <= problems.keys():
        problem = sample_problem(rng, "held_out", kind)
        problems[problem.question] = problem
    return problems


class Judge(Author):
    """An author that is asked what is right, too."""

    def verdicts(self, chains: Sequence[Chain]) -> list[float]:
        """P(YES) of each chain with the answer that it ends in."""
        question = self._ids(VERDICT)
        return self._verified([self._closed_ids(chain) + question for chain in chains])

    def checks(self, chains: Sequence[Chain]) -> list[Check]:
        """The greedy check of each chain's answer, and P(YES) where its verdict stands, or at its end."""
        question = self._ids(CHECK)
        asked = [
            GenerationTask(input_tokens=self._closed_ids(chain) + question, max_tokens=CHECK_LEN, temperature=0.0)
            for chain in chains
        ]
        ends = set(self._ids(YES + NO + END))
        written = [task.output_tokens or [] for task in self._lab.ask(self._tag, asked)]
        kept = [list(itertools.takewhile(lambda token: token not in ends, ids)) for ids in written]
        scores = self._verified([(task.input_tokens or []) + ids for task, ids in zip(asked, kept, strict=True)])
        return [Check(score, len(ids) + 1) for score, ids in zip(scores, kept, strict=True)]

    def judged_steps(self, chains: Sequence[Chain], problems: Mapping[str, Problem]) -> list[list[JudgedStep]]:
        """P(YES) of every wrong and of `NUM_RIGHT_STEPS` right steps of each chain.

        Args:
            chains: What is judged.
            problems: Of each question.
        """
        branches, labels = [], []
        for chain in chains:
            thinking, position = chain.text.partition("</think>")[0], 0
            ends: dict[bool, list[int]] = {True: [], False: []}
            for segment in read_chain(problems[chain.sample.prompt], thinking):
                position += len(segment.text)
                if segment.is_right is not None:
                    ends[segment.is_right].append(position - len("\n"))
            rng = random.Random(derive_seed(0, chain.sample.id, len(chain.ids)))
            judged = [(end, False) for end in ends[False]]
            judged += [(end, True) for end in rng.sample(ends[True], min(NUM_RIGHT_STEPS, len(ends[True])))]
            branches += [chain.prompt_ids + self._ids(thinking[:end] + STEP_VERDICT) for end, _ in judged]
            labels.append([is_right for _, is_right in judged])
        scores = iter(self._verified(branches))
        return [[JudgedStep(next(scores), is_right) for is_right in own] for own in labels]

    def _verified(self, branches: Sequence[list[int]]) -> list[float]:
        yes, no = self._ids(YES)[0], self._ids(NO)[0]
        tasks = [VerifyTask(branches=[branch], yes_token=yes, no_token=no) for branch in branches]
        return [float((task.scores or [0.5])[0]) for task in self._lab.ask(self._tag, tasks)]

    def _closed_ids(self, chain: Chain) -> list[int]:
        end = self._ids(END)
        return chain.prompt_ids + [token for token in chain.ids if token not in end]
