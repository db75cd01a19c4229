"""Command `scaffolding-ext serve`: stacks behind OpenAI's HTTP interface."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaffolding_ext.cli.options import Command, Finite, OwnModel, config_option, model_options, set_option

if TYPE_CHECKING:
    from scaffolding_ext.serving.access import Keys


@click.command(cls=Command, short_help="Serve stacks under OpenAI's HTTP interface.")
@config_option
@model_options
@set_option
@click.option("--name", help="Model name of the stack of --config.  [default: its file's name]")
@click.option("--stack", "stacks", multiple=True, metavar="NAME=FILE", help="Another stack; may be repeated.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port to listen on.")
@click.option(
    "--allow", multiple=True, metavar="KNOB[<=MOST]", help="Controller argument that clients may set; may be repeated."
)
@click.option(
    "--effort", "efforts", multiple=True, metavar="NAME=TOKENS", help="Thinking tokens of a reasoning_effort."
)
@click.option("--keys_file", type=click.Path(path_type=Path), help="File of accepted API keys, one per line.")
@click.option("--keys_env", help="Environment variable with accepted API keys, separated by commas.")
@click.option(
    "--share_prefixes", is_flag=True, help="Let requests with different keys reuse the KV of each other's prompts."
)
@click.option(
    "--max_queue", type=click.IntRange(0), default=256, show_default=True, help="Maximum choices waiting for a stack."
)
@click.option(
    "--max_connections",
    type=click.IntRange(2),
    default=4096,
    show_default=True,
    help="Maximum open connections, half of them from one address.",
)
@click.option(
    "--max_body_bytes", type=click.IntRange(1), default=1 << 20, show_default=True, help="Largest request body."
)
@click.option("--max_prompt_tokens", type=click.IntRange(1), default=32768, show_default=True, help="Longest prompt.")
@click.option(
    "--max_samples", type=click.IntRange(1), default=16, show_default=True, help="Maximum choices per request."
)
@click.option(
    "--max_request_tokens",
    type=click.IntRange(1),
    default=65536,
    show_default=True,
    help="Maximum decoded tokens per choice.",
)
@click.option(
    "--answer_tokens",
    type=click.IntRange(1),
    default=512,
    show_default=True,
    help="Most tokens of an answer that a thinking model is asked for.",
)
@click.option(
    "--max_seconds",
    type=Finite(0, min_open=True),
    default=600,
    show_default=True,
    help="Maximum seconds per request.",
)
@click.option(
    "--keep_alive_seconds",
    type=Finite(0, min_open=True),
    default=10,
    show_default=True,
    help="Seconds between comments that keep a stream open.",
)
@click.option(
    "--drain_seconds",
    type=Finite(0, min_open=True),
    default=30,
    show_default=True,
    help="Seconds that running requests get after SIGTERM.",
)
@click.option(
    "--unknown_fields",
    type=click.Choice(["refuse", "ignore"]),
    default="refuse",
    show_default=True,
    help="Refuse requests with unknown fields, or ignore the fields.",
)
@click.option("--log_content", is_flag=True, help="Write prompts and answers to the log.")
def serve(
    source: str,
    overrides: tuple[str, ...],
    own_model: OwnModel,
    name: str | None,
    stacks: tuple[str, ...],
    host: str,
    port: int,
    allow: tuple[str, ...],
    efforts: tuple[str, ...],
    keys_file: Path | None,
    keys_env: str | None,
    share_prefixes: bool,
    max_queue: int,
    max_connections: int,
    max_body_bytes: int,
    max_prompt_tokens: int,
    max_samples: int,
    max_request_tokens: int,
    answer_tokens: int,
    max_seconds: float,
    keep_alive_seconds: float,
    drain_seconds: float,
    unknown_fields: str,
    log_content: bool,
) -> None:
    """Serve stacks under OpenAI's HTTP interface, each as a model.

    \b
    Example:
      scaffolding-ext serve --config configs:dynasor_cot --stack vote=configs:majority_vote --allow chunk_size
    """
    import logging

    from scaffolding_ext.errors import ConfigError, MissingDependencyError

    try:
        from scaffolding_ext.serving.app import Front
        from scaffolding_ext.serving.server import run_front
    except ImportError as error:
        raise MissingDependencyError(str(error.name), "serve") from error
    from scaffolding_ext.serving.served_stack import ServedStack, name_of
    from scaffolding_ext.serving.settings import EFFORTS, Knob, Limits, read_effort
    from scaffolding_ext.stack.build import build_stack

    limits = Limits(
        max_body_bytes=max_body_bytes,
        max_prompt_tokens=max_prompt_tokens,
        max_samples=max_samples,
        max_request_tokens=max_request_tokens,
        answer_tokens=answer_tokens,
        max_seconds=max_seconds,
        max_queue=max_queue,
        max_connections=max_connections,
        keep_alive_seconds=keep_alive_seconds,
        drain_seconds=drain_seconds,
        efforts=dict(map(read_effort, efforts)) or dict(EFFORTS),
        ignores_unknown_fields=unknown_fields == "ignore",
        shows_content=log_content,
    )
    keys = _keys(keys_file, keys_env, share_prefixes)
    configs = {name or name_of(source): own_model.load(source, overrides)}
    for further in stacks:
        own, equals, file = further.partition("=")
        if not equals or not own or own in configs:
            raise ConfigError(f"is {further!r}; give NAME=FILE, with a name that no other stack has", "stack")
        configs[own] = own_model.load(file)
    knobs = list(map(Knob.read, allow))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for client in ("httpx", "httpx2"):  # a line for each request to a server behind
        logging.getLogger(client).setLevel(logging.WARNING)
    served: list[ServedStack] = []
    try:
        for own, config in configs.items():
            served.append(ServedStack(own, build_stack(config), limits, config=config, knobs=knobs))
        unknown = [knob.path for knob in knobs if not any(knob.path in stack.variants.knobs for stack in served)]
        if unknown:
            raise ConfigError(
                f"names {', '.join(unknown)}, which is not an argument of any controller of these stacks", "allow"
            )
        front = Front(served, limits, keys)
        run_front(front, host, port, lambda at: click.echo(f"serving {', '.join(configs)} on http://{host}:{at}/v1"))
    finally:
        for stack in served:
            stack.llm.shutdown()


def _keys(file: Path | None, variable: str | None, share_prefixes: bool) -> Keys:
    from scaffolding_ext import require
    from scaffolding_ext.errors import ConfigError
    from scaffolding_ext.serving.access import Keys

    require.alone("keys_file", file, keys_env=variable)
    if file is not None:
        return Keys.in_file(file, share_prefixes)
    if variable is None:
        return Keys(None)
    if not os.environ.get(variable):
        raise ConfigError(
            f"names the environment variable {variable}, which is not set: run `export {variable}=...`", "keys_env"
        )
    return Keys.read(os.environ[variable].replace(",", "\n"), "keys_env", share_prefixes)
