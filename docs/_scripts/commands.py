"""Writes docs/reference/cli.md from the commands themselves: `make pages`; a test fails where the page lags."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

from scaffolding_ext.cli.main import main

PAGE = Path(__file__).parents[1] / "reference" / "cli.md"
WIDTH = 82
HEAD = """# Commands

Every command and option of `scaffolding-ext`, as `scaffolding-ext COMMAND --help` prints them. `make pages` writes
this page. `--set` changes any key of a stack file, as often as needed: `--set controller.args.chunk_size=64`.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | done, with a bad outcome: samples failed, a check found problems, a calibration was refused |
| 2 | the command could not run: an invalid option, an invalid stack file, a missing file |
| 130, 143 | interrupted by a signal |

## Options of several commands

Every command has `-h`, `--help`. Where another option of this list applies, the command's own list ends with its name.
"""


class _Option(NamedTuple):
    """An option as `--help` prints it: how it is written, and what it does."""

    written: str
    text: str


def page() -> str:
    """The page."""
    commands = list(_commands(main, "scaffolding-ext"))
    times = Counter(option for _, command in commands for option in _options(command))
    by_name = {option.written: option for option, number in reversed(times.most_common()) if number > 1}
    common = list(reversed(by_name.values()))  # those of most commands first
    return "\n".join([HEAD, _listed(common), *_sections(main, "scaffolding-ext", 2, common)])


def _commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _options(command: click.Command) -> list[_Option]:
    # click keeps the help option of the first context, so that is the program's own
    context = click.Context(command, **main.context_settings)
    records = [option.get_help_record(context) for option in command.get_params(context)]
    return [
        _Option(record[0].replace(" INTEGER RANGE", " INTEGER"), record[1])
        for record in records
        if record is not None and record[1] and "--help" not in record[0]
    ]


def _listed(options: Iterable[_Option]) -> str:
    lines = click.HelpFormatter(width=WIDTH)
    lines.write_dl(options)
    return f"```text\n{lines.getvalue()}```\n"


def _sections(group: click.Group, path: str, level: int, common: list[_Option]) -> Iterator[str]:
    for name, command in sorted(group.commands.items()):
        yield f"{'#' * level} {path} {name}\n"
        yield f"{_described(command)}\n"
        if isinstance(command, click.Group):
            yield from _sections(command, f"{path} {name}", level + 1, common)
            continue
        context = click.Context(command, info_name=f"{path} {name}", **main.context_settings)
        options = _options(command)
        if arguments := " ".join(command.collect_usage_pieces(context)[1:]):
            yield f"Arguments: `{arguments}`\n"
        if own := [option for option in options if option not in common]:
            yield _listed(own)
        if shared := [f"`{option.written.split()[0].rstrip(',')}`" for option in options if option in common]:
            yield f"{'Also' if own else 'Takes'} {', '.join(shared)}.\n"


def _described(command: click.Command) -> str:
    """The first paragraph of its help; `--help` and the guides have the rest."""
    return " ".join(inspect.cleandoc(command.help or "").split("\n\n")[0].split())


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
