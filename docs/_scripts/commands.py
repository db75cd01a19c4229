"""Writes docs/reference/cli.md from the commands themselves: `make pages`; a test fails where the page lags."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path

import click

from scaffolding_ext.cli.main import main

PAGE = Path(__file__).parents[1] / "reference" / "cli.md"
WIDTH = 100
HEAD = """# Commands

`make pages` writes this page from the code. It lists every command and option of `scaffolding-ext`, as
`scaffolding-ext COMMAND --help` prints them. Keys of a stack file can be set on the command line, as often as needed:
`--set controller.args.chunk_size=64`. Exit codes stand on [the page of what is public](../public_api.md#commands).
"""


def page() -> str:
    """The page."""
    return "\n".join([HEAD, *_sections(main, "scaffolding-ext", 2)])


def _sections(group: click.Group, path: str, level: int) -> Iterator[str]:
    for name, command in sorted(group.commands.items()):
        yield f"{'#' * level} {path} {name}\n"
        yield from _described(command)
        if isinstance(command, click.Group):
            yield from _sections(command, f"{path} {name}", level + 1)
            continue
        # click keeps the help option of the first context, so that is the program's own
        context = click.Context(command, info_name=f"{path} {name}", **main.context_settings)
        usage, options = click.HelpFormatter(width=WIDTH), click.HelpFormatter(width=WIDTH)
        command.format_usage(context, usage)
        command.format_options(context, options)
        yield f"```text\n{usage.getvalue()}\n{options.getvalue()}```\n"


def _described(command: click.Command) -> Iterator[str]:
    """What its help says, with examples as code."""
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        kept = paragraph.strip("\n").removeprefix("\b\n")
        if kept == paragraph.strip("\n"):
            yield f"{' '.join(paragraph.split())}\n"
            continue
        title, _, code = kept.partition("\n")
        yield f"{title}\n\n```bash\n{textwrap.dedent(code).rstrip()}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
