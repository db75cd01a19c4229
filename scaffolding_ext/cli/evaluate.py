"""Command `scaffolding-ext eval`: run a dataset through a stack; accuracy, tokens and time."""

from __future__ import annotations

import json
from contextlib import ExitStack, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from scaffolding_ext.cli.options import (
    SIGNAL_EXIT,
    Command,
    OutputPath,
    OwnModel,
    config_option,
    config_with_dataset,
    dataset_option,
    families_told,
    given,
    json_option,
    limit_option,
    max_tokens_option,
    model_options,
    set_option,
)

_FIRST = ("source", "model", "base_url", "dataset", "limit", "max_tokens", "output_path", "resume", "until")


@click.command("eval", cls=Command, first=_FIRST, short_help="Run a dataset: accuracy, tokens, time.")
@config_option
@model_options
@set_option
@dataset_option
@limit_option
@max_tokens_option
@click.option("--epochs", type=click.IntRange(min=1), help="Times that each question is asked.  [default: 1]")
@click.option(
    "--probe_every",
    type=click.IntRange(min=0),
    metavar="TOKENS",
    help="Record whole chains for `tune` (a vote's answers), probed for their answer every TOKENS tokens; 0: never.",
)
@click.option(
    "--total_tokens",
    type=click.IntRange(min=1),
    help="Total decoded tokens for all questions of a vote; the least settled ones get more answers.",
)
@click.option(
    "--until",
    metavar="GOAL",
    help="Stop when the result is known: '±2' (points) or 'vs RUN'.",
)
@click.option("--seed", type=int, help="Seed of the run instead of the stack file's; 0 if neither is given.")
@click.option("--max_parallel_requests", type=click.IntRange(min=1), help="Requests that run at once.")
@click.option(
    "--output_path",
    type=OutputPath(is_folder=True),
    help="Folder for the records, the summary and the stack.",
)
@click.option(
    "--keep_samples/--no_keep_samples", default=None, help="Keep each answer of a vote, with its text, in its record."
)
@click.option("--resume", is_flag=True, help="Continue the run in --output_path.")
@click.option("--dry_run", is_flag=True, help="Check the stack and the dataset; load no model and run nothing.")
@json_option
@click.pass_context
def evaluate(
    ctx: click.Context,
    /,
    source: str,
    overrides: tuple[str, ...],
    own_model: OwnModel,
    dataset: str | None,
    seed: int | None,
    max_parallel_requests: int | None,
    output_path: Path | None,
    resume: bool,
    dry_run: bool,
    as_json: bool,
    probe_every: int | None,
    max_tokens: int | None,
    **settings: Any,
) -> None:
    """Run a dataset through a stack and report accuracy, tokens and time.

    \b
    Example:
      scaffolding-ext eval --config configs:dynasor_cot --limit 20 --output_path runs/dynasor
      scaffolding-ext eval --config stack.yaml --until "vs runs/plain" --output_path runs/vote --resume
    """
    from scaffolding_ext.evaluation.calibrate.conformal_run import calibrated_online
    from scaffolding_ext.evaluation.report.terminal import eval_lines, first_lines
    from scaffolding_ext.evaluation.run.run_folder import claimed
    from scaffolding_ext.evaluation.run.session import Session
    from scaffolding_ext.stack.build import missing_here, plan_stack

    settings["output_path"] = None if output_path is None else str(output_path)
    options = given(seed=seed, max_parallel_requests=max_parallel_requests) + given("evaluation.", **settings)
    config, _ = config_with_dataset(source, dataset, [*overrides, *options], own_model, max_tokens)
    if probe_every is not None:
        from scaffolding_ext.evaluation.run.record_chain import recording_stack

        config = recording_stack(config, probe_every, config.evaluation.num_logprobs)
    kept_in = config.evaluation.output_path
    folder = None if kept_in is None else Path(kept_in)
    if resume and folder is None:
        raise click.UsageError("--resume is given without a folder: name the run's folder with --output_path", ctx)
    claim = nullcontext(False) if folder is None else claimed(folder, resume=resume)
    with claim as goes_on, ExitStack() as held:
        config = config.for_run()
        if not dry_run:
            config = calibrated_online(config, folder or Path(held.enter_context(TemporaryDirectory())))
        run = Session(config, folder)
        if goes_on:
            run.resume(is_mended=not dry_run)
        if dry_run:
            done = f", {len(run.done)} of them done" if goes_on else ""
            missing = missing_here(plan_stack(run.config))
            most = "no known limit" if run.most_tokens is None else f"at most {run.most_tokens:,}"
            plan = f"stack and dataset are fine: {run.described}{done}\ntokens of chains: {most}"
            first = run.first_question
            document = run.document() | {
                "most_tokens": run.most_tokens,
                "config": run.config.model_dump(),
                "missing": missing,
                "first": {"prompt": first.prompt, "target": first.target, "unread": first.unread},
            }
            click.echo(json.dumps(document) if as_json else f"{plan}\n\n{first_lines(first)}")
            for each in missing:
                _say(f"Missing on this machine: {each}")
            if missing:
                ctx.exit(1)
            return
        if folder is None:
            _say("Note: this run is not saved; --output_path FOLDER saves its records, summary and stack.")
        with families_told():
            stopped_by = run.go(_say)
        document, summary = run.finish(stopped_by)
    for warning in summary.warnings:
        _say(f"Warning: {warning}")
    tally = run.tally
    if as_json:
        click.echo(json.dumps(document))
    elif tally.num_samples:
        name, budget = Path(source).stem.rpartition(":")[2], document.get("budget")
        click.echo("\n".join(eval_lines(name, summary, tally.first_error, budget, folder, document.get("until"))))
    if run.num_left:
        waited = f"{config.evaluation.outage_seconds:g} s"
        more = f"go on with --resume ({folder})" if folder is not None and tally.num_samples else "run it again"
        _say(f"The server did not come back within {waited}: {run.num_left} requests left, {more}.")
        ctx.exit(1)
    if stopped_by is not None:
        is_kept = folder is not None and tally.num_samples
        kept = f"to continue, give the same command with --resume ({folder})" if is_kept else "none are saved"
        _say(f"Interrupted after {tally.num_samples:,} requests of {run.described}; {kept}.")
        ctx.exit(SIGNAL_EXIT + stopped_by)
    num_failed = tally.num_failed
    if num_failed > config.evaluation.fail_on_error * tally.num_samples:
        _say(f"{num_failed} of {tally.num_samples} requests failed; the first failure: {tally.first_error}")
        if folder is not None and config.evaluation.total_tokens is None:
            _say("To rerun the failed ones, give the same command with --resume.")
        ctx.exit(1)


def _say(message: str) -> None:
    click.echo(message, err=True)
