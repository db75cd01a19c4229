"""`--model` and what goes with it: the user's own model in the place of a stack file's."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

if TYPE_CHECKING:
    from scaffolding_ext.stack.config import StackConfig

F = TypeVar("F", bound=Callable[..., Any])
SUFFIX = "\nPlease reason step by step, and put your final answer within \\boxed{}."
_OPTIONS = (
    click.option("--model", metavar="NAME", help="Model instead of the stack's: a folder, a hub name, or a server's."),
    click.option("--base_url", metavar="URL", help="OpenAI-compatible server of it, such as http://localhost:8000/v1."),
    click.option("--api_key_env", metavar="VARIABLE", help="Environment variable with the server's key."),
    click.option(
        "--endpoint",
        type=click.Choice(["chat", "completions"]),
        help="Interface of the server.  [default: completions if the tokenizer is found, else chat]",
    ),
)


class OwnModel(NamedTuple):
    """The user's own model, in the place of a stack file's generation worker.

    Attributes:
        model: A folder or a hub's name; with `base_url`, the server's name for it.
        base_url: Address of an OpenAI-compatible server; without it the model runs in this process.
        api_key_env: Environment variable with the server's key.
        endpoint: `"chat"` or `"completions"`; None leaves it to the worker.
    """

    model: str | None
    base_url: str | None
    api_key_env: str | None
    endpoint: str | None

    def load(self, source: str, overrides: Sequence[str] = ()) -> StackConfig:
        """The stack of a file with this model and then the overrides.

        Raises:
            ConfigError: The stack has no generation worker, or the options do not suit it.
        """
        from scaffolding_ext.stack.load import load_config

        return load_config(source, [*self._overrides(load_config(source)), *overrides] if any(self) else overrides)

    def _overrides(self, stack: StackConfig) -> list[str]:
        from scaffolding_ext.errors import ConfigError
        from scaffolding_ext.prompts.prompting import COLLECTIONS, may_have_tokenizer

        worker = stack.workers.get("generation")
        if worker is None:
            tags = ", ".join(stack.workers)
            raise ConfigError(
                f"replaces the generation worker, and this stack has none; it has {tags}: set each worker's arguments "
                "by --set workers.TAG.args.KEY=VALUE",
                "model",
            )
        server = {"base_url": self.base_url, "api_key_env": self.api_key_env, "endpoint": self.endpoint}
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
            if self.endpoint == "completions" and not may_have_tokenizer(self.model):
                args["text_prompts"] = True
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


def model_options(command: F) -> F:
    """Add `--model`, `--base_url`, `--api_key_env` and `--endpoint`; the command gets them as `own_model`."""

    @functools.wraps(command)
    def with_model(*args: Any, **options: Any) -> Any:
        own = OwnModel(*(options.pop(name) for name in OwnModel._fields))
        return command(*args, own_model=own, **options)

    for option in reversed(_OPTIONS):
        with_model = option(with_model)
    return with_model  # type: ignore[return-value]
