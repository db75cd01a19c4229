"""Command `scaffolding-ext plan`: a thinking budget for each type of question under load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scaffolding_ext.cli.options import Command, Finite, OutputPath, json_option
from scaffolding_ext.cli.tune import parsed_numbers, say_written

if TYPE_CHECKING:
    from scaffolding_ext.controllers.budgets.queueing.queues import Queue

_ABOVE_0 = Finite(0, min_open=True)


class _TypesPath(click.Path):
    """A file or a folder; `configs:NAME` is in the package's folder of configs."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from scaffolding_ext.documents import located

        return super().convert(located(value), param, ctx)


def _batch(ctx: click.Context, param: click.Parameter, text: str | None) -> Queue:
    from scaffolding_ext.controllers.budgets.queueing.queues import Queue

    if text is None:
        return Queue()
    what = "the number of requests served at once and their slowdown"
    places, slowdown = parsed_numbers(text if "," in text else f"{text},0", 2, what, "16,0.1")
    return Queue(int(places), slowdown)


@click.command(cls=Command, short_help="Plan a thinking budget for each type of question under load.")
@click.argument("paths", nargs=-1, metavar="TYPES|RUN...", type=_TypesPath(exists=True, path_type=Path))
@click.option("--arrival_rate", type=_ABOVE_0, help="Questions per second that arrive.  [required]")
@click.option("--alpha", type=_ABOVE_0, help="Seconds that a right answer is worth.  [required]")
@click.option(
    "--batch",
    callback=_batch,
    metavar="N[,SLOWDOWN]",
    help="Requests served at once, each at the speed 1 / (1 + SLOWDOWN (n - 1)).  [default: 1]",
)
@click.option("--measured", is_flag=True, help="Choose among the budgets of the runs, without a fitted curve.")
@click.option(
    "--config",
    "source",
    metavar="FILE",
    help="Stack whose workers and prompt the written stack keeps.  "
    "[default: that of the RUNs, or a server on this machine]",
)
@click.option("--output_path", type=OutputPath(), help="Write the planned stack.")
@json_option
def plan(
    paths: tuple[Path, ...],
    arrival_rate: float | None,
    alpha: float | None,
    batch: Queue,
    measured: bool,
    source: str | None,
    output_path: Path | None,
    as_json: bool,
) -> None:
    """Choose a thinking budget for each type of question, for questions that wait for each other.

    A RUN is a folder of `eval`; runs at three or more thinking budgets show what each type gains. TYPES is a YAML file
    of types, written by hand or taken from --json. A question's type is its `kind`.

    \b
    Example:
      scaffolding-ext plan runs/budget_* --arrival_rate 0.3 --alpha 30 --output_path stack.yaml
      scaffolding-ext plan configs:calibrations/queueing_table_1.yaml --arrival_rate 0.1 --alpha 30
    """
    from scaffolding_ext import require
    from scaffolding_ext.controllers.budgets.files import TaskTypes
    from scaffolding_ext.documents import write_text
    from scaffolding_ext.evaluation.tune.budgets_by_type import budgets_of, common_stack, planned_budgets, read_sweep
    from scaffolding_ext.stack.load import load_config

    is_file = [path.suffix for path in paths] == [".yaml"]
    needed = {
        "a YAML file of types, or folders of `eval` at three or more budgets (controller.args.thinking_tokens)": is_file
        or len(budgets_of(paths)) >= 3,
        "--arrival_rate RATE, the questions per second": arrival_rate is not None,
        "--alpha SECONDS, the worth of a right answer": alpha is not None,
    }
    if arrival_rate is None or alpha is None or not all(needed.values()):
        raise click.UsageError(f"plan needs {'; '.join(what for what, is_there in needed.items() if not is_there)}")
    if is_file:
        types, file = TaskTypes.load(paths[0]), paths[0]
    else:
        (types, warnings), file = read_sweep(paths), None
        for warning in warnings:
            click.echo(f"Warning: {warning}", err=True)
    base = None if source is None else load_config(source)
    if base is None and not is_file and (base := common_stack(paths)) is not None:
        base = base.model_copy(update={"max_parallel_requests": batch.places})  # runs that measure seconds have 1
    with require.under():
        found = planned_budgets(types, arrival_rate, alpha, batch, measured, file, base)
    if output_path is not None:
        write_text(output_path, found.stack.to_yaml())
    click.echo(json.dumps(found.document()) if as_json else "\n".join(found.lines()))
    if not as_json:
        say_written(output_path, found.stack)
