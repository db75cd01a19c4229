"""Entry point of the command line: arguments in, files and tables out.

Other modules do the work; they are imported when a command runs, so that `--help` loads no engine.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import warnings
from typing import Any

import click

from scaffolding_ext import __version__
from scaffolding_ext.cli.about import env, stacks
from scaffolding_ext.cli.calibrate import calibrate
from scaffolding_ext.cli.check import check
from scaffolding_ext.cli.compare import compare
from scaffolding_ext.cli.engine import engine
from scaffolding_ext.cli.evaluate import evaluate
from scaffolding_ext.cli.options import Group
from scaffolding_ext.cli.plan import plan
from scaffolding_ext.cli.run import run
from scaffolding_ext.cli.serve import serve
from scaffolding_ext.cli.tune import replay, tune
from scaffolding_ext.errors import ScaffoldingExtError


class _PackageError(click.ClickException):
    """Error of this package: one line, no traceback."""

    exit_code = 2


class _Main(Group):
    def invoke(self, ctx: click.Context) -> Any:
        with warnings.catch_warnings():
            if not sys.warnoptions:
                warnings.simplefilter("default", UserWarning)
            warnings.showwarning = _show_warning
            try:
                return super().invoke(ctx)
            except ScaffoldingExtError as error:
                raise _PackageError(_on_one_line(error)) from error
            except OSError as error:
                if error.errno == errno.EPIPE:  # the reader is gone: click ends quietly
                    raise
                _give_up_output()
                raise _PackageError(f"cannot read or write: {_on_one_line(error)}") from error
            except KeyboardInterrupt:
                click.echo("Aborted!", err=True)
                ctx.exit(128 + signal.SIGINT)


def _show_warning(message: Warning | str, *place: Any, **more: Any) -> None:
    click.echo(f"Warning: {_on_one_line(message)}", err=True)


def _on_one_line(message: object) -> str:
    return " ".join(str(message).split())


def _give_up_output() -> None:
    """Drop the buffer of standard output if it cannot be written, so that Python does not retry at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="scaffolding-ext")
def main() -> None:
    """Reasoning with a budget: run and evaluate inference-time-compute controllers."""


for command in (run, check, evaluate, compare, calibrate, tune, replay, plan, engine, serve, stacks, env):
    main.add_command(command)
