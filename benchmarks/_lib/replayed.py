"""Recorded chains of the embedded models, and the fixed cut that a replayed rule is held against."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import numpy.typing as npt

from benchmarks._lib.chain_replay import Outcome
from benchmarks._lib.recorded_chains import RecordedChain, read_chains, recording_stack
from scaffolding_ext import load_config
from scaffolding_ext.evaluation.run.datasets import Example, load_dataset
from scaffolding_ext.evaluation.run.run_folder import SAMPLES, claimed
from scaffolding_ext.evaluation.run.session import Session
from scaffolding_ext.stack.config import StackConfig

Floats = npt.NDArray[np.float64]
STACK = "configs:dynasor_cot"
SPACING = 16  # tokens between recorded looks


class Level(NamedTuple):
    """A fixed cut that decodes as many tokens as a rule: two neighbours in cost, between which one draws by lot."""

    lower: Outcome
    upper: Outcome
    share: float

    def mixed(self, lower: Floats, upper: Floats) -> Floats:
        """What is expected of each chain."""
        return (1 - self.share) * lower + self.share * upper

    @property
    def right(self) -> Floats:
        """How often it is right, shape [num_chains]."""
        return self.mixed(self.lower.right, self.upper.right)

    def cost(self, name: str) -> Floats:
        """What it costs, shape [num_chains]."""
        return self.mixed(self.lower.costs[name], self.upper.costs[name])


def cut_of_as_many(outcome: Outcome, cuts: Sequence[Outcome]) -> Level:
    """The fixed cut that decodes as many tokens; cuts may stand in any order, and a later one may decode less."""
    cuts = sorted(cuts, key=lambda cut: float(cut.costs["decoded"].mean()))
    means = np.array([cut.costs["decoded"].mean() for cut in cuts])
    wanted = outcome.costs["decoded"].mean()
    upper = int(np.clip(np.searchsorted(means, wanted), 1, len(cuts) - 1))
    step = means[upper] - means[upper - 1]
    share = float(np.clip((wanted - means[upper - 1]) / step, 0, 1)) if step else 1.0
    return Level(cuts[upper - 1], cuts[upper], share)


def record_chains(
    folder: Path, model: str, num_problems: int, seed: int, *, greedy: bool = False
) -> list[RecordedChain]:
    """Chains on held-out problems, looked at everywhere; from the folder where they were recorded before."""
    overrides = ["controller.args.sampling_params.temperature=0"] if greedy else []
    overrides += [
        f"workers.generation.args.model={model}",
        f"seed={seed}",
        f"dataset.num_samples={num_problems}",
        f"dataset.seed={seed}",
    ]
    config = recording_stack(load_config(STACK, overrides).for_run(), SPACING)
    samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=seed)
    return recorded(folder, config, samples)


def recorded(folder: Path, config: StackConfig, samples: Sequence[Example]) -> list[RecordedChain]:
    """Chains of a stack that records them; from the folder where they were recorded before.

    Args:
        folder: Where they are recorded; a run that was interrupted there goes on.
        config: The stack, as `recording_stack` makes it.
        samples: The questions.

    Raises:
        click.ClickException: The run is interrupted.
    """
    with claimed(folder, resume=True) as goes_on:
        run = Session(config, samples, folder)
        if goes_on:
            run.take_up(is_mended=True)
        if run.go(lambda message: click.echo(message, err=True)) is not None:
            raise click.ClickException("interrupted; call again to go on")
    return read_chains(folder / SAMPLES)
