"""`scaffolding-ext stacks`, and `scaffolding-ext env` with facts for a bug report, without secrets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from scaffolding_ext.cli.options import Command, json_option, set_option


@click.command(cls=Command, short_help="Versions, hardware and stack, for a report of a fault.")
@click.option("--config", "source", metavar="FILE", help="Stack to show as well: its types, numbers and models.")
@set_option
@json_option
def env(source: str | None, overrides: tuple[str, ...], as_json: bool) -> None:
    """Say what runs here: versions, hardware, extras, and a stack.

    Paste it into an issue. Of the environment's variables only a few are read, such as OMP_NUM_THREADS. Of a stack it
    shows types, numbers and names of models; texts, paths, addresses and keys are told by their length alone.

    \b
    Example:
      scaffolding-ext env --config stack.yaml
    """
    from scaffolding_ext.doctor.bug_report import environment, shareable

    if overrides and source is None:
        raise click.UsageError("--set is given without --config: give the stack that it changes by --config")
    told = environment()
    if source is not None:
        from scaffolding_ext.doctor.bug_report import shareable
        from scaffolding_ext.stack.load import load_config

        told["stack"] = shareable(load_config(source, overrides))
    click.echo(json.dumps(told, indent=2) if as_json else _as_text(told))


@click.command(cls=Command, short_help="The stacks that ship with the package, one a line.")
@json_option
def stacks(as_json: bool) -> None:
    """List the stacks that ship with the package: the name for --config, and what it is.

    \b
    Example:
      scaffolding-ext run "2+2?" --config configs:native
    """
    from scaffolding_ext.documents import packaged_recipes, packaged_stacks

    files = packaged_stacks() | packaged_recipes()
    rows = {f"configs:{name}": _first_line(path) for name, path in files.items()}
    if as_json:
        click.echo(json.dumps(rows))
        return
    width = max(map(len, rows))
    for name, what in rows.items():
        click.echo(f"{name:<{width}}  {what}")


def _first_line(path: Path) -> str:
    """The first sentence of the comment with which a stack file begins."""
    line = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()
    return line.partition(". ")[0].rstrip(".")


def _as_text(told: dict[str, Any]) -> str:
    machine = told["hardware"]
    memory = "" if machine["gib"] is None else f", {machine['gib']} GiB"
    rows = [
        ("scaffolding-ext", f"{told['package']['version']}, C kernel {_built(told['package']['kernel'])}"),
        ("Python", told["python"]),
        ("system", told["system"]),
        ("CPU", f"{machine['cpu']}; {machine['usable_cores']} of {machine['cores']} cores{memory}"),
        ("GPU", "; ".join(machine["gpus"]) or "none that nvidia-smi tells of"),
        *((f"{name}=", value) for name, value in told["settings"].items()),
    ]
    lines = [f"{name:<16} {value}" for name, value in rows]
    lines += ["", "packages", *(f"  {name} {version}" for name, version in told["packages"].items())]
    lines += ["", "extras"]
    lines += [f"  {extra:<10} {_lacking(missing)}" for extra, missing in told["extras"].items()]
    if "stack" in told:
        from scaffolding_ext import plain_yaml

        lines += ["", "stack (without texts, paths, addresses and keys)", plain_yaml.dump(told["stack"]).rstrip()]
    return "\n".join(lines)


def _built(kernel: bool) -> str:
    return "built" if kernel else "not built"


def _lacking(missing: list[str]) -> str:
    return f"lacks {', '.join(missing)}" if missing else "complete"
