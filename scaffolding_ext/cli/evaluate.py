"""`scaffolding-ext eval`: a dataset through a stack; accuracy, tokens and time."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaffolding_ext import __version__
from scaffolding_ext.cli.options import (
    Command,
    Finite,
    OutputPath,
    config_option,
    config_with_dataset,
    dataset_option,
    given,
    json_option,
    limit_option,
    set_option,
    skip_option,
)

if TYPE_CHECKING:
    from scaffolding_ext.evaluation.datasets import Sample
    from scaffolding_ext.evaluation.records import Record
    from scaffolding_ext.evaluation.report import Summary
    from scaffolding_ext.stack.config import StackConfig

_PIPE_WIDTH = 120  # columns, where no terminal says how many there are


@click.command("eval", cls=Command, short_help="Run a dataset: accuracy, tokens, time.")
@config_option
@set_option
@dataset_option
@limit_option
@skip_option
@click.option(
    "--epochs", type=click.IntRange(min=1), default=1, show_default=True, help="How often each sample is run."
)
@click.option("--seed", type=int, help="Seed of the run instead of the stack file's; 0 where neither gives one.")
@click.option("--max_parallel_requests", type=click.IntRange(min=1), help="Requests that run at once.")
@click.option("--request_timeout", type=Finite(min=0, min_open=True), help="Seconds after which a request fails.")
@click.option(
    "--output_path",
    type=OutputPath(is_folder=True),
    help="Folder for samples.jsonl, summary.json and config.yaml.",
)
@click.option(
    "--fail_on_error",
    type=Finite(0, 1),
    default=0.0,
    show_default=True,
    help="Share of the samples that may fail; if more do, the exit code is 1.",
)
@click.option("--dry_run", is_flag=True, help="Check the stack and the dataset; load no model and run nothing.")
@json_option
@click.pass_context
def evaluate(
    ctx: click.Context,
    source: str,
    overrides: tuple[str, ...],
    dataset: str | None,
    limit: str | None,
    skip_bad_rows: bool,
    epochs: int,
    seed: int | None,
    max_parallel_requests: int | None,
    request_timeout: float | None,
    output_path: Path | None,
    fail_on_error: float,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run a dataset through a stack and report accuracy, tokens and time.

    \b
    Example:
      scaffolding-ext eval --config configs:dynasor_cot --limit 20 --output_path runs/dynasor
    """
    from scaffolding_ext.documents import write_text
    from scaffolding_ext.evaluation.calibration_cost import calibration_cost
    from scaffolding_ext.evaluation.datasets import load_dataset
    from scaffolding_ext.evaluation.report import summarize
    from scaffolding_ext.evaluation.run_folder import SUMMARY, claimed
    from scaffolding_ext.evaluation.runner import check_size
    from scaffolding_ext.stack.build import check_stack

    with nullcontext() if output_path is None else claimed(output_path):
        given_here = given(seed=seed, max_parallel_requests=max_parallel_requests)
        config, data = config_with_dataset(source, dataset, [*overrides, *given_here], skip_bad_rows)
        if config.seed is None:
            config = config.model_copy(update={"seed": 0})  # a run that can be repeated
        controller = check_stack(config)
        samples = load_dataset(**data.model_dump(), limit=limit)
        check_size(len(samples), epochs)
        document: dict[str, Any] = {
            "version": __version__,
            "dataset": data.model_dump(),
            "limit": limit,
            "epochs": epochs,
            "seed": config.seed,
            "num_samples": len(samples),
        }
        if dry_run:
            plan = f"stack and dataset are fine: {len(samples)} samples, {len(samples) * epochs} requests"
            click.echo(json.dumps(document | {"config": config.model_dump()}) if as_json else plan)
            return
        records = _run(config, samples, epochs, request_timeout, output_path)
        summary = summarize(records, calibration_cost(controller))
        failed = next((record for record in records if record.error is not None), None)
        first_error = None if failed is None or failed.error is None else f"{failed.id}: {failed.error.message}"
        document |= {"summary": summary.to_json(), "first_error": first_error}
        if output_path is not None:
            write_text(output_path / SUMMARY, json.dumps(document, indent=2) + "\n")
    if summary.warning is not None:
        click.echo(f"Warning: {summary.warning}", err=True)
    if as_json:
        click.echo(json.dumps(document))
    else:
        _show(Path(source).stem.rpartition(":")[2], summary, first_error)
    if summary.num_failed > fail_on_error * summary.num_samples:
        click.echo(f"{summary.num_failed} of {summary.num_samples} samples failed; the first, {first_error}", err=True)
        ctx.exit(1)


def _run(
    config: StackConfig, samples: list[Sample], epochs: int, timeout: float | None, folder: Path | None
) -> list[Record]:
    """Run the samples, each record written as soon as there is one."""
    from scaffolding_ext.documents import write_text
    from scaffolding_ext.evaluation.progress import progress_shown
    from scaffolding_ext.evaluation.records import record_writer
    from scaffolding_ext.evaluation.run_folder import CONFIG, SAMPLES
    from scaffolding_ext.evaluation.runner import evaluate as run_evaluation
    from scaffolding_ext.stack.build import build_stack

    with ExitStack() as stack:
        llm = stack.enter_context(build_stack(config))
        heard = [stack.enter_context(progress_shown(len(samples) * epochs))]
        if folder is not None:
            write_text(folder / CONFIG, config.to_yaml())
            heard.insert(0, stack.enter_context(record_writer(folder / SAMPLES)))

        def on_record(record: Record) -> None:
            for hear in heard:
                hear(record)

        return run_evaluation(llm, samples, epochs, timeout, on_record)


def _show(name: str, summary: Summary, first_error: str | None) -> None:
    """Print the run's table, and what it does not hold."""
    from rich.console import Console

    from scaffolding_ext.evaluation.report import comparison_table

    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.print(comparison_table({name: summary}))
    decoded = {purpose: counts["decoded"] for purpose, counts in summary.mean_tokens_by_purpose.items()}
    console.print(f"decoded tokens a sample: {_counted(decoded)}")
    if summary.calibration_tokens is not None:
        spread = f"{summary.mean_calibration_tokens:.6g} decoded a sample of this run, not in the figures above"
        console.print(f"calibration tokens, spent before: {_counted(summary.calibration_tokens)}; {spread}")
    console.print(f"exit reasons: {_counted(summary.exit_reasons)}")
    console.print(f"no answer: {summary.num_unanswered}; undetermined answers: {summary.num_undetermined}")
    console.print(f"errors: {_counted(summary.errors)}" + (f"; the first, {first_error}" if first_error else ""))


def _counted(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number:.6g}" for name, number in counts.items()) or "none"
