"""`scaffolding-ext budget`: how many tokens each type of question may think for, under a load.

Arguments in, files and tables out, as in `cli`. The modules that compute are imported when a command runs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaffolding_ext.cli.options import Finite, Group, OutputPath, json_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scaffolding_ext.controllers.budgets.queueing.demand import Demand
    from scaffolding_ext.controllers.budgets.queueing.grid import MeasuredType
    from scaffolding_ext.controllers.budgets.queueing.tasks import TaskType

tasks_argument = click.argument("tasks")
rate_option = click.option(
    "--arrival_rate", type=Finite(0, min_open=True), required=True, help="Questions that arrive in a second."
)
alpha_option = click.option("--alpha", type=Finite(0), required=True, help="Seconds that a right answer is worth.")
most_option = click.option("--max_tokens", type=click.IntRange(min=0), required=True, help="Largest budget of tokens.")
measured_option = click.option(
    "--measured", is_flag=True, help="Choose among the budgets that `budget fit` measured, without a fitted curve."
)
batch_option = click.option("--batch", type=click.IntRange(1), help="Requests that one engine computes at once.")
slowdown_option = click.option(
    "--slowdown",
    type=Finite(0, 1),
    default=0.0,
    show_default=True,
    help="With --batch: each of n requests at once has the speed 1 / (1 + slowdown (n - 1)).",
)
plot_option = click.option("--plot_path", type=OutputPath(), help="File for a picture; it needs the extra `plots`.")


@click.group(cls=Group, short_help="Budgets of thinking that a queue can bear.")
def budget() -> None:
    """Budgets of thinking that a queue can bear: fitted to runs, solved for a load, tried on a simulated queue."""


@budget.command("solve", short_help="The best budgets for a load.")
@tasks_argument
@rate_option
@alpha_option
@most_option
@measured_option
@click.option(
    "--solver",
    type=click.Choice(("lbfgs", "fixed_point", "projected_gradient")),
    default="lbfgs",
    show_default=True,
    help="scipy's L-BFGS-B, or a method of the paper: its fixed point (eq. 24) or its projected gradient (eq. 38).",
)
@click.option(
    "--rounding",
    type=click.Choice(("best", "nearest")),
    default="best",
    show_default=True,
    help="The best of all roundings up and down (eq. 39), or the nearest whole budgets (eq. 40).",
)
@plot_option
@json_option
def solve_command(
    tasks: str,
    arrival_rate: float,
    alpha: float,
    max_tokens: int,
    measured: bool,
    solver: str,
    rounding: str,
    plot_path: Path | None,
    as_json: bool,
) -> None:
    """The budgets that maximise --alpha times accuracy less the mean seconds in the system, for the types in TASKS.

    TASKS is a YAML file of types of questions, as `budget fit` writes it, or `configs:NAME` of the package. With
    --measured, --solver and --rounding have nothing to do.

    \b
    Example:
      scaffolding-ext budget solve types.yaml --arrival_rate 0.3 --alpha 30 --max_tokens 4096
      scaffolding-ext budget solve configs:calibrations/queueing_table_1.yaml \\
        --arrival_rate 0.1 --alpha 30 --max_tokens 32768
    """
    import dataclasses

    from scaffolding_ext import require
    from scaffolding_ext.controllers.budgets.queueing.plan import solve
    from scaffolding_ext.evaluation.calibrate.budget_report import budgets_table, plot_demand
    from scaffolding_ext.evaluation.tables import console

    demand = _demand(tasks, arrival_rate, alpha, max_tokens, measured)
    if plot_path is not None:
        plot_demand(demand, plot_path)
    if measured:
        _solve_measured(demand, as_json)
        return
    with require.under():
        plan = solve(demand.fitted, arrival_rate, alpha, max_tokens, solver=solver, rounding=rounding)
    if as_json:
        click.echo(json.dumps({**dataclasses.asdict(plan), "rounding_loss": plan.rounding_loss}))
        return
    console().print(budgets_table(demand, plan.integer_budgets, plan.budgets))
    bound = "" if plan.rounding_bound is None else f", at most {plan.objective - plan.rounding_bound:.2g} by eq. 41"
    click.echo(f"objective    {plan.objective:.4f}; whole budgets lose {plan.rounding_loss:.2g}{bound}")
    click.echo(f"accuracy     {plan.accuracy:.1%}")
    click.echo(f"system time  {plan.system_time:.4g} s at load {plan.load:.3f}")
    click.echo(f"residual     {plan.kkt_residual:.1g}")


@budget.command("plan", short_help="A file of budgets that a stack loads.")
@tasks_argument
@rate_option
@alpha_option
@most_option
@measured_option
@batch_option
@slowdown_option
@click.option("--output_path", type=OutputPath(), required=True, help="YAML file for QueueAwareBudgetController.")
@plot_option
@json_option
def plan_command(
    tasks: str,
    arrival_rate: float,
    alpha: float,
    max_tokens: int,
    measured: bool,
    batch: int | None,
    slowdown: float,
    output_path: Path,
    plot_path: Path | None,
    as_json: bool,
) -> None:
    """Write the best budgets for the types in TASKS under a load, for a stack to keep.

    Prints what they come to, and the frontier of accuracy and time over --alpha, beside one budget for all types.

    \b
    Example:
      scaffolding-ext budget plan types.yaml --arrival_rate 0.3 --alpha 30 --max_tokens 4096 --output_path plan.yaml
      scaffolding-ext eval --config configs:queue_aware_budget --set controller.args.plan=plan.yaml
    """
    from scaffolding_ext import require
    from scaffolding_ext.controllers.budgets.files import PlannedBudgets, TaskTypes
    from scaffolding_ext.documents import fingerprint, located
    from scaffolding_ext.evaluation.calibrate.budget_report import budgets_table, frontier_table, plot_demand
    from scaffolding_ext.evaluation.tables import console

    demand = _demand(tasks, arrival_rate, alpha, max_tokens, measured, batch, slowdown)
    path, model = located(tasks), TaskTypes.load(tasks).model
    with require.under():
        plan = PlannedBudgets.of(demand, model=model, data=path.name, fingerprint=fingerprint(path))
    plan.save(output_path)
    if plot_path is not None:
        plot_demand(demand, plot_path)
    document = plan.model_dump(mode="json")
    if as_json:
        click.echo(json.dumps({**document, "output_path": str(output_path)}))
        return
    console().print(budgets_table(demand, list(plan.budgets.values())))
    for name, key in (("plan", "forecast"), (f"{plan.mixture_budget} for all", "uniform_forecast")):
        figures = document[key]
        click.echo(
            f"{name:12} objective {figures['objective']:.4f}, {figures['accuracy']:.1%} right, "
            f"{figures['system_time']:.4g} s at load {figures['load']:.3f}"
        )
    console().print(frontier_table(demand))
    click.echo(f"written      {output_path}")


@budget.command("simulate", short_help="The time in the system under budgets.")
@tasks_argument
@rate_option
@click.option(
    "--budgets", required=True, metavar="N,N,...", help="Budgets of tokens: one for all types, or one for each type."
)
@click.option(
    "--num_queries", type=click.IntRange(1000), default=1_000_000, show_default=True, help="Questions to simulate."
)
@click.option("--servers", type=click.IntRange(1), default=1, show_default=True, help="Servers behind one line.")
@batch_option
@slowdown_option
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the arrivals and their types."
)
@json_option
def simulate_command(
    tasks: str,
    arrival_rate: float,
    budgets: str,
    num_queries: int,
    servers: int,
    batch: int | None,
    slowdown: float,
    seed: int,
    as_json: bool,
) -> None:
    """Simulate Poisson arrivals of the types in TASKS, served first come first served.

    \b
    Example:
      scaffolding-ext budget simulate types.yaml --arrival_rate 0.3 --budgets 0,340,30
      scaffolding-ext budget simulate types.yaml --arrival_rate 2 --budgets 128 --batch 16 --slowdown 0.1
    """
    import numpy as np

    from scaffolding_ext import require
    from scaffolding_ext.controllers.budgets.files import TaskTypes
    from scaffolding_ext.controllers.budgets.queueing.queues import Queue, simulate

    if batch is not None and servers > 1:
        raise click.UsageError("--servers and --batch describe two kinds of engine: give one of them")
    types = TaskTypes.load(tasks).tasks
    queue = Queue(servers if batch is None else batch, None if batch is None else slowdown)
    tokens = _tokens(budgets, len(types))
    with require.under():
        found = simulate(types, tokens, arrival_rate, queue, num_queries, np.random.default_rng(seed))
    time = found.simulated.system_time
    if as_json:
        figures = {"load": found.simulated.load, "num_queries": found.simulated.num_queries}
        click.echo(json.dumps({"system_time": time._asdict(), "formula": found.formula, **figures}))
        return
    click.echo(f"system time  {time.value:.4g} s ({time.low:.4g} to {time.high:.4g})")
    if found.formula is not None:
        click.echo(f"formula      {found.formula:.4g} s (Pollaczek-Khinchine)")
    click.echo(f"load         {found.simulated.load:.3f} servers' worth of work")
    click.echo(f"counted      {found.simulated.num_queries:,} queries")


@budget.command("fit", short_help="Types of questions, from runs at several budgets.")
@click.argument(
    "runs", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="RUNS..."
)
@click.option("--output_path", type=OutputPath(), required=True, help="YAML file of types, for the other commands.")
@click.option("--budget_key", help="Key of the budget in a run's config.yaml; BudgetForcingController's if left out.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the resamples.")
@plot_option
@json_option
def fit_command(
    runs: tuple[Path, ...], output_path: Path, budget_key: str | None, seed: int, plot_path: Path | None, as_json: bool
) -> None:
    """Fit accuracy and seconds against budget to RUNS, folders of `eval --output_path`, kind of question by kind.

    Run at four budgets or more; one request at a time at least some questions at each, since only then seconds are
    those of service.

    \b
    Example:
      for n in 64 128 256 512; do
        scaffolding-ext eval --config configs:budget_forcing --set controller.args.thinking_tokens=$n \\
          --set max_parallel_requests=1 --output_path runs/budget_$n
      done
      scaffolding-ext budget fit runs/budget_* --output_path types.yaml
    """
    from scaffolding_ext.controllers.budgets.files import TaskTypes, TypeFit
    from scaffolding_ext.evaluation.calibrate.budget_report import fit_notes, fit_table, plot_fits
    from scaffolding_ext.evaluation.calibrate.budget_sweep import BUDGET_KEY, read_sweep
    from scaffolding_ext.evaluation.tables import console

    swept = read_sweep(runs, budget_key or BUDGET_KEY, seed)
    for warning in swept.warnings:
        click.echo(f"Warning: {warning}", err=True)
    notes = fit_notes(swept)
    fits = [TypeFit(**note) for note in notes]
    TaskTypes(tasks=[kind.task() for kind in swept.kinds], model=swept.model, fits=fits).save(output_path)
    if plot_path is not None:
        plot_fits(swept, plot_path)
    if as_json:
        click.echo(json.dumps({"fits": notes, "warnings": swept.warnings, "output_path": str(output_path)}))
        return
    console().print(fit_table(swept))
    click.echo(f"written   {output_path}")


def _demand(
    tasks: str,
    arrival_rate: float,
    alpha: float,
    max_tokens: int,
    measured: bool,
    batch: int | None = None,
    slowdown: float = 0.0,
) -> Demand:
    from scaffolding_ext import require
    from scaffolding_ext.controllers.budgets.files import TaskTypes
    from scaffolding_ext.controllers.budgets.queueing.demand import Demand
    from scaffolding_ext.controllers.budgets.queueing.queues import Queue

    file = TaskTypes.load(tasks)
    with require.under():
        types: Sequence[TaskType | MeasuredType] = file.measured(max_tokens) if measured else file.tasks
        queue = Queue() if batch is None else Queue(batch, slowdown)
        return Demand(tuple(types), arrival_rate, alpha, max_tokens, queue)


def _solve_measured(demand: Demand, as_json: bool) -> None:
    from scaffolding_ext import require
    from scaffolding_ext.controllers.budgets.queueing.grid import solve_on_grid

    with require.under():
        plan = solve_on_grid(demand.measured, demand.arrival_rate, demand.alpha)
    budgets = dict(zip(demand.names, plan.budgets, strict=True))
    if as_json:
        click.echo(json.dumps({"budgets": budgets, "objective": plan.objective, "is_global": plan.is_global}))
        return
    for name, tokens in budgets.items():
        click.echo(f"{name}  {tokens} tokens")
    best = "the best of all combinations" if plan.is_global else "no single change gains"
    click.echo(f"objective  {plan.objective:.4f} ({best})")


def _tokens(text: str, num_types: int) -> list[int]:
    try:
        tokens = [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no list of whole numbers: give one such as 0,340,30", param_hint="--budgets"
        ) from None
    if len(tokens) not in (1, num_types) or min(tokens) < 0:
        raise click.BadParameter(
            f"{text!r} has {len(tokens)} numbers; give 1 or {num_types} numbers, each at least 0",
            param_hint="--budgets",
        )
    return tokens * (num_types if len(tokens) == 1 else 1)
