"""Votes that weigh their samples and stop early, on recorded samples: lengths, and probabilities of asked answers.

    python -m benchmarks.studies.weighted_stops --data FOLDER --part lengths --json

*Lengths*: `LeaderChange` on votes by `shortness`, and by the inverse square of lengths capped at four times the
question's mean, beside the same rule on counts. *Asked*: chains of Gemma-4 that are cut at a share of the mean length
and asked for their answer; votes by the probability of that answer, with the rule and without.

Each set has a developers' part and a part kept back: AIME24 against AIME25 and HMMT25, and else half of the questions
(and runs) by their name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.report import Report
from benchmarks.studies.autotts import read_chains
from benchmarks.studies.real import (
    AIME,
    GEMMA,
    GPQA,
    R1_AT_16,
    SELECTED_SET,
    SETS,
    TASKS,
    add_over,
    add_row,
    halves,
    only,
    simulated_recording,
)
from scaffolding_ext.controllers.vote.allocation.leader_change import LeaderChange
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.logs.samples import RecordedQuestion, Recording
from scaffolding_ext.evaluation.tune.endings import Cut, Ending, Whole
from scaffolding_ext.evaluation.tune.replay import Replay
from scaffolding_ext.evaluation.tune.space import ASKED, Setting

QWEN3 = "qwen3_chains.jsonl.gz"
SHORTNESS, SQUARE = "shortness", "shortness squared, capped"
PARTS = ("developers'", "kept back")
SHARES = (0.6, 0.4, 0.2)  # of the mean chain, at which chains are cut


class Part(NamedTuple):
    """Questions of a set: the developers', or those kept back."""

    name: str
    recording: Recording


def parts_of(data: Path | None, num_simulated: int, rng: np.random.Generator) -> Iterator[Part]:
    if data is None:
        recording = simulated_recording(num_simulated, rng)
        yield from (Part(f"simulated, {name}", half) for name, half in zip(PARTS, halves(recording), strict=True))
        return
    asked = list(read_chains(data / QWEN3))
    for name, is_kept in zip(PARTS, (False, True), strict=True):
        questions = [
            RecordedQuestion(
                each.question,
                each.model,
                each.task,
                np.array([-1 if chain.answer == each.no_answer else chain.answer for chain in each.chains[:64]]),
                np.array([chain.answer == each.target for chain in each.chains[:64]]),
                each.target,
                np.array([chain.num_tokens for chain in each.chains[:64]]),
                missing=frozenset({"seconds", "logprobs", "rewards", "looks"}),
            )
            for each in asked
            if (each.task != "aime24") is is_kept
        ]
        yield Part(f"Qwen3, 64, {name}", Recording(questions, [QWEN3], "sha256:benchmark"))
    for title in (AIME, GPQA, R1_AT_16, "gpt-4o-mini, GSM8K, 40"):
        file, task, num_samples = SETS[title]
        recording = read_recording([data / file], task=task, num_samples=num_samples)
        yield from (Part(f"{title}, {name}", half) for name, half in zip(PARTS, halves(recording), strict=True))


def add_lengths(report: Report, part: Part) -> None:
    """Add the rule on counts and on weights, and all samples by weight."""
    plays, rule, num_samples = Replay(part.recording), LeaderChange(), part.recording.num_samples
    tokens = np.maximum(1, plays.votes.samples.tokens).astype(float)
    squares = tokens**-2
    capped = np.minimum(squares, 4 * squares.mean(axis=1, keepdims=True))
    weights = plays.votes.samples.weights
    assert isinstance(weights, dict)
    weights[SQUARE] = capped
    report.figure(f"{part.name}: questions", len(part.recording.questions))
    plain = {"all": plays.full, "stopped": plays.play(Setting(Whole(), num_samples, rule))}
    add_row(report, f"{part.name}: stopped by counts", plain["stopped"], plays)
    for weight in (SHORTNESS, SQUARE):
        for name, stop in (("all", None), ("stopped", rule)):
            ours = plays.play(Setting(Whole(), num_samples, stop, weight))
            add_row(report, f"{part.name}: {name} by {weight}", ours, plays)
            add_over(report, f"{part.name}: {name} by {weight}: points over counts", ours, plain[name], plays)


def add_asked(report: Report, part: Part) -> None:
    """Add votes of cut chains by the probability of their answer, with a stop and without, beside plain ones."""
    plays, rule, num_samples = Replay(part.recording), LeaderChange(), part.recording.num_samples
    mean = float(np.mean([looks.length for each in part.recording.questions for looks in each.looks or ()]))
    endings: Mapping[str, Ending] = {
        "whole chains": Whole(is_asked=True),
        **{f"cut at {share:.0%}": Cut(round(share * mean)) for share in SHARES},
    }
    report.figure(f"{part.name}: questions", len(part.recording.questions))
    for title, ending in endings.items():
        for name, stop in (("all", None), ("stopped", rule)):
            weighed, counted = (plays.play(Setting(ending, num_samples, stop, weight)) for weight in (ASKED, None))
            for said, played in ((f"{name} by probability", weighed), (f"{name} by counts", counted)):
                add_row(report, f"{part.name}: {title}: {said}", played, plays)
            add_over(report, f"{part.name}: {title}: {name}: points over counts", weighed, counted, plays)


def gemma_parts(data: Path | None, num_simulated: int, rng: np.random.Generator) -> Iterator[Part]:
    """Yield the parts of the selected questions of Gemma-4; chains of a question are its samples."""
    if data is None:
        yield from parts_of(None, num_simulated, rng)
        return
    for title, task in TASKS.items():
        recording = only(read_recording([data / GEMMA], task=task, run=SELECTED_SET, num_samples=10), SELECTED_SET)
        yield from (
            Part(f"Gemma-4, {title}, {name}", half) for name, half in zip(PARTS, halves(recording), strict=True)
        )


@benchmark("studies.weighted_stops --data FOLDER --part lengths")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of the recordings.")
@click.option("--part", type=click.Choice(["lengths", "asked"]), default="lengths", show_default=True)
@size("--num_simulated", 100, quick=24, help="Questions that are simulated where there is no folder.", least=8)
def main(report: Report, data: Path | None, part: str, num_simulated: int) -> None:
    """Weights with an early stop, on developers' and kept-back parts."""
    parts, add = (parts_of, add_lengths) if part == "lengths" else (gemma_parts, add_asked)
    for each in track(list(parts(data, num_simulated, report.rng)), part):
        add(report, each)


if __name__ == "__main__":
    main()
