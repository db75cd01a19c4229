"""`scaffolding-ext check`: asks a stack two questions, and reports faults of its prompt, sampling and worker."""

from __future__ import annotations

import json

import click

from scaffolding_ext.cli.options import Command, Finite, OwnModel, json_option, model_options, set_option


@click.command(cls=Command, short_help="Ask a stack two questions and say what is wrong with it.")
@click.argument("stack")
@model_options
@set_option
@click.option("--question", "questions", multiple=True, metavar="TEXT", help="What is asked; may be repeated.")
@click.option(
    "--max_tokens",
    type=click.IntRange(min=1),
    default=2048,
    show_default=True,
    help="Tokens of each chain, where the controller can be told.",
)
@click.option(
    "--timeout",
    type=Finite(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds for each question.",
)
@json_option
@click.pass_context
def check(
    ctx: click.Context,
    stack: str,
    overrides: tuple[str, ...],
    own_model: OwnModel,
    questions: tuple[str, ...],
    max_tokens: int,
    timeout: float,
    as_json: bool,
) -> None:
    """Ask STACK two questions; show the prompt, the probe and what came back; say what is wrong and what to change.

    STACK is a stack file, or configs:NAME. What is looked for: no box, no mark of thinking, thinking that is dropped on
    the way, greedy thinking, log-probabilities that do not come, a worker that does not stop at the end of a turn,
    probes without an answer. The exit code is 1 where something is wrong.

    \b
    Example:
      scaffolding-ext check configs:models/qwen3 --set workers.generation.args.base_url=http://localhost:8000/v1
      scaffolding-ext check stack.yaml --question "What is 17 + 25?" --max_tokens 512
    """
    from scaffolding_ext.doctor.examination import examine

    found = examine(own_model.load(stack, overrides), questions, max_tokens, timeout)
    if as_json:
        click.echo(json.dumps(found.to_json()))
    else:
        for line in found.lines():
            click.echo(line)
    if not found.is_fine:
        ctx.exit(1)
