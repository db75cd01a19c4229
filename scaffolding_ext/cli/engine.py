"""Command `scaffolding-ext engine`: check TensorRT engines without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import click

from scaffolding_ext.cli.options import Group, config_option, json_option, set_option


@click.group(cls=Group)
def engine() -> None:
    """Check engines of trtllm-build against the needs of a stack."""


@engine.command("check", short_help="Check that an engine fits a stack.")
@click.argument("folder", type=click.Path(path_type=Path))
@config_option
@set_option
@click.option("--worker", "tag", metavar="TAG", help="Worker of the stack; required if the stack has several.")
@json_option
@click.pass_context
def check(
    ctx: click.Context, folder: Path, source: str, overrides: tuple[str, ...], tag: str | None, as_json: bool
) -> None:
    """Read the config.json of the engine in FOLDER and report needs of the stack that it was not built for.

    If something is missing, the exit code is 1 and the trtllm-build flags that fix it are printed. Neither a GPU nor
    TensorRT-LLM is needed.

    \b
    Example:
      scaffolding-ext engine check engines/target --config stack.yaml --worker target
    """
    from scaffolding_ext.errors import ConfigError
    from scaffolding_ext.stack.build import engine_needs
    from scaffolding_ext.stack.load import load_config
    from scaffolding_ext.workers.trtllm.engine_config import EngineConfig

    config = load_config(source, overrides)
    if tag is None:
        tags = [name for name in config.workers if name != "compare"]
        if len(tags) != 1:
            raise ConfigError(
                f"has {', '.join(tags) or 'none'}, but the command checks one worker: name it with --worker", "workers"
            )
        tag = tags[0]
    built = EngineConfig.read(folder)
    needs = engine_needs(config, tag)
    lacking = built.shortfalls(needs)
    if as_json:
        document = {
            "needs": needs._asdict(),
            "built": built._asdict() | {"folder": str(folder)},
            "lacking": lacking,
            "build_flags": built.build_flags(needs) if lacking else [],
        }
        click.echo(json.dumps(document))
    elif not lacking:
        click.echo(f"{folder} meets all needs of the worker {tag!r}")
        if not needs.logprobs:
            click.echo(
                "No controller declares that it reads log-probabilities: with serve_logprobs: false the engine runs in "
                "a process of its own, and streams are faster"
            )
    else:
        for sentence in lacking:
            click.echo(f"lacking  {sentence}")
        click.echo(f"build    trtllm-build --checkpoint_dir CHECKPOINT --output_dir {folder} \\")
        click.echo(f"           {' '.join(built.build_flags(needs))}")
    if lacking:
        ctx.exit(1)
