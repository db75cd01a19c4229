"""Scores of samples as signals: how well they separate right answers from wrong ones, and a router that reads one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scaffolding_ext.evaluation.logs.samples import Floats, Recording
from scaffolding_ext.evaluation.tune.plays import Plays
from scaffolding_ext.stats.intervals import Estimate, paired_bootstrap
from scaffolding_ext.stats.separation import auc_over_all, auc_within

ROUTED_SHARES = (0.25, 0.5)  # shares of the questions that a router sends to the second run
FIRST_CHUNK = "first_chunk"


class SignalQuality(NamedTuple):
    """AUC of a signal with 95 % intervals: within a question, as a vote can use it, and over all samples."""

    within: Estimate
    across: Estimate


class Routed(NamedTuple):
    """Router by question: the share of questions that look hardest to one run gets the vote of another.

    Attributes:
        above_chance: Points above a router that sends as many questions at random.
        tokens: Decoded tokens per question, including the first chunk's if the signal is its score.
    """

    signal: str
    kept_by: str
    sent_to: str
    share: float
    right: Estimate
    above_chance: Estimate
    tokens: float


def signals_of(plays: Plays) -> dict[str, Floats]:
    """Return the scores of the samples by name, higher is better; shape [num_questions, num_samples]."""
    samples = plays.votes.samples
    found = {name: values for name, values in samples.weights.items() if name != "shortness"}
    first = _first_scores(plays.recording)
    return found if first is None else {FIRST_CHUNK: -first, **found}


def _first_scores(recording: Recording) -> Floats | None:
    rows = [
        [chunks[0].score for chunks in each.chunks or () if chunks[0].score is not None] for each in recording.questions
    ]
    return np.array(rows) if all(len(row) == recording.num_samples for row in rows) else None


def qualities_of(plays: Plays) -> dict[str, SignalQuality]:
    """Return the quality of each recorded signal; empty without gold answers."""
    if plays.recording.measure != "accuracy":
        return {}
    correct = plays.votes.samples.correct
    shared = correct.ravel(), np.repeat(np.arange(len(correct)), correct.shape[1])
    return {
        name: SignalQuality(auc_within(scores.ravel(), *shared), auc_over_all(scores.ravel(), *shared))
        for name, scores in signals_of(plays).items()
    }


def routers_of(plays: Plays) -> list[Routed]:
    """Return routers between two runs of the same questions by the first run's first signal; empty for other logs."""
    questions, signals = plays.recording.questions, signals_of(plays)
    runs = list(dict.fromkeys(each.run for each in questions))
    if len(runs) != 2 or not signals or plays.recording.measure != "accuracy":
        return []
    rows = [{(each.task, each.id): row for row, each in enumerate(questions) if each.run == run} for run in runs]
    shared = [key for key in rows[0] if key in rows[1]]
    if len(shared) < 2:
        return []
    kept, sent = (np.array([own[key] for key in shared]) for own in rows)
    name, scores = next(iter(signals.items()))
    tokens = plays.votes.samples.tokens.sum(axis=1).astype(float)
    first = np.zeros(len(shared))
    if name == FIRST_CHUNK:
        first = np.array([sum(own[0].num_draft_tokens for own in questions[row].chunks or ()) for row in kept])
    order = np.argsort(np.argsort(scores[kept].mean(axis=1), kind="stable"), kind="stable")
    found = []
    for share in ROUTED_SHARES:
        is_sent = order < round(share * len(shared))
        right = np.where(is_sent, plays.full.right[sent], plays.full.right[kept])
        by_lot = is_sent.mean() * plays.full.right[sent] + (1 - is_sent.mean()) * plays.full.right[kept]
        spent = float(np.where(is_sent, tokens[sent] + first, tokens[kept]).mean())
        rng = plays.rng(7)
        mean = paired_bootstrap(right, np.zeros_like(right), rng=rng)
        above = paired_bootstrap(100 * right, 100 * by_lot, rng=rng)
        found.append(Routed(name, runs[0], runs[1], share, mean, above, spent))
    return found
