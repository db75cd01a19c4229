"""Commands `scaffolding-ext stacks` and `scaffolding-ext env`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from scaffolding_ext.cli.options import Command, json_option


@click.command(cls=Command, short_help="Print environment details for a bug report.")
@json_option
def env(as_json: bool) -> None:
    """Print versions, hardware and extras, to paste into an issue.

    Only a few environment variables are read, such as OMP_NUM_THREADS.
    """
    from scaffolding_ext.doctor.bug_report import environment

    told = environment()
    click.echo(json.dumps(told, indent=2) if as_json else _as_text(told))


@click.command(cls=Command, short_help="List stacks; print one, or the arguments of a type.")
@click.argument("name", required=False)
@json_option
def stacks(name: str | None, as_json: bool) -> None:
    """List the stacks that ship with the package, or print what NAME calls.

    NAME is a packaged stack (its file is printed), a type of a controller, worker, rule or other part (its arguments;
    your own is module:Class), a kind of types ("stopping rules"), `keys` (every key of a stack file), or a
    section (evaluation).

    \b
    Example:
      scaffolding-ext stacks majority_vote > stack.yaml
      scaffolding-ext stacks MajorityVoteController
      scaffolding-ext stacks evaluation
    """
    from scaffolding_ext.documents import packaged_recipes, packaged_stacks

    if name is not None:
        from scaffolding_ext.stack.described import description

        text = description(name)
        click.echo(json.dumps({name: text}) if as_json else text)
        return
    files = packaged_stacks() | packaged_recipes()
    rows = {f"configs:{name}": _first_line(path) for name, path in files.items()}
    if as_json:
        click.echo(json.dumps(rows))
        return
    width = max(map(len, rows))
    for name, what in rows.items():
        click.echo(f"{name:<{width}}  {what}")


def _first_line(path: Path) -> str:
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
        ("GPU", "; ".join(machine["gpus"]) or "none found by nvidia-smi"),
        *((f"{name}=", value) for name, value in told["settings"].items()),
    ]
    lines = [f"{name:<16} {value}" for name, value in rows]
    lines += ["", "packages", *(f"  {name} {version}" for name, version in told["packages"].items())]
    lines += ["", "extras"]
    lines += [f"  {extra:<10} {_lacking(missing)}" for extra, missing in told["extras"].items()]
    return "\n".join(lines)


def _built(kernel: bool) -> str:
    return "built" if kernel else "not built"


def _lacking(missing: list[str]) -> str:
    return f"lacks {', '.join(missing)}" if missing else "complete"
