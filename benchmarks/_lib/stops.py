"""Stopping rules on recorded chains, each beside the fixed cut of as many tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks._lib.report import Report
from scaffolding_ext.evaluation.logs.samples import Floats, Recording
from scaffolding_ext.evaluation.tune.endings import Cut, Ending, RecordedChains, Stopped, Whole, endings_to_try

NUM_CUTS = 40
NUM_FOLDS = 5
ANY_RULE = "best of all rules"


class Ended(NamedTuple):
    """The chains that ended in one way: means of each question, shape [num_questions]."""

    right: Floats
    decoded: Floats


def right_of_as_many(ways: Sequence[Ended], wanted: float) -> Floats:
    """The right answers of a way whose mean of decoded tokens is `wanted`: by lot one of the two nearest ways."""
    means = np.array([each.decoded.mean() for each in ways])
    order = np.argsort(means, kind="stable")
    place = int(np.clip(np.searchsorted(means[order], wanted), 1, len(ways) - 1))
    low, high = order[place - 1], order[place]
    width = means[high] - means[low]
    share = float(np.clip((wanted - means[low]) / width, 0, 1)) if width > 0 else 0.0
    mixed: Floats = (1 - share) * ways[low].right + share * ways[high].right
    return mixed


def ended(chains: RecordedChains, ending: Ending) -> Ended:
    """The chains of a recording, had they ended in this way."""
    samples = chains.ended(ending)
    return Ended(*(np.asarray(each, dtype=float).mean(axis=1) for each in (samples.correct, samples.costs["decoded"])))


def fixed_cuts(recording: Recording) -> list[Ended]:
    """Cuts at equal distances up to the longest chain, and last the whole chains."""
    longest = max(chain.length for each in recording.questions for chain in each.probes or ())
    places = np.unique(np.linspace(longest / NUM_CUTS, longest, NUM_CUTS).round().astype(int)).tolist()
    chains = RecordedChains(recording)
    return [ended(chains, ending) for ending in (*map(Cut, places), Whole())]


class Judged(NamedTuple):
    """A rule on questions that did not choose its setting, and the right answers of a cut that decodes as much."""

    ended: Ended
    of_a_cut: Floats


def judge(recording: Recording, endings: Sequence[Ending], cuts: Sequence[Ended], rng: np.random.Generator) -> Judged:
    """Each fold of the questions under the setting that is furthest above its cut on the other folds."""
    chains = RecordedChains(recording)
    tried = [ended(chains, ending) for ending in endings]
    right, decoded = (np.stack(each) for each in zip(*tried, strict=True))
    of_a_cut = np.stack([right_of_as_many(cuts, each.decoded.mean()) for each in tried])
    folds = rng.permutation(right.shape[1]) % min(NUM_FOLDS, right.shape[1])
    above = [(right - of_a_cut)[:, folds != fold].mean(axis=1) for fold in range(folds.max() + 1)]
    own = np.argmax(above, axis=1)[folds], np.arange(len(folds))
    return Judged(Ended(right[own], decoded[own]), of_a_cut[own])


def rules_of(recording: Recording) -> dict[str, list[Ending]]:
    """The settings of every stopping rule that can be played, by list; each looks at every recorded place."""
    lists = {
        title: [each for each in own if isinstance(each, Stopped) and not each.is_nested]
        for title, own in endings_to_try(recording).items()
    }
    return {title: own for title, own in lists.items() if own}


def add_stops(report: Report, name: str, recording: Recording) -> None:
    """Every stopping rule, cross-fitted, and the cuts."""
    cuts = fixed_cuts(recording)
    whole = cuts[-1]
    report.difference(f"{name}: whole chains: decoded", whole.decoded)
    lists = rules_of(recording)
    lists[ANY_RULE] = [ending for own in lists.values() for ending in own]
    for title, endings in lists.items():
        found, row = judge(recording, endings, cuts, report.rng), f"{name}: {title}"
        report.difference(f"{row}: points over whole chains", found.ended.right, whole.right, scale=100)
        report.ratio(f"{row}: decoded, share", found.ended.decoded, whole.decoded)
        over = f"{row}: points over the cut that decodes as much"
        low = report.difference(over, found.ended.right, found.of_a_cut, scale=100).low
        if title == ANY_RULE:
            report.bar(f"{over}, lower end", low, ">", 0.0)
    for share in (0.2, 0.4, 0.6, 0.8):
        right = right_of_as_many(cuts, share * float(whole.decoded.mean()))
        report.difference(f"{name}: cut of {share:.0%} of the tokens: points over whole", right, whole.right, scale=100)
