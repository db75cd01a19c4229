"""What foretells how many samples a question needs? Certaindex, length, log-probability, and their combination.

    python -m benchmarks.studies.signal_study --samples runs/votes/samples.jsonl --seed 0

At every detection knob (samples looked at) each signal is correlated with the samples that the question needs, the
fewest from which on its vote is right: Pearson's r and Kendall's tau, 95 % intervals from resampling whole questions.
As in the paper that is measured on solvable questions: those whose vote of all samples is right, in every order. The
linear combination is fitted on half of the questions and correlated on the other half, and the other way
round, so that it is not judged on what it was fitted to. Without a file the votes are simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.provenance import DATA
from benchmarks._lib.report import Report
from benchmarks._lib.signals import correlation, fit_combination
from benchmarks._lib.vote_replays import read_votes, shuffled
from benchmarks.studies.vote_replay import simulated
from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote

KNOBS = (2, 3, 4, 5, 6, 8, 10, 12)
NUM_RESAMPLES = 200
Floats = npt.NDArray[np.float64]


def signals_at(knob: int, orders: Sequence[Sequence[LabelledVote]]) -> dict[str, Floats]:
    """Each signal after `knob` samples, shape [num_questions, num_orders]."""
    found = {
        "certaindex": [[entropy_certaindex(each.classes[:knob]) for each in question] for question in orders],
        "mean length": [[float(np.mean(each.lengths[:knob])) for each in question] for question in orders],
    }
    if orders[0][0].logprobs is not None:
        found["mean log-probability"] = [
            [float(np.mean(list(each.logprobs or ())[:knob])) for each in question] for question in orders
        ]
    return {name: np.array(values) for name, values in found.items()}


def combined(signals: dict[str, Floats], needed: Floats, rng: np.random.Generator) -> Floats:
    """The linear combination, each half of the questions predicted by the fit on the other."""
    values = np.empty_like(needed)
    order = rng.permutation(len(needed))
    first, second = order[: len(order) // 2], order[len(order) // 2 :]
    for fitted_on, predicted in ((first, second), (second, first)):
        fit = fit_combination(
            {name: signal[fitted_on].ravel().tolist() for name, signal in signals.items()},
            needed[fitted_on].ravel().tolist(),
        )
        flat = fit.predict({name: signal[predicted].ravel().tolist() for name, signal in signals.items()})
        values[predicted] = flat.reshape(needed[predicted].shape)
    return values


def report_correlation(report: Report, name: str, signal: Floats, needed: Floats, rng: np.random.Generator) -> None:
    """Correlation over questions and orders, with its interval."""
    found = correlation(signal.ravel().tolist(), needed.ravel().tolist())
    drawn = []
    for _ in range(NUM_RESAMPLES):
        chosen = rng.integers(len(needed), size=len(needed))
        drawn.append(correlation(signal[chosen].ravel().tolist(), needed[chosen].ravel().tolist()))
    low, high = np.nanquantile(np.array(drawn), (0.025, 0.975), axis=0)
    report.figure(f"{name}: Pearson", found.pearson, float(low[0]), float(high[0]))
    report.figure(f"{name}: Kendall", found.kendall, float(low[1]), float(high[1]))


@benchmark("studies.signal_study --samples runs/votes/samples.jsonl")
@click.option("--samples", type=DATA, help="Labelled samples.")
@size("--num_simulated", 200, quick=20, help="Questions that are simulated where there is no file.", least=2)
@size("--num_orders", 10, quick=2, help="Orders of each question.")
@size("--num_knobs", len(KNOBS), quick=2, help="Detection knobs.")
def main(report: Report, samples: Path | None, num_simulated: int, num_orders: int, num_knobs: int) -> None:
    """What foretells how many samples a question needs? Certaindex, length, log-probability, and their combination."""
    votes = simulated(num_simulated, report.rng) if samples is None else read_votes(samples)
    orders = shuffled(votes, num_orders, report.rng)
    needs = [[each.samples_needed() for each in question] for question in orders]
    solvable = [index for index, question in enumerate(needs) if None not in question]
    if len(solvable) < 4:
        raise click.UsageError(f"{len(solvable)} of {len(votes)} questions are solvable; at least 4 are needed")
    orders, needed = [orders[index] for index in solvable], np.array([needs[index] for index in solvable], dtype=float)
    report.setting |= {"questions": len(votes), "samples_a_question": len(votes[0].classes)}
    report.figure("solvable questions", len(solvable))
    report.figure("samples needed, mean", float(needed.mean()))
    knobs = [knob for knob in KNOBS[:num_knobs] if knob < min(len(each.classes) for each in votes)]
    for knob in track(knobs, "knobs"):
        signals = signals_at(knob, orders)
        signals["linear combination"] = combined(signals, needed, report.rng)
        for signal, values in signals.items():
            report_correlation(report, f"{signal} at {knob}", values, needed, report.rng)


if __name__ == "__main__":
    main()
