"""Commands `scaffolding-ext tune` and `replay`: choose or play settings on recorded samples."""

from __future__ import annotations

import functools
import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from scaffolding_ext.cli.options import Command, Finite, OutputPath, json_option, set_option
from scaffolding_ext.errors import DatasetError

if TYPE_CHECKING:
    from scaffolding_ext.controllers.budgets.queueing.queues import Queue
    from scaffolding_ext.evaluation.tune.choose import Goal
    from scaffolding_ext.evaluation.tune.costs import Price
    from scaffolding_ext.evaluation.tune.replay import Replay
    from scaffolding_ext.stack.config import StackConfig

_COSTS = ("decoded", "seconds", "critical")


def _numbers(text: str, count: int, what: str, example: str) -> list[float]:
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
    return text if text in _COSTS else Price(*_numbers(text, 3, what, "0.5,0.05,2"))


def _batch(ctx: click.Context, param: click.Parameter, text: str | None) -> Queue:
    from scaffolding_ext.controllers.budgets.queueing.queues import Queue

    if text is None:
        return Queue()
    what = "the number of requests served at once and their slowdown"
    places, slowdown = _numbers(text if "," in text else f"{text},0", 2, what, "16,0.1")
    return Queue(int(places), slowdown)


def _budget(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """Parse tokens, or a share of those of all samples: `25%` is returned as -0.25."""
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
    return -value / 100 if percent else value


class _LogPath(click.Path):
    """A log; `configs:NAME` is in the package's folder of configs."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from scaffolding_ext.documents import located

        return super().convert(located(value), param, ctx)


class Logs(NamedTuple):
    """Recorded samples that a command plays on, from its arguments."""

    paths: tuple[Path, ...]
    task: str | None
    num_samples: int | None
    cost: Any

    def plays(self) -> Replay:
        """Return the samples, ready to be played on.

        Raises:
            DatasetError: Each question has one sample without looks, or the log was misread.
        """
        from scaffolding_ext.evaluation.logs.read import read_recording
        from scaffolding_ext.evaluation.tune.replay import Replay

        recording = read_recording(self.paths, task=self.task, num_samples=self.num_samples)
        if all(each.num_samples == 1 and each.looks is None for each in recording.questions):
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
    click.argument("paths", nargs=-1, required=True, metavar="LOG...", type=_LogPath(exists=True, path_type=Path)),
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


class PlanFor(NamedTuple):
    """Options of `--plan`."""

    plan: float | None
    alpha: float | None
    batch: Queue
    measured: bool


_ABOVE_0 = Finite(0, min_open=True)
_PLAN_OPTIONS = (
    click.option(
        "--plan",
        type=_ABOVE_0,
        metavar="RATE",
        help="Choose a thinking budget for each type of question, for RATE questions per second in a queue.",
    ),
    click.option("--alpha", type=_ABOVE_0, help="With --plan: seconds that a right answer is worth."),
    click.option(
        "--batch",
        callback=_batch,
        metavar="N[,SLOWDOWN]",
        help="With --plan: requests served at once, each at the speed 1 / (1 + SLOWDOWN (n - 1)).  [default: 1]",
    ),
    click.option("--measured", is_flag=True, help="Choose among the budgets of the runs, without a fitted curve."),
)


def _grouped(options: tuple[Any, ...], kind: Any, name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_options(**given: Any) -> None:
            own = {field: given.pop(field) for field in kind._fields}
            command(**{name: kind(**own)}, **given)

        for option in reversed(options):
            option(with_options)
        return with_options

    return decorated


@click.command(cls=Command, short_help="Choose the setting that saves most on recorded logs, and write its stack.")
@_grouped(_LOG_OPTIONS, Logs, "logs")
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
@_grouped(_PLAN_OPTIONS, PlanFor, "plan_for")
@click.option("--output_path", type=OutputPath(), help="Write the chosen stack.")
@click.option("--report_path", type=OutputPath(), help="Write one self-contained HTML page.")
@json_option
def tune(
    logs: Logs,
    max_loss: float,
    confidence: float | None,
    budget: float | None,
    source: str | None,
    plan_for: PlanFor,
    output_path: Path | None,
    report_path: Path | None,
    as_json: bool,
) -> None:
    """Play every rule on recorded samples, and choose the setting that saves the most and loses the least.

    A LOG is a log of inspect_ai, the samples of lm-evaluation-harness, details of lighteval, a folder of `eval`, or a
    JSONL file with a question and its samples per line. No model is run; `eval --epochs 8 --probe_every 64` records
    a stack. With --plan, LOG is a YAML file of types of questions, or folders of `eval` at several thinking budgets.

    \b
    Example:
      scaffolding-ext tune logs/gpqa.eval --output_path stack.yaml --report_path tuned.html
      scaffolding-ext replay logs/other.eval --config stack.yaml
      scaffolding-ext tune configs:calibrations/queueing_table_1.yaml --plan 0.1 --alpha 30
    """
    from scaffolding_ext.documents import write_text
    from scaffolding_ext.evaluation.tune.choose import Cheapest, MostAccurate
    from scaffolding_ext.evaluation.tune.tuned import tuned
    from scaffolding_ext.stack.load import load_config

    ctx = click.get_current_context()
    if confidence is not None and (budget is not None or not 0 < max_loss < 100):
        raise click.UsageError("--confidence needs a --max_loss above 0, and no --budget", ctx)
    base = None if source is None else load_config(source)
    if plan_for.plan is not None:
        if confidence is not None or budget is not None or report_path is not None:
            raise click.UsageError("--plan takes no --confidence, --budget or --report_path", ctx)
        if plan_for.alpha is None:
            raise click.UsageError("--plan needs --alpha", ctx)
        plan = _planned(logs, plan_for, base)
        if output_path is not None:
            write_text(output_path, plan.stack.to_yaml())
        click.echo(json.dumps(plan.document()) if as_json else "\n".join(plan.lines()))
        _say_written(as_json, output_path)
        _say_edits(as_json, output_path, plan.stack)
        return
    plays = logs.plays()
    plays.try_all()
    goal: Goal = Cheapest(max_loss / 100)
    if budget is not None:
        goal = MostAccurate(-budget if budget < 0 else budget / float(plays.full.costs[plays.cost].sum()))
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
    _say_written(as_json, written, report_path)
    _say_edits(as_json, written, found.stack())
    if not found.keeps_promise:
        click.echo(f"Error: {found.promise}.", err=True)
        ctx.exit(1)


def _planned(logs: Logs, options: PlanFor, base: StackConfig | None) -> Any:
    """Plan budgets for types, or for runs at several budgets."""
    from scaffolding_ext import require
    from scaffolding_ext.controllers.budgets.files import TaskTypes
    from scaffolding_ext.evaluation.tune.queue import planned_budgets
    from scaffolding_ext.evaluation.tune.sweep import is_sweep, read_sweep

    assert options.plan is not None
    assert options.alpha is not None
    is_file = [path.suffix for path in logs.paths] == [".yaml"]
    if not is_file and not is_sweep(logs.paths):
        raise click.UsageError("--plan needs a YAML file of types, or folders of `eval` at several thinking budgets")
    if is_file:
        types, file = TaskTypes.load(logs.paths[0]), logs.paths[0]
    else:
        (types, warnings), file = read_sweep(logs.paths, 0), None
        for warning in warnings:
            click.echo(f"Warning: {warning}", err=True)
    with require.under():
        return planned_budgets(types, options.plan, options.alpha, options.batch, options.measured, file, base)


def _say(lines: Any) -> None:
    table, *sentences = lines
    click.echo(table)
    for sentence in sentences:
        click.echo(textwrap.fill(sentence, 80, break_on_hyphens=False))


def _say_written(as_json: bool, *paths: Path | None) -> None:
    for path in paths:
        if not as_json and path is not None:
            click.echo(f"written: {path}")


def _say_edits(as_json: bool, path: Path | None, stack: StackConfig) -> None:
    from scaffolding_ext.evaluation.tune.stack_file import edits_of

    edits = edits_of(stack)
    if not as_json and path is not None and edits is not None:
        click.echo(textwrap.fill(edits, 80, break_on_hyphens=False, break_long_words=False))


@click.command(cls=Command, short_help="Play a stack on recorded logs.")
@_grouped(_LOG_OPTIONS, Logs, "logs")
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
    from scaffolding_ext.evaluation.tune.table import baselines, rows_of, saved_on_easiest
    from scaffolding_ext.evaluation.tune.tuned import remarks_on, table_of
    from scaffolding_ext.stack.load import load_config

    plays = logs.plays()
    setting = setting_of(load_config(source, overrides))
    plays.try_numbers()
    played = plays.play(setting)
    rows = rows_of(plays, {**baselines(plays, Cheapest(0.003)), "this stack": played})
    row = rows[-1]
    easiest = {share: saved_on_easiest(plays, played, share) for share in (0.1, 0.01)}
    if as_json:
        found = {
            "cost_share": row.cost_share.value,
            "points": row.points.value,
            "interval": row.points[1:],
            "rounds": row.rounds,
            "saved_on_easiest": {str(share): saved for share, saved in easiest.items()},
            "accuracy": row.accuracy,
            "full_accuracy": float(plays.full.right.mean()),
            "num_questions": len(plays.recording.questions),
            "measure": plays.recording.measure,
        }
        click.echo(json.dumps(found))
        return
    saved = " and ".join(f"{100 * saved:.0f} % on the easiest {share:.0%}" for share, saved in easiest.items())
    sentence = f"This stack: {setting}. It saves {saved} of the questions."
    _say([table_of(rows, plays), "", sentence, *remarks_on(plays)])
