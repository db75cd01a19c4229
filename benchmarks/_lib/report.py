"""What every benchmark shares: its options, and a report of setting, figures with intervals, and bars."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import click
from rich.console import Console
from rich.table import Table

_F = TypeVar("_F", bound=Callable[..., Any])


def report_options(command: _F) -> _F:
    """The options that every benchmark takes."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document and nothing else."),
        click.option("--quick", is_flag=True, help="A smaller setting, under a minute; its bars are indicative."),
        click.option("--seed", default=0, show_default=True, help="Seed of everything random."),
    ):
        command = option(command)
    return command


class Bar(NamedTuple):
    """A figure and the bar that it must meet."""

    name: str
    value: float
    bar: float
    holds: bool
    sign: str

    @classmethod
    def at_most(cls, name: str, value: float, bar: float) -> Bar:
        """Holds where the value is not above the bar."""
        return cls(name, value, bar, value <= bar, "<=")

    @classmethod
    def at_least(cls, name: str, value: float, bar: float) -> Bar:
        """Holds where the value is not below the bar."""
        return cls(name, value, bar, value >= bar, ">=")


class Report:
    """Collects a benchmark's setting, figures and bars, and shows them as tables or as JSON."""

    def __init__(self, name: str, setting: dict[str, Any]) -> None:
        self.name = name
        machine = {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()}
        self.setting = setting | machine
        self.figures: dict[str, dict[str, float | None]] = {}
        self.bars: list[Bar] = []

    def figure(self, name: str, value: float, low: float | None = None, high: float | None = None) -> None:
        """Add a figure with its interval."""
        self.figures[name] = {"value": value, "low": low, "high": high}

    def bar(self, bar: Bar) -> None:
        """Add a bar."""
        self.bars.append(bar)

    def to_json(self) -> dict[str, Any]:
        """The document that `--json` prints."""
        bars = [{"name": b.name, "value": b.value, "bar": b.bar, "holds": b.holds} for b in self.bars]
        return {"setting": self.setting, "figures": self.figures, "bars": bars}

    def show(self, as_json: bool) -> None:
        """Print the report."""
        if as_json:
            print(json.dumps(self.to_json(), indent=1))
            return
        console = Console()
        console.print(
            f"[bold]{self.name}[/bold]  " + "  ".join(f"{key}={value}" for key, value in self.setting.items())
        )
        table = Table("figure", "value", "low", "high")
        for name, figure in self.figures.items():
            table.add_row(name, *("" if number is None else f"{number:,.4g}" for number in figure.values()))
        console.print(table)
        if self.bars:
            table = Table("bar", "value", "must be", "holds")
            for bar in self.bars:
                table.add_row(bar.name, f"{bar.value:.3f}", f"{bar.sign} {bar.bar:g}", "yes" if bar.holds else "NO")
            console.print(table)
