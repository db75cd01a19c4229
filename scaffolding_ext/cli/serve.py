"""Command `scaffolding-ext serve`: stacks behind OpenAI's HTTP interface."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from scaffolding_ext.cli.options import Command, OwnModel, config_option, model_options, set_option

if TYPE_CHECKING:
    from scaffolding_ext.serving.settings import Limits


@click.command(cls=Command, short_help="Serve stacks under OpenAI's HTTP interface.")
@config_option
@model_options
@set_option
@click.option("--name", help="Model name of the stack of --config.  [default: its file's name]")
@click.option("--stack", "stacks", multiple=True, metavar="NAME=FILE", help="Another stack; may be repeated.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port to listen on.")
@click.option(
    "--effort", "efforts", multiple=True, metavar="NAME=TOKENS", help="Thinking tokens of a reasoning_effort."
)
@click.option("--keys_env", help="Environment variable with accepted API keys, separated by commas.")
@click.option(
    "--limit",
    "bounds",
    multiple=True,
    metavar="NAME=NUMBER",
    help="Bound on requests, such as max_queue=64; may be repeated. docs/serving.md lists them.",
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
    efforts: tuple[str, ...],
    keys_env: str | None,
    bounds: tuple[str, ...],
    log_content: bool,
) -> None:
    """Serve stacks under OpenAI's HTTP interface, each as a model.

    \b
    Example:
      scaffolding-ext serve --config configs:dynasor_cot --stack vote=configs:majority_vote
    """
    import logging

    from scaffolding_ext.errors import ConfigError, MissingDependencyError

    try:
        from scaffolding_ext.serving.app import Front
        from scaffolding_ext.serving.server import run_front
    except ImportError as error:
        raise MissingDependencyError(str(error.name), "serve") from error
    from scaffolding_ext.serving.served_stack import ServedStack, name_of
    from scaffolding_ext.serving.settings import EFFORTS, Limits
    from scaffolding_ext.stack.build import build_stack

    limits = Limits(
        **_bounds(bounds, Limits()),
        efforts=dict(map(read_effort, efforts)) or dict(EFFORTS),
        shows_content=log_content,
    )
    keys = () if keys_env is None else _keys(keys_env)
    configs = {name or name_of(source): own_model.load(source, overrides)}
    for further in stacks:
        own, equals, file = further.partition("=")
        if not equals or not own or own in configs:
            raise ConfigError(f"is {further!r}; give NAME=FILE, with a name that no other stack has", "stack")
        configs[own] = own_model.load(file)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for client in ("httpx", "httpx2"):  # a line for each request to a server behind
        logging.getLogger(client).setLevel(logging.WARNING)
    served: list[ServedStack] = []
    try:
        for own, config in configs.items():
            served.append(ServedStack(own, build_stack(config), limits, config=config))
        front = Front(served, limits, keys)
        run_front(front, host, port, lambda at: click.echo(f"serving {', '.join(configs)} on http://{host}:{at}/v1"))
    finally:
        for stack in served:
            stack.llm.shutdown()


def _bounds(given: tuple[str, ...], limits: Limits) -> dict[str, Any]:
    """Parse bounds of `NAME=NUMBER`.

    Raises:
        ConfigError: The name is unknown, or the value is no number.
    """
    from scaffolding_ext.errors import ConfigError
    from scaffolding_ext.registry import unknown_name

    kinds: dict[str, Any] = {name: type(value) for name, value in vars(limits).items() if type(value) in (int, float)}
    kinds["ignores_unknown_fields"] = lambda text: bool(int(text))
    found = {}
    for name, _, value in (each.partition("=") for each in given):
        if name not in kinds:
            raise ConfigError(unknown_name("bound", name, tuple(kinds)), "limit")
        try:
            found[name] = kinds[name](value)
        except ValueError:
            raise ConfigError(f"is {name}={value}; give a number, such as {name}=64", "limit") from None
    return found


def read_effort(text: str) -> tuple[str, int]:
    """Read `NAME=TOKENS`.

    Raises:
        ConfigError: The text does not have this form.
    """
    from scaffolding_ext.errors import ConfigError

    name, equals, tokens = text.partition("=")
    if not equals or not name.strip() or not tokens.strip().isdecimal() or int(tokens) < 1:
        raise ConfigError(f"is {text!r}; it must have the form NAME=TOKENS, such as low=512", "effort")
    return name.strip(), int(tokens)


def _keys(variable: str) -> list[str]:
    """Read the keys of an environment variable.

    Raises:
        ConfigError: There are none, or one cannot be sent in a header.
    """
    from scaffolding_ext.errors import ConfigError

    keys = [key.strip() for key in os.environ.get(variable, "").split(",") if key.strip()]
    if not keys:
        raise ConfigError(
            f"names the environment variable {variable}, which is not set: run `export {variable}=...`", "keys_env"
        )
    if not all(key.isascii() and ":" not in key for key in keys):
        raise ConfigError(
            f"names {variable}, which holds a key with a colon or a character outside ASCII: list keys alone, with "
            "commas between them",
            "keys_env",
        )
    return keys
