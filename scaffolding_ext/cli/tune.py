"""`scaffolding-ext tune`: from recorded samples to the setting that saves the most and loses the least."""

from __future__ import annotations

import functools
import json
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from scaffolding_ext.cli.options import (
    Command,
    Finite,
    OutputPath,
    OwnModel,
    config_with_dataset,
    dataset_given,
    dataset_option,
    given,
    json_option,
    limit_option,
    model_options,
)
from scaffolding_ext.cli.tune_queue import ForQueue, for_queue_options, tune_for_queue, tune_types
from scaffolding_ext.errors import DatasetError

if TYPE_CHECKING:
    from scaffolding_ext.evaluation.tune.choose import Goal
    from scaffolding_ext.evaluation.tune.costs import Price
    from scaffolding_ext.evaluation.tune.plays import Trial

_PREFLIGHT_QUESTIONS, _PREFLIGHT_CHAINS = "50", 8
_COSTS = ("decoded", "computed", "dollars", "seconds", "critical", "queue")
_CACHES = ("kept", "blocks", "nothing")


def _price(ctx: click.Context, param: click.Parameter, text: str | None) -> Price | None:
    """The prices of `0.5,0.05,2`."""
    from scaffolding_ext.evaluation.tune.costs import Price

    if text is None:
        return None
    try:
        read, cached, decoded = map(float, text.split(","))
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no list of three numbers: give the dollars of a million tokens that are read, read from a "
            "cache, and decoded, such as 0.5,0.05,2"
        ) from None
    return Price(read, cached, decoded)


class Logs(NamedTuple):
    """The recorded samples that a command plays on, as its arguments name them."""

    paths: tuple[Path, ...]
    task: str | None
    num_samples: int | None
    cost: str
    cache: str
    price: Price | None
    seed: int

    def trial(self) -> Trial:
        """The samples, ready to be played on.

        Raises:
            DatasetError: Each question has one sample, which nobody looked at.
        """
        from scaffolding_ext.evaluation.logs.read import read_recording
        from scaffolding_ext.evaluation.tune.plays import Trial

        recording = read_recording(self.paths, task=self.task, num_samples=self.num_samples)
        if all(each.num_samples == 1 and each.looks is None and each.rounds is None for each in recording.questions):
            raise DatasetError(
                f"{', '.join(recording.sources)}: each question has one sample, and rules choose among several: sample "
                "each question again (scaffolding-ext eval --epochs 8), or keep a vote's samples (--keep_samples)"
            )
        cost: Any = {"computed": self.cache, "queue": "decoded"}.get(self.cost, self.cost)
        return Trial(recording, cost, self.price, self.seed)


_LOG_OPTIONS = (
    click.option("--task", metavar="NAME", help="Only questions of tasks whose name contains NAME."),
    click.option(
        "--num_samples",
        type=click.IntRange(min=2),
        help="Samples of each question; questions with fewer are left out.  [default: as many as most questions have]",
    ),
    click.option(
        "--cost",
        type=click.Choice(_COSTS),
        default="decoded",
        show_default=True,
        help="What is to be small: decoded tokens; computed tokens (those that are read, too); dollars; seconds; the "
        "tokens of the longest sample of each round; the time in a queue.",
    ),
    click.option(
        "--cache",
        type=click.Choice(_CACHES),
        default="blocks",
        show_default=True,
        help="For --cost computed: the KV of a chain is kept, prefixes are cached in blocks, or nothing is kept.",
    ),
    click.option(
        "--price",
        callback=_price,
        metavar="IN,CACHED,OUT",
        help="Dollars of a million tokens that are read, read from a cache, and decoded; for --cost dollars.",
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        help="Seed of the sample orders and of the folds.",
    ),
)


def _on_logs(*, required: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command the argument LOG and its options, as `logs`."""

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def on_logs(**given: Any) -> None:
            own = {name: given.pop(name) for name in Logs._fields}
            command(logs=Logs(**own), **given)

        for option in reversed(_LOG_OPTIONS):
            option(on_logs)
        metavar = "LOG..." if required else "[LOG]..."
        path = click.Path(exists=True, path_type=Path)
        return click.argument("paths", nargs=-1, required=required, metavar=metavar, type=path)(on_logs)

    return decorated


def _budget(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """Tokens, or a share of those of all samples: `25%` is given back as -0.25."""
    if text is None:
        return None
    number, percent, rest = text.partition("%")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if value <= 0 or rest or (percent and value > 100):
        raise click.BadParameter(
            f"{text!r} is no budget: give the tokens of all recorded questions together, such as 2000000, or a share "
            "of what all samples take, such as 25%"
        )
    return -value / 100 if percent else value


@click.command(cls=Command, short_help="What would have been saved on my model? Read logs, choose, write a stack.")
@_on_logs(required=False)
@click.option(
    "--max_loss",
    type=Finite(0, 100),
    default=0.3,
    show_default=True,
    help="Points of accuracy that may be lost against the vote of all samples.",
)
@click.option(
    "--confidence",
    type=Finite(0.5, 1, max_open=True),
    help="Promise that further questions lose no more than --max_loss, with this confidence, such as 0.9. The exit "
    "code is 1 if nothing can be promised.  [default: nothing is promised]",
)
@click.option(
    "--budget",
    callback=_budget,
    metavar="TOKENS",
    help="Choose the most accurate setting that takes no more: tokens of all questions together, or a share such as "
    "25%.",
)
@click.option(
    "--one_budget",
    is_flag=True,
    help="Choose among budgets for the whole data set, too: `eval` can spend one, a server cannot.",
)
@click.option(
    "--config",
    "source",
    metavar="FILE",
    help="Stack whose workers and prompt the written stack keeps.  [default: that of a LOG that is a folder of `eval`]",
)
@model_options
@dataset_option
@limit_option
@for_queue_options
@click.option(
    "--preflight",
    is_flag=True,
    help="Say whether a second model or a judge pays: of the stack of --config, run on the first 50 questions "
    "(--limit), or of recorded runs of draft and target.",
)
@click.option(
    "--rate",
    "rates",
    type=Finite(0, 1, min_open=True, max_open=True),
    multiple=True,
    default=(0.2, 0.4),
    show_default=True,
    help="For --preflight: share of the chunks that the target takes over; may be repeated.",
)
@click.option("--output_path", type=OutputPath(), help="Write the chosen stack.")
@click.option("--report_path", type=OutputPath(), help="Write one self-contained HTML page.")
@click.option("--plot_path", type=OutputPath(), help="Write a picture of the frontier.")
@json_option
def tune(
    logs: Logs,
    max_loss: float,
    confidence: float | None,
    budget: float | None,
    one_budget: bool,
    source: str | None,
    own_model: OwnModel,
    dataset: str | None,
    limit: str | None,
    for_queue: ForQueue,
    preflight: bool,
    rates: tuple[float, ...],
    output_path: Path | None,
    report_path: Path | None,
    plot_path: Path | None,
    as_json: bool,
) -> None:
    """Play every rule on recorded samples, and choose the setting that saves the most and loses the least.

    A LOG is a log of inspect_ai, the samples of lm-evaluation-harness, details of lighteval, a folder of `eval`, or a
    JSONL file with a question and its samples a line. Nothing runs a model. `eval --epochs 8 --looks 64`
    records a stack.

    \b
    Example:
      scaffolding-ext tune logs/gpqa.eval --output_path stack.yaml --report_path tuned.html
      scaffolding-ext replay logs/other.eval --config stack.yaml
      scaffolding-ext tune runs/samples --max_loss 1
      scaffolding-ext tune --preflight --config configs:conformal_draft_target
    """
    from scaffolding_ext.evaluation.tune.choose import Cheapest, MostAccurate
    from scaffolding_ext.evaluation.tune.promise import promised
    from scaffolding_ext.evaluation.tune.stack_file import stack_of
    from scaffolding_ext.evaluation.tune.tuned import document_of, frontier_of, meta_of, sentence_of, table_of
    from scaffolding_ext.evaluation.tune.tuned_page import draw_trial, write_page

    ctx = click.get_current_context()
    if confidence is not None and (budget is not None or not 0 < max_loss < 100):
        raise click.UsageError("--confidence needs a --max_loss above 0, and no --budget", ctx)
    if preflight:
        _preflight(ctx, logs, source, own_model, dataset, limit, _PREFLIGHT_CHAINS, rates, as_json)
        return
    if any(own_model) and source is None:
        raise click.UsageError("--model and --base_url need --config: the stack whose model they replace", ctx)
    is_for_queue = logs.cost == "queue"
    if is_for_queue and (
        confidence is not None or budget is not None or report_path is not None or plot_path is not None
    ):
        raise click.UsageError("--cost queue takes no --confidence, --budget, --report_path or --plot_path", ctx)
    if is_for_queue and for_queue.arrival_rate is None:
        raise click.UsageError("--cost queue needs --arrival_rate, and --alpha or --slo", ctx)
    if is_for_queue and [path.suffix for path in logs.paths] == [".yaml"]:
        tune_types(logs.paths[0], for_queue, output_path, as_json)
        return
    base = None if source is None else own_model.load(source, dataset_given(dataset))
    if not logs.paths:
        raise click.UsageError(
            "give a LOG; to record one: scaffolding-ext eval --config STACK --epochs 8 --output_path LOG", ctx
        )
    trial = logs.trial()
    base = base or trial.recording.stack
    trial.try_all()
    if is_for_queue:
        tune_for_queue(trial, for_queue, base, output_path, as_json)
        return
    trial.try_budgets(is_candidate=one_budget)
    goal: Goal = Cheapest(max_loss / 100)
    if budget is not None:
        goal = MostAccurate(-budget if budget < 0 else budget / float(trial.full.costs[trial.cost].sum()))
    promise = None if confidence is None else promised(trial, max_loss / 100, confidence)
    if promise is None:
        allowed = trial.chosen(goal)
        if allowed is None:
            raise click.UsageError(f"--budget pays for no setting; the cheapest takes {trial.least_cost():.1%}", ctx)
        setting, judged = allowed, trial.judged(goal)
    else:
        setting = promise.setting or trial.all_samples
        judged = trial.played[setting]
    named = {**trial.baselines(goal), "chosen": judged}
    rows = trial.rows(named)
    chosen = rows[-1]
    sentence = "No setting keeps the promise, so all samples are the last line of the table."
    if promise is None or promise.setting is not None:
        (own,) = trial.rows({str(setting): trial.play(setting)})
        sentence = sentence_of(own, chosen if promise is None else None, trial.recording, trial.cost)
    if output_path is not None and (promise is None or promise.setting is not None):
        output_path.write_text(stack_of(setting, chosen, trial, promise=promise, base=base).to_yaml())
    frontier = frontier_of(trial)
    if plot_path is not None:
        draw_trial(trial, frontier, rows, plot_path)
    if report_path is not None:
        write_page(report_path, trial, setting, rows, frontier, sentence, None if promise is None else str(promise))
    if as_json:
        stack = stack_of(setting, chosen, trial, promise=promise, base=base)
        click.echo(json.dumps(document_of(trial, goal, rows, frontier, stack, promise)))
    else:
        click.echo(table_of(rows, trial.recording, trial.cost))
        click.echo()
        click.echo(_wrapped(sentence))
        for note in meta_of(trial):
            click.echo(_wrapped(note))
        if promise is not None and promise.setting is not None:
            click.echo(_wrapped(f"Promised: {promise}."))
        for path in (output_path, report_path, plot_path):
            if path is not None and path.exists():
                click.echo(f"written: {path}")
    if promise is not None and promise.setting is None:
        click.echo(f"Error: {promise}.", err=True)
        ctx.exit(1)


def _preflight(
    ctx: click.Context,
    logs: Logs,
    source: str | None,
    own_model: OwnModel,
    dataset: str | None,
    limit: str | None,
    num_chains: int,
    rates: Sequence[float],
    as_json: bool,
) -> None:
    """Print the findings of a pre-flight: on recorded runs, or on the stack."""
    from scaffolding_ext.evaluation.preflight.arms import RECORDED_PRICE, read_runs
    from scaffolding_ext.evaluation.preflight.preflight_text import document_of, text_of
    from scaffolding_ext.evaluation.preflight.worth import find

    if logs.paths:
        arms, price = [read_runs(path) for path in logs.paths], RECORDED_PRICE
    elif source is not None:
        from scaffolding_ext.evaluation.preflight.live import run_arms
        from scaffolding_ext.evaluation.run.datasets import load_dataset

        config, data = config_with_dataset(source, dataset, given("evaluation.", limit=limit), own_model=own_model)
        examples = load_dataset(**data.model_dump(), limit=limit or _PREFLIGHT_QUESTIONS)
        arms, price = run_arms(
            config,
            examples,
            alphas=rates,
            num_chains=num_chains,
            clock=time.perf_counter,
            say=lambda message: click.echo(message, err=True),
        )
    else:
        raise click.UsageError("give --config, or a LOG of draft and target with --preflight", ctx)
    found = find(arms, price, rates)
    click.echo(json.dumps(document_of(found)) if as_json else text_of(found))


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 80, break_on_hyphens=False)


@click.command(cls=Command, short_help="What would this stack have done on these logs?")
@_on_logs(required=True)
@click.option("--config", "source", required=True, metavar="FILE", help="The stack.")
@json_option
def replay(
    logs: Logs,
    source: str,
    as_json: bool,
) -> None:
    """Play a stack on recorded samples: what it would have answered, and what it would have cost.

    \b
    Example:
      scaffolding-ext replay logs/other.eval --config stack.yaml
    """
    from scaffolding_ext.evaluation.tune.choose import Cheapest
    from scaffolding_ext.evaluation.tune.stack_file import setting_of
    from scaffolding_ext.evaluation.tune.tuned import meta_of, table_of
    from scaffolding_ext.stack.load import load_config

    trial = logs.trial()
    setting = setting_of(load_config(source), trial.recording)
    trial.try_numbers()
    played = trial.play(setting)
    rows = trial.rows({**trial.baselines(Cheapest(0.003)), "this stack": played})
    row = rows[-1]
    easiest = {share: trial.saved_on_easiest(played, share) for share in (0.1, 0.01)}
    if as_json:
        click.echo(
            json.dumps(
                {
                    "cost_share": row.cost_share.value,
                    "points": row.points.value,
                    "interval": row.points[1:],
                    "rounds": row.rounds,
                    "saved_on_easiest": {str(share): saved for share, saved in easiest.items()},
                    "accuracy": row.accuracy,
                    "full_accuracy": float(trial.full.right.mean()),
                    "num_questions": len(trial.recording.questions),
                    "measure": trial.recording.measure,
                }
            )
        )
        return
    click.echo(table_of(rows, trial.recording, trial.cost))
    click.echo()
    saved = " and ".join(f"{100 * saved:.0f} % on the easiest {share:.0%}" for share, saved in easiest.items())
    click.echo(_wrapped(f"This stack: {setting}. It saves {saved} of the questions."))
    for note in meta_of(trial):
        click.echo(_wrapped(note))
