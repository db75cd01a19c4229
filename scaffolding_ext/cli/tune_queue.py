"""`scaffolding-ext tune --cost queue`: what each type of question is worth while others wait."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from scaffolding_ext.cli.options import Finite

if TYPE_CHECKING:
    from scaffolding_ext.controllers.budgets.queueing.queues import Queue
    from scaffolding_ext.evaluation.tune.plays import Trial
    from scaffolding_ext.evaluation.tune.queue import QueuedRow, ServiceLine
    from scaffolding_ext.stack.config import StackConfig


def _service(ctx: click.Context, param: click.Parameter, text: str | None) -> ServiceLine | None:
    """The line of `0.14,0.0129`."""
    from scaffolding_ext.evaluation.tune.queue import ServiceLine

    if text is None:
        return None
    try:
        at_once, a_token = map(float, text.split(","))
    except ValueError:
        at_once, a_token = -1.0, -1.0
    if not (0 <= at_once < float("inf") and 0 < a_token < float("inf")):
        raise click.BadParameter(
            f"{text!r} is no T0,C: give the seconds of a sample without tokens, and for each token, such as 0.14,0.0129"
        )
    return ServiceLine(at_once, a_token)


class ForQueue(NamedTuple):
    """The options of `--cost queue`, as the command line has them."""

    arrival_rate: float | None
    alpha: float | None
    slo: float | None
    batch: int | None
    slowdown: float
    service: ServiceLine | None
    max_tokens: int

    @property
    def queue(self) -> Queue:
        from scaffolding_ext.controllers.budgets.queueing.queues import Queue

        return Queue() if self.batch is None else Queue(self.batch, self.slowdown)


_OPTIONS = (
    click.option("--arrival_rate", type=Finite(0, min_open=True), help="For --cost queue: questions a second."),
    click.option(
        "--alpha", type=Finite(0, min_open=True), help="For --cost queue: seconds that a right answer is worth."
    ),
    click.option(
        "--slo",
        type=Finite(0, min_open=True),
        help="For --cost queue, in place of --alpha: seconds within which a right answer counts.",
    ),
    click.option(
        "--batch",
        type=click.IntRange(1),
        help="For --cost queue: requests that the engine computes at once.  [default: 1, first come first served]",
    ),
    click.option(
        "--slowdown",
        type=Finite(0, 1),
        default=0.0,
        show_default=True,
        help="With --batch: each of n requests at once has the speed 1 / (1 + slowdown (n - 1)).",
    ),
    click.option(
        "--service",
        callback=_service,
        metavar="T0,C",
        help="For --cost queue: seconds of a sample that runs alone, without tokens and for each token.  [default: "
        "fitted to the recorded seconds, type by type]",
    ),
    click.option(
        "--max_tokens",
        type=click.IntRange(1),
        default=32768,
        show_default=True,
        help="For --cost queue, with a file of `budget fit` in place of a LOG: largest budget.",
    ),
)


def for_queue_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of `--cost queue`, as `for_queue`."""

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        own = {name: given.pop(name) for name in ForQueue._fields}
        command(for_queue=ForQueue(**own), **given)

    for option in reversed(_OPTIONS):
        option(with_options)
    return with_options


def tune_types(path: Path, options: ForQueue, output_path: Path | None, as_json: bool) -> None:
    """Budgets of one chain by fitted types: the special case in which there is nothing else to choose."""
    import numpy as np

    from scaffolding_ext import require
    from scaffolding_ext.controllers.budgets.files import PlannedBudgets, TaskTypes
    from scaffolding_ext.controllers.budgets.queueing.demand import Demand
    from scaffolding_ext.controllers.budgets.queueing.queues import simulate
    from scaffolding_ext.documents import fingerprint
    from scaffolding_ext.evaluation.tune.queue import best_budgets
    from scaffolding_ext.evaluation.tune.stack_file import budgets_stack_of

    if options.alpha is None or options.slo is not None:
        raise click.UsageError("a file of types needs --alpha; --slo needs a LOG with recorded lengths")
    types = TaskTypes.load(path)
    assert options.arrival_rate is not None
    with require.under():
        demand = Demand(tuple(types.tasks), options.arrival_rate, options.alpha, options.max_tokens, options.queue)
        budgets = best_budgets(demand)
        found = simulate(types.tasks, budgets, demand.arrival_rate, demand.queue, 200_000, np.random.default_rng(0))
    forecast = demand.forecast(budgets)
    named = dict(zip(demand.names, budgets, strict=True))
    plan = PlannedBudgets(
        demand=demand,
        budgets=named,
        mixture_budget=demand.best_uniform(),
        model=types.model,
        data=path.name,
        fingerprint=fingerprint(path),
    )
    if output_path is not None:
        output_path.write_text(budgets_stack_of(plan).to_yaml())
    time = found.simulated.system_time
    if as_json:
        figures = {name: float(value) for name, value in forecast._asdict().items()}
        click.echo(json.dumps({"budgets": named, **figures, "simulated_time": time._asdict()}))
        return
    for name, tokens in named.items():
        click.echo(f"{name:20} {tokens} tokens")
    objective, accuracy, seconds, load = (
        float(each) for each in (forecast.objective, forecast.accuracy, forecast.system_time, forecast.load)
    )
    click.echo(f"objective {objective:.4f}, {accuracy:.1%} right, {seconds:.4g} s at load {load:.3f}")
    click.echo(f"simulated {time.value:.4g} s ({time.low:.4g} to {time.high:.4g})")
    if output_path is not None:
        click.echo(f"written: {output_path}")


def tune_for_queue(
    trial: Trial, options: ForQueue, base: StackConfig | None, output_path: Path | None, as_json: bool
) -> None:
    """Choose a setting for each type of question, write the stack, and say what was found."""
    from scaffolding_ext import require
    from scaffolding_ext.evaluation.tune.queue import FAMILIES, SINGLE, QueuedTrial, QueueGoal
    from scaffolding_ext.evaluation.tune.stack_file import controller_of, model_of_stack, stack_with, typed_stack_of

    if options.arrival_rate is None or (options.alpha is None) == (options.slo is None):
        raise click.UsageError("--cost queue needs --arrival_rate, and --alpha or --slo")
    with require.under():
        goal = QueueGoal(options.arrival_rate, options.queue, options.alpha, options.slo)
        queued = QueuedTrial(trial, goal, options.service)
    leanings = {family: queued.leaning(family) for family in FAMILIES}
    rows = {family: queued.judged(family, alpha) for family, alpha in leanings.items()}
    family = max(FAMILIES, key=lambda name: rows[name].objective)  # of those alike the first, which is the plainest
    alpha = leanings[family]
    row = trial.rows({"chosen": queued.played(queued.judged_settings(family, alpha))})[0]
    if family == SINGLE:
        setting = queued.single(alpha)
        controller, named = (
            controller_of(setting, None if base is None else base.controller),
            {"all types": str(setting)},
        )
        stack = stack_with(controller, str(setting), row, trial, "queue", promise=None, base=base)
    else:
        model = trial.recording.model if base is None else model_of_stack(base)
        typed = queued.plan(family, alpha, model=model, fingerprint=trial.recording.fingerprint)
        stack, named = typed_stack_of(typed, row, trial, base=base), typed.named()
    if output_path is not None:
        output_path.write_text(stack.to_yaml())
    shown = [queued.all_samples(), *rows.values()]
    if as_json:
        click.echo(
            json.dumps(
                {
                    "chosen": family,
                    "settings": named,
                    "alpha": alpha,
                    "service": {name: line._asdict() for name, line in queued.lines.items()},
                    "rows": [_finite(each) for each in shown],
                    "num_questions": len(trial.recording.questions),
                    "stack": stack.resolved(),
                }
            )
        )
        return
    click.echo(_table(shown, goal.alpha is not None))
    click.echo()
    click.echo(f"Chosen: {family}.")
    for name, chosen in named.items():
        click.echo(f"  {name}: {chosen}")
    click.echo(
        f"{len(trial.recording.questions):,} questions of {len(queued.types)} types, each judged under what the "
        "others chose; seconds and p90 are simulated with the recorded lengths."
    )
    if output_path is not None:
        click.echo(f"written: {output_path}")


def _finite(row: QueuedRow) -> dict[str, Any]:
    """A row as JSON has it; null stands for what is infinite."""
    figures = row._asdict().items()
    return {name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in figures}


def _table(rows: list[QueuedRow], by_alpha: bool) -> str:
    head = "objective" if by_alpha else "in time %"
    lines = [f"{'':24}{'right %':>8} {'load':>5} {'formula s':>10} {'seconds':>9} {'p90 s':>8} {head:>10}"]
    for row in rows:
        objective = row.objective if by_alpha else 100 * row.objective
        lines.append(
            f"{row.name:24}{100 * row.accuracy:>8.1f} {row.load:>5.2f} {row.formula_seconds:>10.4g} "
            f"{row.seconds:>9.4g} {row.p90:>8.4g} {objective:>10.4g}"
        )
    return "\n".join(lines)
