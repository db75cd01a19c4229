"""Stopping rules on recorded chains, each beside the fixed cut of as many tokens: shared by studies of real models and
of the embedded ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from benchmarks._lib.power import required_num_questions
from benchmarks._lib.report import Report
from scaffolding_ext.evaluation.logs.samples import Floats, Recording
from scaffolding_ext.evaluation.tune.costs import Cost
from scaffolding_ext.evaluation.tune.endings import Cut, Ending, RecordedChains, Stopped, Whole, endings_to_try

NUM_CUTS = 40
NUM_FOLDS = 5
BAR = -0.02  # right answers over the cut, whose lower end the power is about
ANY_RULE = "best of all rules"


class Ended(NamedTuple):
    """Chains that ended in one way: a value a question, the mean of its chains."""

    right: Floats
    decoded: Floats
    computed: Floats

    def cost(self, name: str) -> Floats:
        """Tokens, decoded or computed."""
        return self.decoded if name == "decoded" else self.computed


def ended(chains: RecordedChains, ending: Ending, cache: Cost = "decoded") -> Ended:
    """The chains of a recording, had they ended in this way."""
    samples = chains.ended(ending)
    means = (samples.correct, samples.costs["decoded"], samples.costs[cache])
    return Ended(*(np.asarray(each, dtype=float).mean(axis=1) for each in means))


def fixed_cuts(recording: Recording, cache: Cost = "decoded") -> list[Ended]:
    """Cuts at equal distances up to the longest chain, and last the whole chains."""
    longest = max(looks.length for each in recording.questions for looks in each.looks or ())
    places = np.unique(np.linspace(longest / NUM_CUTS, longest, NUM_CUTS).round().astype(int)).tolist()
    chains = RecordedChains(recording)
    return [*(ended(chains, Cut(place), cache) for place in places), ended(chains, Whole(), cache)]


def cut_of_as_many(cuts: Sequence[Ended], cost: str, wanted: float) -> Floats:
    """The share of right answers of a cut whose mean cost is `wanted`: by lot one of the two nearest cuts."""
    means = np.array([cut.cost(cost).mean() for cut in cuts])
    order = np.argsort(means, kind="stable")
    place = int(np.clip(np.searchsorted(means[order], wanted), 1, len(cuts) - 1))
    low, high = order[place - 1], order[place]
    width = means[high] - means[low]
    share = float(np.clip((wanted - means[low]) / width, 0, 1)) if width > 0 else 0.0
    mixed: Floats = (1 - share) * cuts[low].right + share * cuts[high].right
    return mixed


class Judged(NamedTuple):
    """A rule on questions that did not choose its setting, beside cuts that decode and that compute as much."""

    ended: Ended
    decodes_as_much: Floats
    computes_as_much: Floats


def judge(recording: Recording, endings: Sequence[Ending], cuts: Sequence[Ended], rng: np.random.Generator) -> Judged:
    """Each fold of the questions under the setting that is furthest above its cut on the other folds."""
    judged, chains = [], RecordedChains(recording)
    for ending in endings:
        each = ended(chains, ending)
        judged.append(
            Judged(each, *(cut_of_as_many(cuts, cost, each.cost(cost).mean()) for cost in ("decoded", "computed")))
        )
    above = np.stack([each.ended.right - each.decodes_as_much for each in judged])
    folds = rng.permutation(above.shape[1]) % min(NUM_FOLDS, above.shape[1])
    best = np.array([int(np.argmax(above[:, folds != fold].mean(axis=1))) for fold in range(folds.max() + 1)])[folds]
    rows = np.arange(len(best))

    def picked(columns: Sequence[Floats]) -> Floats:
        column: Floats = np.stack(columns)[best, rows]
        return column

    return Judged(
        Ended(*(picked([getattr(each.ended, name) for each in judged]) for name in Ended._fields)),
        picked([each.decodes_as_much for each in judged]),
        picked([each.computes_as_much for each in judged]),
    )


def rules_of(recording: Recording) -> dict[str, list[Ending]]:
    """The settings of every stopping rule that can be played, by list; each looks at every recorded place."""
    lists = {
        title: [each for each in own.endings if isinstance(each, Stopped)]
        for title, own in endings_to_try(recording).items()
        if not own.is_nested
    }
    return {title: own for title, own in lists.items() if own}


def add_power(report: Report, row: str, found: Judged) -> None:
    """Add the best rule's lead over a cut of as many tokens, and the questions that would show that it is no worse."""
    name = f"{row}: points over the cut that decodes as much"
    low, differences = report.figures[name]["low"], found.ended.right - found.decodes_as_much
    report.bar(f"{name}, lower end", np.nan if low is None else low, ">", 0.0)
    if np.ptp(differences) > 0:
        needed = required_num_questions(differences, bar=BAR, max_num_questions=100_000, rng=report.rng)
        report.figure(f"{name}: questions for power .9 at {100 * BAR:g} points", np.nan if needed is None else needed)


def add_stops(report: Report, name: str, recording: Recording) -> None:
    """Every stopping rule, cross-fitted, and the cuts."""
    cuts = fixed_cuts(recording)
    whole = cuts[-1]
    report.difference(f"{name}: whole chains: right", whole.right)
    report.difference(f"{name}: whole chains: decoded", whole.decoded)
    lists = rules_of(recording)
    lists[ANY_RULE] = [ending for own in lists.values() for ending in own]
    for title, endings in lists.items():
        found, row = judge(recording, endings, cuts, report.rng), f"{name}: {title}"
        report.difference(f"{row}: points over whole chains", found.ended.right, whole.right, scale=100)
        report.ratio(f"{row}: decoded, share", found.ended.decoded, whole.decoded)
        report.ratio(f"{row}: computed, share", found.ended.computed, whole.computed)
        for cut, right in (("decodes", found.decodes_as_much), ("computes", found.computes_as_much)):
            report.difference(f"{row}: points over the cut that {cut} as much", found.ended.right, right, scale=100)
        if title == ANY_RULE:
            add_power(report, row, found)
    for share in (0.2, 0.4, 0.6, 0.8):
        right = cut_of_as_many(cuts, "decoded", share * float(whole.decoded.mean()))
        report.difference(f"{name}: cut of {share:.0%} of the tokens: points over whole", right, whole.right, scale=100)
