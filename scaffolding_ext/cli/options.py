"""What several commands take: their options, and the stack and dataset that these name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from scaffolding_ext.stack.config import DatasetConfig, StackConfig


class _ConfigOption(click.Option):
    """Names the packaged stacks in its help; they are looked up when somebody asks for it."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        from scaffolding_ext.stack.load import packaged_stacks

        self.help = (
            f"Stack file, or one of the package's: {', '.join(f'configs:{name}' for name in packaged_stacks())}."
        )
        return super().get_help_record(ctx)


config_option = click.option("--config", "source", cls=_ConfigOption, required=True, metavar="FILE")
set_option = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Set a key of the stack file; may be repeated."
)
dataset_option = click.option(
    "--dataset", metavar="SPEC", help="JSONL file or tinylm:held_out, instead of the stack file's dataset."
)
limit_option = click.option("--limit", metavar="N|A-B", help="The first N samples, or those from the A-th to the B-th.")
json_option = click.option("--json", "as_json", is_flag=True, help="Write one JSON document to standard output.")


def given(**options: int | None) -> list[str]:
    """The options that were given, as overrides of the stack file."""
    return [f"{key}={value}" for key, value in options.items() if value is not None]


def config_with_dataset(
    source: str, dataset: str | None, overrides: Sequence[str]
) -> tuple[StackConfig, DatasetConfig]:
    """The stack of `--config`, `--dataset` and `--set`, and what it runs on.

    Raises:
        ConfigError: The stack is wrong, or names no dataset.
    """
    from scaffolding_ext.errors import ConfigError
    from scaffolding_ext.stack.load import load_config

    replaced = [] if dataset is None else ["dataset=" + json.dumps({"source": dataset})]
    config = load_config(source, [*replaced, *overrides])
    if config.dataset is None:
        raise ConfigError("there is none; name a JSONL file or tinylm:held_out here or by --dataset", "dataset")
    return config, config.dataset
