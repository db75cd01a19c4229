"""What foretells how many samples a question needs? Certaindex, length, log-probability, and their combination.

    python -m benchmarks.studies.signal_study --samples runs/votes/samples.jsonl --seed 0

At every detection knob (samples looked at) each signal is correlated with the samples that the question needs, the
fewest from which on its vote no longer changes: Pearson's r and Kendall's tau, 95 % intervals from resampling whole
questions. The linear combination is fitted on half of the questions and correlated on the other half, and the other way
round, so that it is not judged on what it was fitted to. Without a file the votes are simulated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
import numpy.typing as npt
from rich.progress import track

from benchmarks._lib.report import Report, report_options
from benchmarks.studies.vote_replay import simulated
from scaffolding_ext.evaluation.samples import read_votes
from scaffolding_ext.maths.allocation.replay import LabelledVote, shuffled
from scaffolding_ext.maths.allocation.skyline import samples_needed
from scaffolding_ext.maths.certaindex import entropy_certaindex
from scaffolding_ext.maths.signals import correlation, fit_combination

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


@click.command(help=__doc__)
@report_options
@click.option("--samples", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Labelled samples.")
@click.option(
    "--num_orders", type=click.IntRange(min=1), default=10, show_default=True, help="Orders of each question."
)
@click.option("--output_path", type=click.Path(dir_okay=False, path_type=Path), help="JSON file for the figures.")
def main(
    as_json: bool, quick: bool, seed: int, samples: Path | None, num_orders: int, output_path: Path | None
) -> None:
    rng = np.random.default_rng(seed)
    votes = simulated(20 if quick else 200, rng) if samples is None else read_votes(samples)
    num_orders = min(num_orders, 2) if quick else num_orders
    orders = shuffled(votes, num_orders, rng)
    needed = np.array([[samples_needed(each.classes) for each in question] for question in orders], dtype=float)
    name = "simulated" if samples is None else samples.name
    setting = {"seed": seed, "samples": name, "questions": len(votes), "orders": num_orders}
    report = Report("what foretells the samples that a question needs", setting)
    report.figure("samples needed, mean", float(needed.mean()))
    knobs = KNOBS[:2] if quick else tuple(knob for knob in KNOBS if knob < len(votes[0].classes))
    for knob in track(knobs, "knobs", disable=as_json, transient=True):
        signals = signals_at(knob, orders)
        for signal, values in signals.items():
            report_correlation(report, f"{signal} at {knob}", values, needed, rng)
        report_correlation(report, f"linear combination at {knob}", combined(signals, needed, rng), needed, rng)
    if output_path is not None:
        output_path.write_text(json.dumps(report.to_json(), indent=1) + "\n", encoding="utf-8")
    report.show(as_json)


if __name__ == "__main__":
    main()
