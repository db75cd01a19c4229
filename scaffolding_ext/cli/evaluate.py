"""`scaffolding-ext eval`: a dataset through a stack; accuracy, tokens and time."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaffolding_ext import __version__
from scaffolding_ext.cli.options import (
    config_option,
    config_with_dataset,
    dataset_option,
    given,
    json_option,
    limit_option,
    set_option,
)

if TYPE_CHECKING:
    from scaffolding_ext.evaluation.records import Record
    from scaffolding_ext.stack.config import StackConfig

_SAMPLES = "samples.jsonl"
_PIPE_WIDTH = 120  # columns, where no terminal says how many there are


@click.command("eval", short_help="Run a dataset: accuracy, tokens, time.")
@config_option
@set_option
@dataset_option
@limit_option
@click.option(
    "--epochs", type=click.IntRange(min=1), default=1, show_default=True, help="How often each sample is run."
)
@click.option("--seed", type=int, help="Seed of the run instead of the stack file's; 0 where neither gives one.")
@click.option("--max_parallel_requests", type=click.IntRange(min=1), help="Requests that run at once.")
@click.option(
    "--request_timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds after which a request fails."
)
@click.option(
    "--output_path",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for samples.jsonl, summary.json and config.yaml.",
)
@click.option(
    "--fail_on_error",
    type=click.FloatRange(0, 1),
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
    if output_path is not None:
        _check_output_path(output_path)
    from scaffolding_ext.evaluation.datasets import load_dataset
    from scaffolding_ext.stack.build import build_stack, check_stack

    given_here = given(seed=seed, max_parallel_requests=max_parallel_requests)
    config, data = config_with_dataset(source, dataset, [*overrides, *given_here])
    if config.seed is None:
        config = config.model_copy(update={"seed": 0})  # a run that can be repeated
    check_stack(config)
    samples = load_dataset(**data.model_dump(), limit=limit)
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

    from rich.console import Console

    from scaffolding_ext.evaluation.progress import progress_shown
    from scaffolding_ext.evaluation.report import comparison_table, summarize
    from scaffolding_ext.evaluation.runner import evaluate as run_evaluation

    with (
        build_stack(config) as llm,
        _samples_file(output_path, config) as write,
        progress_shown(len(samples) * epochs) as advance,
    ):

        def on_record(record: Record) -> None:
            write(record)
            advance(record)

        records = run_evaluation(llm, samples, epochs, request_timeout, on_record)
    summary = summarize(records)
    failed = next((record for record in records if record.error is not None), None)
    first_error = None if failed is None or failed.error is None else f"{failed.id}: {failed.error.message}"
    document |= {"summary": summary.to_json(), "first_error": first_error}
    if output_path is not None:
        (output_path / "summary.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    if summary.warning is not None:
        click.echo(f"warning: {summary.warning}", err=True)
    if as_json:
        click.echo(json.dumps(document))
    else:
        console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
        console.print(comparison_table({Path(source).stem.rpartition(":")[2]: summary}))
        decoded = {purpose: counts["decoded"] for purpose, counts in summary.mean_tokens_by_purpose.items()}
        console.print(f"decoded tokens a sample: {_counted(decoded)}")
        console.print(f"exit reasons: {_counted(summary.exit_reasons)}")
        console.print(f"no answer: {summary.num_unanswered}; undetermined answers: {summary.num_undetermined}")
        console.print(f"errors: {_counted(summary.errors)}" + (f"; the first, {first_error}" if first_error else ""))
    if summary.num_failed > fail_on_error * summary.num_samples:
        click.echo(f"{summary.num_failed} of {summary.num_samples} samples failed", err=True)
        ctx.exit(1)


def _check_output_path(folder: Path) -> None:
    """Refuse a folder that holds a run, or that cannot be written to, before anything costly is done."""
    if (folder / _SAMPLES).exists():
        raise click.UsageError(f"{folder} holds a {_SAMPLES}; runs do not mix: name another --output_path")
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        raise click.UsageError(f"cannot write into {folder} ({error}); name another --output_path") from error


def _counted(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number:.6g}" for name, number in counts.items()) or "none"


@contextmanager
def _samples_file(folder: Path | None, config: StackConfig) -> Iterator[Callable[[Record], None]]:
    """Write `config.yaml` into a run's folder and open its `samples.jsonl`; without a folder nothing is kept."""
    from scaffolding_ext.evaluation.records import record_writer

    if folder is None:
        yield lambda record: None
        return
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(config.to_yaml(), encoding="utf-8")
    with record_writer(folder / _SAMPLES) as write:
        yield write
