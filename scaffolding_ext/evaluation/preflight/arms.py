"""The chains that a pre-flight compares, by arm, and recorded runs of draft and target as such arms."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from math import log
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from scaffolding_ext.answers import extract
from scaffolding_ext.answers.equality import group
from scaffolding_ext.controllers.vote.voting import elect
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.run.jsonl import read_rows
from scaffolding_ext.evaluation.run.scoring import score

Floats = npt.NDArray[np.float64]
TARGET_ALONE = "target alone"
DRAFT_ALONE = "draft alone"
CHARACTERS = 4  # of a token, where a recording gives texts alone
NUM_ORDERS = 64  # of a question's chains, over which a vote of some of them is averaged


class ArmChunk(NamedTuple):
    """A drafted chunk and its fate.

    Attributes:
        score: Its nonconformity; None where it was not scored.
        num_target_tokens: Tokens of the target in its place, or behind it; 0 where it stands alone.
    """

    turn: int
    score: float | None
    num_draft_tokens: int
    num_target_tokens: int
    taken_over: bool


class ComparedChain(NamedTuple):
    """One chain of an arm.

    Attributes:
        question: Number of its question.
        answer: None where it has none.
        num_draft: Tokens that the draft decoded, rejected ones included.
        num_target: Tokens that the target decoded.
        num_scored: Tokens of the chunks that the target scored.
        num_judged: Tokens that a judge read.
        verdict: P(yes) of a judge; None without one.
        confidence: Geometric mean of the probabilities of its tokens; None where they were not reported.
    """

    question: int
    answer: str | None
    is_right: bool
    num_draft: int
    num_target: int
    num_scored: int = 0
    num_judged: int = 0
    chunks: Sequence[ArmChunk] = ()
    verdict: float | None = None
    confidence: float | None = None

    @property
    def first_score(self) -> float | None:
        """The score of its first chunk, which a router reads."""
        return self.chunks[0].score if self.chunks else None

    @property
    def score(self) -> float | None:
        """The mean score of its chunks; None where none was scored."""
        scores = [chunk.score for chunk in self.chunks if chunk.score is not None]
        return float(np.mean(scores)) if scores else None


class SecondsPerToken(NamedTuple):
    """What a token costs: decoded by the draft, decoded by the target, scored, and read by a judge.

    Attributes:
        unit: What the others are counted in: `"s"`, or `"target tokens"` where no time is known.
    """

    draft: float
    target: float
    scored: float
    judged: float
    unit: str = "s"

    def of(self, chain: ComparedChain) -> float:
        return (
            self.draft * chain.num_draft
            + self.target * chain.num_target
            + self.scored * chain.num_scored
            + self.judged * chain.num_judged
        )


# Of recorded runs, whose times nobody split by role: an 8B model beside one of 32B, both bound by reading weights.
RECORDED_PRICE = SecondsPerToken(draft=0.25, target=1.0, scored=0.013, judged=0.0, unit="target tokens")


class Arm:
    """The chains of one way to answer, equally many of each question.

    Args:
        name: Such as `"target alone"`.
        chains: Of all questions, which are numbered from 0.
        alpha: Share of the chunks that the target took over, where that was set.

    Attributes:
        by_question: The chains of each question.
        classes: Class of each one's answer, shape of `by_question`; -1 without one.

    Raises:
        ConfigError: A question has no chain.
    """

    def __init__(self, name: str, chains: Sequence[ComparedChain], alpha: float | None = None) -> None:
        self.name, self.alpha = name, alpha
        num_questions = 1 + max((chain.question for chain in chains), default=-1)
        own = [[chain for chain in chains if chain.question == number] for number in range(num_questions)]
        least = min(map(len, own), default=0)
        if not least:
            raise ConfigError(f"has no chain of some question in the arm {name!r}; give each question at least one")
        self.by_question = [each[:least] for each in own]
        self.classes = [group([chain.answer for chain in each]) for each in self.by_question]

    @property
    def chains(self) -> list[ComparedChain]:
        return [chain for each in self.by_question for chain in each]

    @property
    def num_chains(self) -> int:
        return len(self.by_question[0])

    def right(self, num_chains: int, weighed: str | None = None) -> Floats:
        """How often a vote of so many chains is right, for each question; the mean over orders of the chains.

        Args:
            weighed: `"verdict"` weighs each vote by the judge's verdict; None weighs all alike.
        """
        rng = np.random.default_rng(0)
        orders = [rng.permutation(self.num_chains)[:num_chains].tolist() for _ in range(NUM_ORDERS)]
        found = []
        for chains, classes in zip(self.by_question, self.classes, strict=True):
            votes = [
                elect([classes[i] for i in order], [chains[i].verdict or 0.0 for i in order] if weighed else None)
                for order in orders
            ]
            rights = [
                winner >= 0 and chains[order[first]].is_right
                for (winner, first), order in zip(votes, orders, strict=True)
            ]
            found.append(float(np.mean(rights)))
        return np.array(found)

    def best_by(self, attribute: str, num_chains: int) -> Floats:
        """How often the chain of the highest verdict or confidence is right, for each question."""
        rng = np.random.default_rng(0)
        orders = [rng.permutation(self.num_chains)[:num_chains].tolist() for _ in range(NUM_ORDERS)]
        return np.array(
            [
                np.mean([max((c[i] for i in o), key=lambda e: getattr(e, attribute) or 0.0).is_right for o in orders])
                for c in self.by_question
            ]
        )

    def cost(self, num_chains: int, price: SecondsPerToken) -> float:
        """The mean cost of so many chains of a question."""
        return num_chains * float(np.mean([price.of(chain) for chain in self.chains]))


def read_runs(path: Path) -> Arm:
    """A recorded arm: a JSONL file with a row a chain.

    A row has `question`, `answer` (gold) and `turns`: of each chunk `draft` (its text), `ppl` (its perplexity under the
    target; null where it was not scored) and `target` (what the target wrote, or null); `draft_tokens` and
    `target_tokens` where they were counted, else 4 characters count as a token.

    Raises:
        ConfigError: A row is another, or questions have no chain.
    """
    numbers: dict[str, int] = {}
    chains = []
    for place, row, *_ in read_rows(path, "recording", json.loads):
        try:
            number = numbers.setdefault(row["question"], len(numbers))
            chunks = [_chunk(turn, drafted) for turn, drafted in enumerate(row["turns"])]
            text = "".join((drafted["draft"] or "") + (drafted.get("target") or "") for drafted in row["turns"])
            gold = str(row["answer"])
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{path}, row {place}: {error!r}; a chain of draft and target has question, answer and turns "
                "(draft, ppl, target)"
            ) from error
        answer = extract(text)
        chains.append(
            ComparedChain(
                number,
                answer,
                score(answer, gold).correct,
                sum(chunk.num_draft_tokens for chunk in chunks),
                sum(chunk.num_target_tokens for chunk in chunks),
                sum(chunk.num_draft_tokens for chunk in chunks if chunk.score is not None),
                chunks=chunks,
            )
        )
    return Arm(path.name.split(".")[0], chains)


def _chunk(turn: int, drafted: Mapping[str, Any]) -> ArmChunk:
    ppl, written = drafted["ppl"], drafted.get("target") or ""
    return ArmChunk(
        turn,
        None if ppl is None else log(ppl),
        drafted.get("draft_tokens") or -(-len(drafted["draft"]) // CHARACTERS),
        drafted.get("target_tokens") or -(-len(written) // CHARACTERS),
        bool(written),
    )
