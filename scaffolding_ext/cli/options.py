"""Options shared by several commands, and the stack and dataset that they name."""

from __future__ import annotations

import functools
import json
import logging
import math
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from scaffolding_ext.host.llm import ScaffoldingLlm
    from scaffolding_ext.stack.config import DatasetConfig, StackConfig


SIGNAL_EXIT = 128  # exit codes above it name the signal that ended a program


class Command(click.Command):
    """Refuses an option given twice if it may be given only once, because the first value would be lost silently.

    Args:
        first: Options that the help shows before the others; empty for no such order.
    """

    def __init__(self, *args: Any, first: Sequence[str] = (), **options: Any) -> None:
        super().__init__(*args, **options)
        self._first = first

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = {each.name: each.get_help_record(ctx) for each in self.get_params(ctx)}
        first = [rows.pop(name) for name in self._first]
        for title, own in (("Options", first or list(rows.values())), ("More", list(rows.values()) if first else [])):
            if own:
                with formatter.section(title):
                    formatter.write_dl([row for row in own if row and row[1]])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for option, times in Counter(order).items():
            if times > 1 and isinstance(option, click.Option) and not option.multiple:
                raise click.UsageError(f"{option.opts[-1]} is given {times} times: give it once", ctx)
        return super().parse_args(ctx, args)


class Group(click.Group):
    """A group of `Command`s."""

    command_class = Command


class Finite(click.FloatRange):
    """A finite number within bounds."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number: give one.", param, ctx)
        return number


class OutputPath(click.Path):
    """A file or folder to write. Files are tried at once, because a command writes them only at its end."""

    def __init__(self, *, is_folder: bool = False) -> None:
        super().__init__(file_okay=not is_folder, dir_okay=is_folder, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value):
            self.fail("the name is empty: give a name, or '.' for the current folder.", param, ctx)
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        try:
            if self.file_okay and not _exists(path):
                tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(path))).close()
        except OSError as error:
            self.fail(f"{path} cannot be written ({error}): give another path.", param, ctx)
        return path


def _exists(path: Path) -> bool:
    """Return True if the path exists; OSError if it cannot, because its name is too long or it leads through a file."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    return True


config_option = click.option(
    "--config",
    "source",
    required=True,
    metavar="FILE",
    help="Stack file, or configs:NAME (`scaffolding-ext stacks` lists them).",
)
set_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Set a key of the stack file; may be repeated."
)
dataset_option = click.option(
    "--dataset",
    metavar="SPEC",
    help="JSONL file, hf:NAME, reasoning_gym:TASK or tinylm:held_out.",
)
limit_option = click.option("--limit", metavar="N|A-B", help="First N questions, or questions A to B.")
max_tokens_option = click.option("--max_tokens", type=click.IntRange(min=1), help="Maximum tokens of each chain.")
json_option = click.option("--json", "as_json", is_flag=True, help="Write one JSON document to standard output.")


@contextmanager
def families_told() -> Iterator[None]:
    """Report the prompt family found for a model on standard error, while the block runs."""
    logger, handler = logging.getLogger("scaffolding_ext.prompts.prompting"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("Note: %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


F = TypeVar("F", bound=Callable[..., Any])
SUFFIX = "\nPlease reason step by step, and put your final answer within \\boxed{}."
_OPTIONS = (
    click.option("--model", metavar="NAME", help="Model: a folder, a hub name, or a server's."),
    click.option("--base_url", metavar="URL", help="OpenAI-compatible server of the model."),
    click.option("--api_key_env", metavar="VARIABLE", help="Environment variable with the server's key."),
    click.option(
        "--endpoint",
        type=click.Choice(["chat", "completions"]),
        help="Interface of the server.  [default: completions if the tokenizer is found, else chat]",
    ),
    click.option(
        "--tokenizer",
        metavar="NAME",
        help="Tokenizer of the server's model, if neither --model nor the server names it.",
    ),
)


class OwnModel(NamedTuple):
    """The user's model, which replaces a stack file's generation worker.

    Attributes:
        model: A folder or a hub's name; with `base_url`, the server's name for it.
        base_url: Address of an OpenAI-compatible server; without it the model runs in this process.
        endpoint: `"chat"` or `"completions"`; None leaves it to the worker.
        tokenizer: Folder or hub name of the tokenizer of a server's model.
    """

    model: str | None
    base_url: str | None
    api_key_env: str | None
    endpoint: str | None
    tokenizer: str | None = None

    def load(self, source: str, overrides: Sequence[str] = (), max_tokens: int | None = None) -> StackConfig:
        """Load a stack file with this model, then apply the overrides and the limit of its chains.

        Raises:
            ConfigError: The stack has no generation worker, or the options do not fit it.
        """
        from scaffolding_ext.stack.load import load_config

        changes = [*self._overrides(load_config(source)), *overrides] if any(self) else list(overrides)
        config = load_config(source, changes)
        return config if max_tokens is None else load_config(source, [*changes, max_tokens_given(config, max_tokens)])

    def _overrides(self, stack: StackConfig) -> list[str]:
        from scaffolding_ext.errors import ConfigError
        from scaffolding_ext.prompts.tokenizers import COLLECTIONS

        worker = stack.workers.get("generation")
        if worker is None:
            tags = ", ".join(stack.workers)
            raise ConfigError(
                f"replaces the generation worker, but this stack has none; it has {tags}: set each worker's arguments "
                "with --set workers.TAG.args.KEY=VALUE",
                "model",
            )
        server = {name: getattr(self, name) for name in ("base_url", "api_key_env", "endpoint", "tokenizer")}
        server = {key: value for key, value in server.items() if value is not None}
        if self.model is None:
            if worker.type != "OpenAIWorker":
                raise ConfigError(
                    f"is given without --model, and the stack's generation worker is {worker.type}, which asks no "
                    "server: give --model NAME, the server's name for its model",
                    next(iter(server)),
                )
            return [f"workers.generation.args.{key}={json.dumps(value)}" for key, value in server.items()]
        if server and self.base_url is None:
            raise ConfigError("is given without --base_url: give the server's address", next(iter(server)))
        args: dict[str, Any] = {"model": self.model, **server}
        if server:
            args.setdefault("endpoint", "auto")
        kind = "OpenAIWorker" if server else "HuggingFaceWorker"
        told = [f"workers.generation={json.dumps({'type': kind, 'args': args})}"]
        if self.model.partition("/")[0] in COLLECTIONS:
            return told
        prompt = {} if stack.prompt is None else stack.prompt.model_dump(exclude_unset=True, exclude={"model"})
        if prompt.get("family") in COLLECTIONS:
            del prompt["family"]
        prompt.setdefault("prompt_suffix", SUFFIX)
        return [*told, f"prompt={json.dumps(prompt)}"]


NO_OWN_MODEL = OwnModel(None, None, None, None)


def grouped(options: Sequence[Any], kind: Any, name: str) -> Callable[[F], F]:
    """Add options to a command that takes them as one argument, a named tuple."""

    def decorated(command: F) -> F:
        @functools.wraps(command)
        def with_options(*args: Any, **given: Any) -> Any:
            own = kind(**{field: given.pop(field) for field in kind._fields})
            return command(*args, **{name: own}, **given)

        for option in reversed(options):
            with_options = option(with_options)
        return with_options  # type: ignore[return-value]

    return decorated


model_options = grouped(_OPTIONS, OwnModel, "own_model")


def max_tokens_given(config: StackConfig, max_tokens: int) -> str:
    """Return the override that limits the chains of a stack's innermost controller.

    Raises:
        ConfigError: It has no such argument.
    """
    from scaffolding_ext.errors import ConfigError
    from scaffolding_ext.registry import controllers
    from scaffolding_ext.signature import Signature

    path, kind, args = "controller", config.controller.type, config.controller.args
    while isinstance(inner := args.get("generation_controller"), dict):
        path, kind, args = f"{path}.args.generation_controller", inner["type"], inner.get("args") or {}
    known = Signature.of(controllers.resolve(kind)).parameters
    for key in ("max_tokens", "sampling_params.max_tokens"):
        if key.partition(".")[0] in known and "thinking_tokens" not in known:
            return f"{path}.args.{key}={max_tokens}"
    raise ConfigError(
        f"is {max_tokens}, but {kind} takes none: set one of its arguments with --set {path}.args.KEY=VALUE; it has "
        f"{', '.join(known)}",
        "max_tokens",
    )


def started(config: StackConfig, timeout: float | None) -> ScaffoldingLlm:
    """Build a stack within a time limit.

    Raises:
        RequestTimeoutError: The workers are not ready in time.
    """
    from scaffolding_ext.errors import RequestTimeoutError
    from scaffolding_ext.stack.build import build_stack

    building: Future[ScaffoldingLlm] = Future()

    def build() -> None:
        try:
            building.set_result(build_stack(config))
        except BaseException as error:
            building.set_exception(error)

    threading.Thread(target=build, name="start", daemon=True).start()  # a daemon does not keep the program alive
    servers = ", ".join(str(worker.args["base_url"]) for worker in config.workers.values() if "base_url" in worker.args)
    done, _ = wait([building], timeout)
    if not done:
        what = f"the server at {servers} did not answer" if servers else "the workers did not start"
        raise RequestTimeoutError(f"{what} within {timeout:g} s: check that it runs, or give a longer --timeout")
    return building.result()


def given(section: str = "", **options: Any) -> list[str]:
    """Return the options that were given, as overrides of the stack file or of one of its sections."""
    return [f"{section}{key}={json.dumps(value)}" for key, value in options.items() if value is not None]


def dataset_given(dataset: str | None) -> list[str]:
    return [] if dataset is None else ["dataset=" + json.dumps({"source": dataset})]


def config_with_dataset(
    source: str,
    dataset: str | None,
    overrides: Sequence[str],
    own_model: OwnModel = NO_OWN_MODEL,
    max_tokens: int | None = None,
) -> tuple[StackConfig, DatasetConfig]:
    """Return the stack of these options, and its dataset.

    Raises:
        ConfigError: The stack is wrong, or names no dataset.
    """
    from scaffolding_ext.errors import ConfigError

    config = own_model.load(source, [*dataset_given(dataset), *overrides], max_tokens)
    if config.dataset is None:
        raise ConfigError("is missing: name a JSONL file or tinylm:held_out here, or with --dataset", "dataset")
    return config, config.dataset
