"""Commands `scaffolding-ext tune` and `replay`: choose or play settings on recorded samples."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from scaffolding_ext.cli.options import Command, Finite, OutputPath, grouped, json_option, set_option
from scaffolding_ext.errors import DatasetError

if TYPE_CHECKING:
    from scaffolding_ext.evaluation.tune.choose import Goal
    from scaffolding_ext.evaluation.tune.costs import Price
    from scaffolding_ext.evaluation.tune.replay import Replay
    from scaffolding_ext.stack.config import StackConfig

_COSTS = ("decoded", "seconds", "critical")


def parsed_numbers(text: str, count: int, what: str, example: str) -> list[float]:
    try:
        numbers = [float(each) for each in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) != count or not all(0 <= each < float("inf") for each in numbers):
        raise click.BadParameter(f"{text!r} is not {what}; give {count} numbers, such as {example}")
    return numbers


def _cost(ctx: click.Context, param: click.Parameter, text: str) -> str | Price:
    from scaffolding_ext.evaluation.tune.costs import Price

    what = f"one of {', '.join(_COSTS)}, or dollars per million tokens read, read from a cache, and decoded"
    return text if text in _COSTS else Price(*parsed_numbers(text, 3, what, "0.5,0.05,2"))


def _budget(ctx: click.Context, param: click.Parameter, text: str | None) -> Callable[[float], float] | None:
    """Parse tokens, or a percentage, into a function: the budget as a share of the cost of all samples."""
    if text is None:
        return None
    number, percent, rest = text.partition("%")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if value <= 0 or rest or (percent and value > 100):
        raise click.BadParameter(
            f"invalid budget {text!r}: expected the tokens of all recorded questions together (2000000), or a share of "
            "those of all samples (25%)"
        )
    return (lambda cost: value / 100) if percent else (lambda cost: value / cost)


class Logs(NamedTuple):
    """Recorded samples that a command plays on, from its arguments."""

    paths: tuple[Path, ...]
    task: str | None
    num_samples: int | None
    cost: Any

    def plays(self) -> Replay:
        """Return the samples, ready to be played on.

        Raises:
            DatasetError: Each question has one sample without probes, or the log was misread.
        """
        from scaffolding_ext.evaluation.logs.read import read_recording
        from scaffolding_ext.evaluation.tune.replay import Replay

        recording = read_recording(self.paths, task=self.task, num_samples=self.num_samples)
        if all(each.num_samples == 1 and each.probes is None for each in recording.questions):
            raise DatasetError(
                f"{', '.join(recording.sources)}: each question has one sample, but rules need several: sample "
                "each question again (scaffolding-ext eval --epochs 8), or keep a vote's samples (--keep_samples)"
            )
        if recording.doubt is not None:
            raise DatasetError(f"{', '.join(recording.sources)}: {recording.doubt}")
        if isinstance(self.cost, str):
            return Replay(recording, self.cost)  # type: ignore[arg-type]
        return Replay(recording, "dollars", self.cost)


_LOG_OPTIONS = (
    click.argument("paths", nargs=-1, required=True, metavar="LOG...", type=click.Path(exists=True, path_type=Path)),
    click.option("--task", metavar="NAME", help="Only questions of tasks whose name contains NAME."),
    click.option(
        "--num_samples",
        type=click.IntRange(min=2),
        help="Samples per question; questions with fewer are left out.  [default: the most common number]",
    ),
    click.option(
        "--cost",
        callback=_cost,
        default="decoded",
        show_default=True,
        metavar="COST",
        help="Cost to minimize: decoded tokens, seconds, `critical` (tokens of the longest sample of each round), or "
        "IN,CACHED,OUT dollars per million tokens read, read from a cache, and decoded.",
    ),
)


@click.command(cls=Command, short_help="Choose the setting that saves most on recorded logs, and write its stack.")
@grouped(_LOG_OPTIONS, Logs, "logs")
@click.option(
    "--max_loss",
    type=Finite(0, 100),
    default=0.3,
    show_default=True,
    help="Points of accuracy that may be lost compared with the vote of all samples.",
)
@click.option(
    "--confidence",
    type=Finite(0.5, 1, max_open=True),
    help="Promise with this confidence, such as 0.9, that further questions lose no more than --max_loss. The exit "
    "code is 1 if nothing can be promised.  [default: no promise]",
)
@click.option(
    "--budget",
    callback=_budget,
    metavar="TOKENS",
    help="Choose the most accurate setting within this budget: total tokens of all questions, or a share such as 25%.",
)
@click.option(
    "--config",
    "source",
    metavar="FILE",
    help="Stack whose workers and prompt the written stack keeps.  [default: that of a LOG from `eval`]",
)
@click.option("--output_path", type=OutputPath(), help="Write the chosen stack.")
@click.option("--report_path", type=OutputPath(), help="Write one self-contained HTML page.")
@json_option
def tune(
    logs: Logs,
    max_loss: float,
    confidence: float | None,
    budget: Callable[[float], float] | None,
    source: str | None,
    output_path: Path | None,
    report_path: Path | None,
    as_json: bool,
) -> None:
    """Play every rule on recorded samples, and choose the setting that saves the most and loses the least.

    A LOG is a log of inspect_ai, the samples of lm-evaluation-harness, details of lighteval, a folder of `eval`, or a
    JSONL file with a question and its samples per line. No model is run; `eval --epochs 8 --probe_every 64` records
    a stack.

    \b
    Example:
      scaffolding-ext tune logs/gpqa.eval --output_path stack.yaml --report_path tuned.html
      scaffolding-ext replay logs/other.eval --config stack.yaml
    """
    from scaffolding_ext.documents import write_text
    from scaffolding_ext.evaluation.run.progress_bar import beating
    from scaffolding_ext.evaluation.tune.choose import Cheapest, MostAccurate
    from scaffolding_ext.evaluation.tune.tuned import tuned
    from scaffolding_ext.stack.load import load_config

    ctx = click.get_current_context()
    if confidence is not None and (budget is not None or not 0 < max_loss < 100):
        raise click.UsageError("--confidence needs a --max_loss above 0, and no --budget", ctx)
    base = None if source is None else load_config(source)
    stage = "reading the logs"
    with beating(lambda: stage, lambda told: click.echo(told, err=True)):
        plays = logs.plays()
        stage = f"playing settings on {len(plays.recording.questions):,} questions"
        plays.try_all()
        stage = f"choosing among {len(plays.played):,} settings, and resampling the questions"
        goal: Goal = Cheapest(max_loss / 100)
        if budget is not None:
            goal = MostAccurate(budget(float(plays.full.costs[plays.cost].sum())))
        stack = base or plays.recording.stack
        found = tuned(plays, goal, max_loss=max_loss / 100, confidence=confidence, base=stack)
    if found is None:
        raise click.UsageError(
            f"--budget is too small for any setting; the cheapest needs {plays.least_cost():.1%}", ctx
        )
    written = output_path if found.keeps_promise else None
    if written is not None:
        write_text(written, found.stack().to_yaml())
    if as_json:
        click.echo(json.dumps(found.document()))
    else:
        _say(found.lines())
    if report_path is not None:
        write_text(report_path, found.page())
    if not as_json:
        if report_path is not None:
            click.echo(f"written: {report_path}")
        say_written(written, found.stack())
        if written is not None:
            click.echo(f"Next: scaffolding-ext replay OTHER_LOG --config {written}")
        elif found.keeps_promise and output_path is None:
            click.echo("Next: the same command with --output_path stack.yaml --report_path tuned.html")
    if not found.keeps_promise:
        click.echo(f"Error: {found.promise}.", err=True)
        ctx.exit(1)


def _say(lines: Any) -> None:
    table, *sentences = lines
    click.echo(table)
    for sentence in sentences:
        click.echo(textwrap.fill(sentence, 80, break_on_hyphens=False))


def say_written(path: Path | None, stack: StackConfig) -> None:
    """Say that a stack was written, and which keys to check before it runs; say nothing if `path` is None."""
    from scaffolding_ext.evaluation.tune.stack_file import edits_of

    if path is not None:
        click.echo(f"written: {path}")
        if (edits := edits_of(stack)) is not None:
            click.echo(textwrap.fill(edits, 80, break_on_hyphens=False, break_long_words=False))


@click.command(cls=Command, short_help="Play a stack on recorded logs.")
@grouped(_LOG_OPTIONS, Logs, "logs")
@click.option("--config", "source", required=True, metavar="FILE", help="The stack.")
@set_option
@json_option
def replay(logs: Logs, source: str, overrides: tuple[str, ...], as_json: bool) -> None:
    """Play a stack on recorded samples: the answers that it would have given, and their cost.

    \b
    Example:
      scaffolding-ext replay logs/other.eval --config stack.yaml
    """
    from scaffolding_ext.evaluation.tune.choose import Cheapest
    from scaffolding_ext.evaluation.tune.stack_file import setting_of
    from scaffolding_ext.evaluation.tune.table import baselines, rows_of
    from scaffolding_ext.evaluation.tune.tuned import figures_of, remarks_on, table_of
    from scaffolding_ext.stack.load import load_config

    plays = logs.plays()
    setting = setting_of(load_config(source, overrides))
    plays.try_numbers()
    played = plays.play(setting)
    rows = rows_of(plays, {**baselines(plays, Cheapest(0.003)), "this stack": played})
    row = rows[-1]
    if as_json:
        recording, full = plays.recording, float(plays.full.right.mean())
        known = {"num_questions": len(recording.questions), "measure": recording.measure}
        click.echo(json.dumps({**figures_of(row), "full_accuracy": full, **known}))
        return
    _say([table_of(rows, plays), "", *remarks_on(plays), "", f"This stack: {setting}."])
