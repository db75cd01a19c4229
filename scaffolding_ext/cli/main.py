"""The command line: arguments in, files and tables out. Everything else is in the modules that it calls.

They are imported when a command runs, so that `--help` needs neither an engine nor the time to load one.
"""

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
from scaffolding_ext.cli.calibrate import calibrate
from scaffolding_ext.cli.engine import engine
from scaffolding_ext.errors import ScaffoldingExtError

if TYPE_CHECKING:
    from scaffolding_ext.evaluation.records import Record
    from scaffolding_ext.results import ScaffoldingResult
    from scaffolding_ext.stack.config import StackConfig

_SAMPLES = "samples.jsonl"
_PIPE_WIDTH = 120  # columns, where no terminal says how many there are


class _PackageError(click.ClickException):
    """An error of this package: one line, no traceback."""

    exit_code = 2


class _Group(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ScaffoldingExtError as error:
            raise _PackageError(" ".join(str(error).split())) from error


class _ConfigOption(click.Option):
    """Names the packaged stacks in its help; they are looked up when somebody asks for it."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from scaffolding_ext.stack.config import packaged_stacks

        self.help = (
            f"Stack file, or one of the package's: {', '.join(f'configs:{name}' for name in packaged_stacks())}."
        )
        return super().get_help_record(ctx)


config_option = click.option("--config", "source", cls=_ConfigOption, required=True, metavar="FILE")
set_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Set a key of the stack file; may be repeated."
)
seed_option = click.option("--seed", type=int, help="Seed of the run instead of the stack file's.")
json_option = click.option("--json", "as_json", is_flag=True, help="Write one JSON document to standard output.")


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="scaffolding-ext")
def main() -> None:
    """Reasoning with a budget: run and evaluate inference-time-compute controllers."""


main.add_command(calibrate)
main.add_command(engine)


@main.command(short_help="Run one prompt and print answer and tokens.")
@click.argument("prompt")
@config_option
@set_option
@seed_option
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), help="Seconds after which the request fails.")
@json_option
def run(
    prompt: str, source: str, overrides: tuple[str, ...], seed: int | None, timeout: float | None, as_json: bool
) -> None:
    """Run one PROMPT and print its completion, answer, exit reason and tokens by purpose.

    \b
    Example:
      scaffolding-ext run "Start with 5. Apply a+3,b-2. Find the total." --config configs:dynasor_cot --seed 1
    """
    from scaffolding_ext.stack.build import load_stack

    with load_stack(source, [*overrides, *_given(seed=seed)]) as llm:
        result = llm.generate(prompt, timeout=timeout)
    if as_json:
        click.echo(json.dumps(_result_document(result)))
        return
    click.echo(result.outputs[0].text)
    click.echo()
    click.echo(f"answer       {_or_dash(result.answer)}")
    click.echo(f"exit reason  {_or_dash(result.exit_reason)}")
    for purpose, counts in result.program.ledger.by_purpose.items():
        figures = ", ".join(f"{number} {name}" for name, number in counts._asdict().items())
        click.echo(f"{purpose!s:<13}{figures}")


@main.command("eval", short_help="Run a dataset: accuracy, tokens, time.")
@config_option
@set_option
@click.option("--dataset", metavar="SPEC", help="JSONL file or tinylm:held_out, instead of the stack file's dataset.")
@click.option("--limit", metavar="N|A-B", help="The first N samples, or those from the A-th to the B-th.")
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
    from scaffolding_ext.errors import ConfigError
    from scaffolding_ext.evaluation.datasets import load_dataset
    from scaffolding_ext.stack.build import build_stack, check_stack
    from scaffolding_ext.stack.config import load_config

    replaced = [] if dataset is None else ["dataset=" + json.dumps({"source": dataset})]
    config = load_config(
        source, [*replaced, *overrides, *_given(seed=seed, max_parallel_requests=max_parallel_requests)]
    )
    if config.seed is None:
        config = config.model_copy(update={"seed": 0})  # a run that can be repeated
    if config.dataset is None:
        raise ConfigError("there is none; name a JSONL file or tinylm:held_out here or by --dataset", "dataset")
    check_stack(config)
    samples = load_dataset(**config.dataset.model_dump(), limit=limit)
    document: dict[str, Any] = {
        "version": __version__,
        "dataset": config.dataset.model_dump(),
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


def _given(**options: int | None) -> list[str]:
    """The options that were given, as overrides."""
    return [f"{key}={value}" for key, value in options.items() if value is not None]


def _result_document(result: ScaffoldingResult) -> dict[str, Any]:
    return {
        "text": result.outputs[0].text,
        "answer": result.answer,
        "exit_reason": result.exit_reason,
        "ledger": result.program.ledger.to_json(),
        "seed": result.program.seed,
        "trace": result.program.trace,
    }


def _or_dash(value: str | None) -> str:
    return "-" if value is None else value


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


if __name__ == "__main__":
    main()
