"""`scaffolding-ext eval`: a dataset through a stack; accuracy, tokens and time."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaffolding_ext import __version__
from scaffolding_ext.cli.options import (
    SIGNAL_EXIT,
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
    from scaffolding_ext.evaluation.run.summary import Summary

_PIPE_WIDTH = 120  # columns, where no terminal says how many there are


@click.command("eval", cls=Command, short_help="Run a dataset: accuracy, tokens, time.")
@config_option
@set_option
@dataset_option
@limit_option
@skip_option
@click.option("--epochs", type=click.IntRange(min=1), help="How often each sample is run.  [default: 1]")
@click.option(
    "--total_tokens",
    type=click.IntRange(min=1),
    help="Decoded tokens for all questions together; the stack's votes get further samples where least settled.",
)
@click.option("--spending", type=click.Choice(["certaindex", "even"]), help="Who gets them.  [default: certaindex]")
@click.option("--seed", type=int, help="Seed of the run instead of the stack file's; 0 where neither gives one.")
@click.option("--max_parallel_requests", type=click.IntRange(min=1), help="Requests that run at once.")
@click.option("--request_timeout", type=Finite(min=0, min_open=True), help="Seconds after which a request fails.")
@click.option(
    "--output_path",
    type=OutputPath(is_folder=True),
    help="Folder for samples.jsonl, summary.json and config.yaml.",
)
@click.option("--resume", is_flag=True, help="Go on with the run in --output_path: only what it lacks is run.")
@click.option(
    "--fail_on_error",
    type=Finite(0, 1),
    help="Share of the samples that may fail; if more do, the exit code is 1.  [default: 0]",
)
@click.option(
    "--price", metavar="KIND=PRICE,...", help="Price of a million decoded, prefilled, reused tokens; shows the cost."
)
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of another run; while this one goes on, the decoded tokens saved against it are shown.",
)
@click.option("--engine", type=click.Choice(["local", "ray"]), help="Where stacks run.  [default: local]")
@click.option("--num_actors", type=click.IntRange(min=1), help="Actors of --engine ray, each with a stack of its own.")
@click.option(
    "--gpus_per_actor", type=Finite(min=0), help="GPUs that Ray assigns to an actor; without it all, evenly shared."
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
    epochs: int | None,
    total_tokens: int | None,
    spending: str | None,
    seed: int | None,
    max_parallel_requests: int | None,
    request_timeout: float | None,
    output_path: Path | None,
    resume: bool,
    fail_on_error: float | None,
    price: str | None,
    against: Path | None,
    engine: str | None,
    num_actors: int | None,
    gpus_per_actor: float | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run a dataset through a stack and report accuracy, tokens and time.

    One interrupt (Ctrl-C) lets the samples in flight end, a second one does not; the exit code is 130.

    \b
    Example:
      scaffolding-ext eval --config configs:dynasor_cot --limit 20 --output_path runs/dynasor
      scaffolding-ext eval --config configs:dynasor_cot --limit 20 --epochs 4 --output_path runs/dynasor --resume
      scaffolding-ext eval --config configs:majority_vote --total_tokens 100000 --output_path runs/budget
    """
    from scaffolding_ext.documents import write_text
    from scaffolding_ext.evaluation.calibrate.calibration_cost import calibration_cost
    from scaffolding_ext.evaluation.run.datasets import load_dataset
    from scaffolding_ext.evaluation.run.price import checked_price, parse_price
    from scaffolding_ext.evaluation.run.records import decoded_of
    from scaffolding_ext.evaluation.run.resume import fingerprint
    from scaffolding_ext.evaluation.run.run_folder import SUMMARY, answers_of, claimed
    from scaffolding_ext.evaluation.run.runner import check_samples
    from scaffolding_ext.evaluation.run.session import Session
    from scaffolding_ext.evaluation.run.vote_budget import VoteBudget
    from scaffolding_ext.stack.build import check_stack

    options = given(seed=seed, max_parallel_requests=max_parallel_requests) + given(
        "evaluation.",
        limit=limit,
        epochs=epochs,
        total_tokens=total_tokens,
        spending=spending,
        request_timeout=request_timeout,
        output_path=None if output_path is None else str(output_path),
        fail_on_error=fail_on_error,
        price=None if price is None else parse_price(price),
        engine=engine,
        num_actors=num_actors,
        gpus_per_actor=gpus_per_actor,
    )
    config, data = config_with_dataset(source, dataset, [*overrides, *options], skip_bad_rows)
    settings = config.evaluation
    folder = None if settings.output_path is None else Path(settings.output_path)
    if resume and folder is None:
        raise click.UsageError("--resume needs the run's folder by --output_path", ctx)
    if against is not None and settings.total_tokens is not None:
        raise click.UsageError(
            "--against is of whole requests, which --total_tokens has none of: compare the runs", ctx
        )
    with nullcontext(False) if folder is None else claimed(folder, resume=resume) as goes_on:
        config = config.for_run()
        checked_price(settings.price)
        controller = check_stack(config)
        samples = load_dataset(**data.model_dump(), limit=None if settings.limit is None else str(settings.limit))
        budget = None
        if settings.total_tokens is not None:
            budget = VoteBudget(controller, samples, settings.total_tokens, settings.spending)
        repeats = settings.epochs if budget is None else budget.max_samples
        check_samples(samples, repeats)
        document: dict[str, Any] = {
            "version": __version__,
            "fingerprint": fingerprint(config.resolved()),
            "dataset": data.model_dump(),
            "limit": settings.limit,
            "epochs": settings.epochs,
            "seed": config.seed,
            "num_samples": len(samples),
            "num_requests": len(samples) * repeats,
            "price": settings.price or None,
        }
        run = Session(config, samples, folder, budget)
        if goes_on:
            run.take_up(is_mended=not dry_run)
        if dry_run:
            done = f", {len(run.done)} of them done" if goes_on else ""
            most = "" if budget is None else "at most "
            plan = (
                f"stack and dataset are fine: {len(samples)} samples, {most}{document['num_requests']} requests{done}"
            )
            click.echo(json.dumps(document | {"config": config.model_dump()}) if as_json else plan)
            return
        stopped_by = run.go(_say, None if against is None else decoded_of(answers_of(against)))
        summary = run.finish(calibration_cost(controller), settings.price)
        document |= {
            "state": "finished" if stopped_by is None else "interrupted",
            "summary": summary.to_json(),
            "first_error": run.tally.first_error,
        }
        if budget is not None:
            document["budget"] = budget.figures()
        if folder is not None:
            write_text(folder / SUMMARY, json.dumps(document, indent=2) + "\n")
    if summary.warning is not None:
        click.echo(f"Warning: {summary.warning}", err=True)
    if as_json:
        click.echo(json.dumps(document))
    else:
        _show(Path(source).stem.rpartition(":")[2], summary, run.tally.first_error)
        if budget is not None:
            click.echo(_spent(budget.figures()))
    if stopped_by is not None:
        ctx.exit(SIGNAL_EXIT + stopped_by)
    tally = run.tally
    if tally.num_failed > settings.fail_on_error * tally.num_samples:
        click.echo(
            f"{tally.num_failed} of {tally.num_samples} samples failed; the first, {tally.first_error}", err=True
        )
        ctx.exit(1)


def _say(message: str) -> None:
    click.echo(message, err=True)


def _show(name: str, summary: Summary, first_error: str | None) -> None:
    """Print the run's table, and what it does not hold."""
    from rich.console import Console

    from scaffolding_ext.evaluation.report.report import comparison_table
    from scaffolding_ext.evaluation.run.summary import shown_mean

    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
    console.print(comparison_table({name: summary}))
    decoded = {purpose: counts["decoded"] for purpose, counts in summary.mean_tokens_by_purpose.items()}
    repeats = summary.repeats
    if repeats is not None:
        console.print(f"mean@{repeats.n} {shown_mean(repeats.mean)} %, questions resampled")
        for figure, by_k in (("maj", repeats.majority), ("pass", repeats.passed)):
            if repeats.n > 1:
                console.print(", ".join(f"{figure}@{k} {shown_mean(mean)}" for k, mean in by_k.items()))
    console.print(f"decoded tokens a sample: {_counted(decoded)}")
    if summary.calibration_tokens is not None:
        spread = f"{summary.mean_calibration_tokens:.6g} decoded a sample of this run, not in the figures above"
        console.print(f"calibration tokens, spent before: {_counted(summary.calibration_tokens)}; {spread}")
    console.print(f"a right answer: {_counted(summary.per_right_answer or {})}")
    firsts = summary.seconds_to_first_token
    console.print(
        f"seconds by phase: {_counted(summary.mean_seconds_by_phase)}"
        + (f"; to the first token: {_counted(firsts)}" if firsts else "")
    )
    console.print(f"exit reasons: {_counted(summary.exit_reasons)}")
    console.print(
        f"cut off by the budget: {summary.num_cut_off}; wrong: {summary.num_wrong}; no answer: "
        f"{summary.num_unanswered}; undetermined answers: {summary.num_undetermined}"
    )
    console.print(f"errors: {_counted(summary.errors)}" + (f"; the first, {first_error}" if first_error else ""))


def _spent(figures: Mapping[str, Any]) -> str:
    """One line on a budget."""
    return (
        f"budget: {figures['spent_tokens']:,} of {figures['total_tokens']:,} decoded tokens ({figures['spending']}), "
        f"{figures['num_samples']} samples, {figures['fewest_samples']} to {figures['most_samples']} a question; "
        f"right: {figures['num_right']}, by first samples alone {figures['num_right_of_first_samples']}, by an "
        f"oracle's choice of these samples {figures['num_right_of_oracle']}"
    )


def _counted(counts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {number:.6g}" for name, number in counts.items()) or "none"
