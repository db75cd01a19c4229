"""Command `scaffolding-ext check`: ask a stack two questions, and report its problems."""

from __future__ import annotations

import json

import click

from scaffolding_ext.cli.options import Command, Finite, OwnModel, json_option, model_options, set_option


@click.command(cls=Command, short_help="Ask a stack two questions and report its problems.")
@click.argument("stack")
@model_options
@set_option
@click.option("--question", "questions", multiple=True, metavar="TEXT", help="Question to ask; may be repeated.")
@click.option(
    "--max_tokens",
    type=click.IntRange(min=1),
    help="Maximum tokens of each chain, if the controller has such an argument.  [default: the stack's own]",
)
@click.option(
    "--timeout",
    type=Finite(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds per question.",
)
@json_option
@click.pass_context
def check(
    ctx: click.Context,
    stack: str,
    overrides: tuple[str, ...],
    own_model: OwnModel,
    questions: tuple[str, ...],
    max_tokens: int | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Ask STACK two questions; show the prompt, the probe and the output; report problems and how to fix them.

    STACK is a stack file, or configs:NAME. It looks for a missing box or thinking mark, thinking that is dropped on the
    way, greedy thinking, missing log-probabilities, a worker that does not stop at the end of a turn, and probes
    without an answer. The exit code is 1 if a problem is found.

    \b
    Example:
      scaffolding-ext check configs:models/qwen3 --set workers.generation.args.base_url=http://localhost:8000/v1
      scaffolding-ext check stack.yaml --question "What is 17 + 25?" --max_tokens 512
    """
    from scaffolding_ext.doctor.examination import examine
    from scaffolding_ext.evaluation.run.progress_bar import Heartbeat, beating
    from scaffolding_ext.protocol import Worker
    from scaffolding_ext.protocol.worker import num_written_by

    config, workers = own_model.load(stack, overrides), list[Worker]()
    beat = Heartbeat(lambda: 0, lambda: num_written_by(workers))
    with beating(beat.beat, lambda told: click.echo(told, err=True)):
        found = examine(config, questions, max_tokens, timeout, built=lambda llm: workers.extend(llm.workers.values()))
    if as_json:
        click.echo(json.dumps(found.to_json()))
    else:
        for line in found.lines():
            click.echo(line)
    if not found.is_fine:
        ctx.exit(1)
