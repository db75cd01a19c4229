"""Command `scaffolding-ext compare`: finished runs side by side, paired by question, with tables, a page and traces."""

from __future__ import annotations

import json
from pathlib import Path

import click

from scaffolding_ext.cli.options import Command, OutputPath, json_option


@click.command(cls=Command, short_help="Compare runs: paired differences, a report.")
@click.argument(
    "runs", nargs=-1, required=True, metavar="RUN_A RUN_B ...", type=click.Path(exists=True, path_type=Path)
)
@click.option("--report_path", type=OutputPath(), help="Write one self-contained HTML page with every request's trace.")
@click.option("--chrome_trace", type=OutputPath(), help="Write the traces in Chrome's format (chrome://tracing).")
@click.option(
    "--num_traces",
    type=click.IntRange(min=0),
    default=1000,
    show_default=True,
    help="Requests in the report and in the trace; those on which the runs disagree come first.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the resamples.")
@json_option
def compare(
    runs: tuple[Path, ...],
    report_path: Path | None,
    chrome_trace: Path | None,
    num_traces: int,
    seed: int,
    as_json: bool,
) -> None:
    """Compare runs with the first of them, paired by question: accuracy, tokens and time with intervals.

    A RUN is a folder that `eval --output_path` wrote, or a file of its records.

    \b
    Example:
      scaffolding-ext compare runs/native runs/dynasor --report_path report.html
    """
    from scaffolding_ext.documents import write_text
    from scaffolding_ext.evaluation.compare.compared import compare_runs, kept_samples
    from scaffolding_ext.evaluation.report.terminal import compare_lines

    if len(runs) < 2:
        raise click.UsageError("give the folders of at least two runs: each is compared with the first")
    compared = compare_runs(runs, seed=seed)
    samples = kept_samples(compared.runs, num_traces) if report_path or chrome_trace else []
    if report_path is not None:
        from scaffolding_ext.evaluation.report.page import rendered

        write_text(report_path, rendered(compared, samples))
    if chrome_trace is not None:
        from scaffolding_ext.evaluation.report.timeline import write_chrome_trace

        write_chrome_trace(chrome_trace, [run.name for run in compared.runs], samples)
    for warning in compared.warnings:
        click.echo(f"Warning: {warning}", err=True)
    if as_json:
        click.echo(json.dumps(compared.to_json()))
    else:
        written = {"report": report_path, "trace": chrome_trace}
        kept = {what: path for what, path in written.items() if path is not None}
        click.echo("\n".join(compare_lines(compared, kept)))
