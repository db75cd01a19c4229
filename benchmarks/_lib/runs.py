"""Stacks that run the same problems, side by side: plain chains, a fixed cut and DynasorCoT, drawn or greedy."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from rich.progress import Progress

from benchmarks._lib.report import Report
from scaffolding_ext import load_stack
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.logs.samples import Recording
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.evaluation.run.record_chain import recording_stack
from scaffolding_ext.evaluation.run.records import Record, record_writer
from scaffolding_ext.evaluation.run.run_folder import SAMPLES, claimed
from scaffolding_ext.evaluation.run.runner import evaluate
from scaffolding_ext.evaluation.run.session import Session
from scaffolding_ext.evaluation.run.summary import Summary, summarize
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.stack.config import StackConfig

PLAIN, CUT, DYNASOR = "plain CoT", "fixed cut", "DynasorCoT"
GREEDY = ", greedy"
STACKS = {  # the stack file of each, and what bounds its chains
    PLAIN: ("configs:native", "controller.args.sampling_params.max_tokens"),
    DYNASOR: ("configs:dynasor_cot", "controller.args.max_tokens"),
    CUT: ("configs:budget_forcing", "controller.args.thinking_tokens"),
}
TEMPERATURE = 0.7
MAX_TOKENS = 1200
FORCED_LEN = 4  # tokens of a forced answer, about: what a cut decodes beyond its budget


class Run(NamedTuple):
    """One method on all problems.

    Attributes:
        records: In the order of the problems.
        seconds: Wall-clock time of the whole run.
    """

    records: list[Record]
    seconds: float

    @property
    def summary(self) -> Summary:
        return summarize(self.records)

    @property
    def correct(self) -> list[float]:
        return [float(bool(record.correct)) for record in self.records]

    @property
    def decoded(self) -> list[int]:
        return self._tokens("decoded")

    @property
    def computed(self) -> list[int]:
        return self._tokens("decoded", "prefilled")

    def _tokens(self, *kinds: str) -> list[int]:
        return [sum(record.ledger["total"][kind] for kind in kinds) for record in self.records]


def run_stack(
    name: str, stack: str | Mapping[str, Any], samples: Sequence[Example], bars: Progress, overrides: Sequence[str] = ()
) -> Run:
    """Run a stack on the samples."""
    bar = bars.add_task(name, total=len(samples))
    with load_stack(stack, overrides=overrides) as llm:
        return timed_run(llm, samples, lambda record: bars.advance(bar))


def run_in_folder(config: StackConfig, folder: Path) -> None:
    """Run a stack on its dataset; requests that the folder has are not run again.

    Raises:
        click.ClickException: A request failed, or the run was interrupted.
    """
    with claimed(folder, resume=True) as goes_on:
        run = Session(config.for_run(), folder)
        if goes_on:
            run.resume(is_mended=True)
        stopped_by = run.go(lambda words: click.echo(words, err=True))
    if stopped_by is not None or run.tally.first_error is not None:
        raise click.ClickException(f"{folder}: {run.tally.first_error or 'interrupted: give the same command again'}")


def recorded_samples(
    config: StackConfig, folder: Path, *, num_samples: int = 1, probe_every: int = 0, **given: Any
) -> Recording:
    """Samples of a stack, as `eval --epochs --probe_every` records them; `given` goes to `recording_stack`."""
    settings = config.evaluation.model_copy(update={"epochs": num_samples})
    run_in_folder(recording_stack(config, probe_every, **given).model_copy(update={"evaluation": settings}), folder)
    return read_recording([folder], num_samples=num_samples)


def timed_run(
    llm: ScaffoldingLlm, samples: Sequence[Example], on_record: Callable[[Record], object] | None = None
) -> Run:
    """Run the samples on a host.

    Raises:
        click.ClickException: A sample failed.
    """
    started = time.perf_counter()
    records = evaluate(llm, samples, on_record=on_record)
    seconds = time.perf_counter() - started
    failed = [record.error for record in records if record.error is not None]
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(samples)} samples failed; the first: {failed[0]}")
    return Run(records, seconds)


def side_by_side(
    samples: Sequence[Example],
    bars: Progress,
    *,
    seed: int,
    model: str,
    greedy: bool = False,
    max_tokens: int = MAX_TOKENS,
) -> dict[str, Run]:
    """Plain chains, DynasorCoT, and the fixed cut that decodes as many tokens as DynasorCoT did.

    Each runs the same problems with the same seeds: until it stops, DynasorCoT writes the very chain that the plain
    run writes.

    Args:
        samples: The problems.
        bars: Show how far it is.
        seed: Of all requests.
        model: Embedded model or folder.
        greedy: Chains are decoded greedily; the names then end so.
        max_tokens: Of a chain.
    """
    suffix = GREEDY if greedy else ""
    temperature = 0.0 if greedy else TEMPERATURE
    shared = (f"seed={seed}", f"workers.generation.args.model={model}")

    def run(name: str, budget: int) -> Run:
        config, bound = STACKS[name]
        sampling = f"controller.args.sampling_params.temperature={temperature}"
        return run_stack(name + suffix, config, samples, bars, (*shared, sampling, f"{bound}={budget}"))

    plain, dynasor = run(PLAIN, max_tokens), run(DYNASOR, max_tokens)
    cut = run(CUT, matching_budget(plain.decoded, float(np.mean(dynasor.decoded))))
    return {PLAIN + suffix: plain, CUT + suffix: cut, DYNASOR + suffix: dynasor}


def matching_budget(chain_lengths: list[int], mean_tokens: float) -> int:
    """The fixed cut whose mean of decoded tokens comes closest to `mean_tokens` on chains of these lengths."""
    lengths = np.array(chain_lengths)
    budgets = np.arange(1, lengths.max() + 1)
    means = [np.minimum(lengths, b).mean() + FORCED_LEN * (lengths > b).mean() for b in budgets]
    return int(budgets[np.argmin(np.abs(np.array(means) - mean_tokens))])


def add_run(report: Report, name: str, run: Run) -> None:
    """Add a method's accuracy, tokens and seconds."""
    report.share(f"{name}: accuracy", round(sum(run.correct)), len(run.correct))
    report.difference(f"{name}: decoded tokens", run.decoded)
    report.difference(f"{name}: computed tokens", run.computed)
    report.figure(f"{name}: seconds", run.seconds)


def compare_runs(report: Report, name: str, run: Run, base: str, other: Run) -> None:
    """Add what a method gains and saves against another, paired by problem."""
    report.difference(f"{name} against {base}: accuracy, points", run.correct, other.correct, scale=100)
    for kind in ("decoded", "computed"):
        report.saved(f"{name} against {base}: {kind} saved", getattr(run, kind), getattr(other, kind))
    report.figure(f"{name} against {base}: seconds saved", 1 - run.seconds / other.seconds)


def keep_runs(folder: Path, runs: Mapping[str, Run]) -> list[Path]:
    """Write the records of runs, a folder a run as `scaffolding-ext compare` takes them; older ones are replaced."""
    folders = []
    for name, run in runs.items():
        folders.append(folder / name.replace(" ", "_"))
        folders[-1].mkdir(parents=True, exist_ok=True)
        samples = folders[-1] / SAMPLES
        samples.unlink(missing_ok=True)
        with record_writer(samples) as write:
            for record in run.records:
                write(record)
    return folders


def add_side_by_side(report: Report, runs: Mapping[str, Run]) -> None:
    """Drawn and greedy runs of `side_by_side`: each against the plain chains drawn and decoded as its own, and against
    greedy plain chains, which are the baseline that costs nothing; DynasorCoT against both cuts of as many tokens."""
    for name, run in runs.items():
        add_run(report, name, run)
        suffix = GREEDY if name.endswith(GREEDY) else ""
        for base in dict.fromkeys((PLAIN + suffix, PLAIN + GREEDY)):
            if base in runs and base != name:
                compare_runs(report, name, run, base, runs[base])
        if name == DYNASOR + suffix:
            for cut in dict.fromkeys((CUT + suffix, CUT + GREEDY)):
                if cut in runs:
                    compare_runs(report, name, run, cut, runs[cut])
