"""Command `scaffolding-ext run`: run one prompt through a stack."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import click

from scaffolding_ext.cli.options import (
    Command,
    Finite,
    OwnModel,
    config_option,
    families_told,
    given,
    json_option,
    max_tokens_option,
    model_options,
    set_option,
    started,
)

if TYPE_CHECKING:
    from scaffolding_ext.request.results import ScaffoldingResult


@click.command(cls=Command, short_help="Run one prompt; print its answer and tokens.")
@click.argument("prompt")
@config_option
@model_options
@set_option
@max_tokens_option
@click.option("--seed", type=int, help="Seed of the run instead of the stack file's.")
@click.option("--task_type", help="Type of the question, for a stack with a plan per type.")
@click.option(
    "--timeout",
    type=Finite(min=0, min_open=True),
    help="Seconds after which the command fails, including the start of the workers.",
)
@json_option
def run(
    prompt: str,
    source: str,
    overrides: tuple[str, ...],
    own_model: OwnModel,
    max_tokens: int | None,
    seed: int | None,
    task_type: str | None,
    timeout: float | None,
    as_json: bool,
) -> None:
    """Run one PROMPT and print its completion, answer, exit reason and tokens by purpose.

    \b
    Example:
      scaffolding-ext run "Start with 5. Apply a+3,b-2. Find the total." --config configs:dynasor_cot --seed 1
    """
    from rich.console import Console

    from scaffolding_ext.controllers.base import checked_task_type
    from scaffolding_ext.evaluation.tables import drawn_of
    from scaffolding_ext.host.arguments import checked_prompt

    checked_prompt(prompt)
    config, began = own_model.load(source, [*overrides, *given(seed=seed)], max_tokens), time.monotonic()
    with families_told(), started(config, timeout) as llm:
        left = None if timeout is None else max(0.001, timeout - (time.monotonic() - began))
        named = {} if task_type is None else {"task_type": checked_task_type(llm.prototype_controller, task_type)}
        with Console(stderr=True).status("generating"):
            result = llm.generate(prompt, timeout=left, **named)
    if as_json:
        click.echo(json.dumps(_result_document(result)))
        return
    click.echo(result.outputs[0].text)
    click.echo()
    click.echo(f"answer       {_or_dash(result.answer)}")
    click.echo(f"exit reason  {_or_dash(result.exit_reason)}")
    if drawn := drawn_of([result.program]):
        click.echo(f"drawn        {drawn}")
    if result.answer is None:
        click.echo("Note: no answer was found in this output; `scaffolding-ext check STACK` says why.", err=True)
    if result.program.ledger.task_type is not None:
        click.echo(f"type         {result.program.ledger.task_type}")
    for purpose, counts in result.program.ledger.by_purpose.items():
        figures = ", ".join(f"{number} {name}" for name, number in counts._asdict().items())
        click.echo(f"{purpose!s:<13}{figures}")


def _result_document(result: ScaffoldingResult) -> dict[str, Any]:
    return {
        "text": result.outputs[0].text,
        "answer": result.answer,
        "exit_reason": result.exit_reason,
        "ledger": result.program.ledger.to_json(),
        "seed": result.program.seeds.seed,
        "trace": result.program.trace,
    }


def _or_dash(value: str | None) -> str:
    return "-" if value is None else value
