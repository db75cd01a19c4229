"""Take-over rules without a guarantee, which conformal p-values are measured against."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scaffolding_ext import require
from scaffolding_ext.controllers.draft_target.chain import Decision, DraftTargetChain
from scaffolding_ext.controllers.draft_target.p_values import leave_one_out_p_values
from scaffolding_ext.controllers.draft_target.take_over import SHARES, TakeOverRule
from scaffolding_ext.controllers.prompting import encode
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.protocol.meta import VERIFY, note
from scaffolding_ext.protocol.task_results import output_of
from scaffolding_ext.protocol.worker import WorkerTag

REFLECTION_WORDS = ("wait", "hmm", "hold", "alternatively", "let me check", "let me double check", "let me redo")
NUM_MARKS = 10  # SpecReason's scale, 0 to 9
GRADE_QUESTION = "\n\nHow far does the last step help to the right answer, from 0 (not at all) to 9? One digit: "
_GRADE_TOKENS = 2  # a digit, and a space before it


class Coin(TakeOverRule):
    """Takes over with a probability, whatever the chunk; at 0 the draft writes alone.

    Args:
        rate: The probability.
        scores: Whether the target scores the chunks all the same: what a rule costs that does not look at them.
    """

    @classmethod
    def settings_to_try(cls, recorded: Sequence[Any] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"coin": [{"rate": share} for share in SHARES]}

    def __init__(self, rate: float = 0.4, scores: bool = False) -> None:
        self.rate = require.number("rate", rate, least=0, most=1)
        self.scores_chunks = scores

    def decide(self, chains: Sequence[DraftTargetChain], rngs: Sequence[np.random.Generator]) -> ControllerGenerator:
        yield from ()
        return [Decision(bool(rng.random() < self.rate), {}) for rng in rngs]


class Ranking(TakeOverRule):
    """Waits for all chunks of a turn, and takes over the strangest share of them.

    Args:
        alpha: The share. Where it is no whole number of chunks, chance decides on one of them.
    """

    @classmethod
    def settings_to_try(cls, recorded: Sequence[Any] = ()) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"ranking": [{"alpha": share} for share in SHARES]}

    def __init__(self, alpha: float = 0.4) -> None:
        self.alpha = require.number("alpha", alpha, least=0, most=1)

    def in_step(self, turn: int) -> bool:
        return True

    def decide(self, chains: Sequence[DraftTargetChain], rngs: Sequence[np.random.Generator]) -> ControllerGenerator:
        yield from ()
        scores = [chain.score for chain in chains if chain.score is not None]
        p_values = leave_one_out_p_values(scores, "random", rngs[0]).tolist()
        return [Decision(p_value <= self.alpha, {"p_value": p_value}, p_value) for p_value in p_values]


class ReflectionWords(TakeOverRule):
    """Takes over where the drafted chunk reflects.

    Args:
        words: Words or phrases of reflection; whole words match.

    Reference: Yang et al., "Speculative Thinking": the large model takes over at reflections.

    Deviation: It looks at a chunk of fixed length, not at paragraphs.
    """

    scores_chunks = False

    @property
    def looks_at(self) -> frozenset[str]:
        return frozenset({"texts"})

    def __init__(self, words: Sequence[str] = REFLECTION_WORDS) -> None:
        self._pattern = re.compile(r"\b(" + "|".join(map(re.escape, words)) + r")\b", re.IGNORECASE)

    def decide(self, chains: Sequence[DraftTargetChain], rngs: Sequence[np.random.Generator]) -> ControllerGenerator:
        yield from ()
        found = [self._pattern.findall(chain.draft_text) for chain in chains]
        return [Decision(bool(words), {"words": [word.lower() for word in words]}) for words in found]


class SpecReasonMarks(TakeOverRule):
    """Takes over where the target marks the chunk below a threshold on a scale from 0 to 9.

    Args:
        threshold: Marks below it are rejected.
        close: Text that has the target write the answer of the chain so far; it ends with the opening brace.
        question: Text behind that answer; it asks the target whether the answer is right.
        yes_token: Id of the first token of a yes.
        no_token: Id of the first token of a no.
        answer_tokens: Largest number of tokens of the answer; the target writes them.

    Reference: Pan et al., "SpecReason": the base model marks each step from 0 to 9, and one below the threshold is
        redone.

    Deviation: The embedded models follow no instruction but give a verdict on an answer: the mark is the tenth in which
        P(yes) lies, asked about the answer that the target reads out of the chain so far.
    """

    scores_chunks = False

    @property
    def looks_at(self) -> frozenset[str]:
        return frozenset({"verdicts"})

    def __init__(
        self,
        threshold: int,
        close: str,
        question: str,
        yes_token: int,
        no_token: int,
        answer_tokens: int = 8,
    ) -> None:
        self.threshold = require.whole("threshold", threshold, 0, NUM_MARKS)
        self._close, self._question = close, question
        self._tokens = require.whole("yes_token", yes_token, 0), require.whole("no_token", no_token, 0)
        self._answer_tokens = require.whole("answer_tokens", answer_tokens)

    def decide(self, chains: Sequence[DraftTargetChain], rngs: Sequence[np.random.Generator]) -> ControllerGenerator:
        decisions = []
        for chain in chains:
            decision = yield from self._marked(chain)
            decisions.append(decision)
        return decisions

    def _marked(self, chain: DraftTargetChain) -> ControllerGenerator:
        asked = chain.with_draft() + self._close
        answer = GenerationTask(
            worker_tag=WorkerTag.TARGET, input_str=asked, max_tokens=self._answer_tokens, temperature=0.0, stop=["}"]
        )
        yield [answer]
        ids = encode(asked + output_of(answer).split("}")[0] + "}." + self._question)
        if ids is None:
            raise ConfigError("marks chunks by token ids, which need the stack's prompting; set it", "rule")
        verdict = VerifyTask(worker_tag=WorkerTag.TARGET, branches=[ids])
        verdict.yes_token, verdict.no_token = self._tokens
        yield [verdict]
        assert verdict.scores is not None, "the worker serves VerifyTask"
        mark = min(NUM_MARKS - 1, int(NUM_MARKS * verdict.scores[0]))
        num_read = len(answer.output_tokens or ())
        return Decision(mark < self.threshold, {"mark": mark, "num_rule_tokens": num_read}, mark)


class SpecReasonScores(TakeOverRule):
    """Has the target grade the drafted chunks from 0 to 9 by a prompt, and takes over below a threshold.

    All chunks of a turn wait for each other, as SpecReason's steps do. A reply without a digit counts as 0.

    Args:
        threshold: Grades below it are rejected.
        question: Text behind the chain that asks for one digit.

    Reference: Pan et al., "SpecReason", arXiv 2504.07891; its threshold is 7.
    Deviation: Chunks have a fixed length.
    """

    scores_chunks = False

    def __init__(self, threshold: int = 7, question: str = GRADE_QUESTION) -> None:
        self.threshold = require.whole("threshold", threshold, 0, NUM_MARKS)
        self.question = question

    def in_step(self, turn: int) -> bool:
        return True

    def decide(self, chains: Sequence[DraftTargetChain], rngs: Sequence[np.random.Generator]) -> ControllerGenerator:
        asked = [
            GenerationTask(
                worker_tag=WorkerTag.TARGET,
                input_str=chain.with_draft() + self.question,
                max_tokens=_GRADE_TOKENS,
                temperature=0.0,
            )
            for chain in chains
        ]
        for task in asked:
            note(task, purpose=VERIFY)
        yield asked
        digits = [re.search(r"\d", output_of(task)) for task in asked]
        grades = [0 if digit is None else int(digit[0]) for digit in digits]
        numbers = [len(task.output_tokens or ()) for task in asked]
        return [
            Decision(grade < self.threshold, {"grade": grade, "num_rule_tokens": number}, grade)
            for grade, number in zip(grades, numbers, strict=True)
        ]
