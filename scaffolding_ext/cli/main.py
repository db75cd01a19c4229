"""The command line: arguments in, files and tables out. Everything else is in the modules that it calls.

They are imported when a command runs, so that `--help` needs neither an engine nor the time to load one.
"""

from __future__ import annotations

from typing import Any

import click

from scaffolding_ext import __version__
from scaffolding_ext.cli.calibrate import calibrate
from scaffolding_ext.cli.engine import engine
from scaffolding_ext.cli.evaluate import evaluate
from scaffolding_ext.cli.run import run
from scaffolding_ext.errors import ScaffoldingExtError


class _PackageError(click.ClickException):
    """An error of this package: one line, no traceback."""

    exit_code = 2


class _Group(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ScaffoldingExtError as error:
            raise _PackageError(" ".join(str(error).split())) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="scaffolding-ext")
def main() -> None:
    """Reasoning with a budget: run and evaluate inference-time-compute controllers."""


for command in (run, evaluate, calibrate, engine):
    main.add_command(command)


if __name__ == "__main__":
    main()
