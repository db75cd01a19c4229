"""Measure again: every result that is kept, each by one command, into benchmarks/results.

    python -m benchmarks.figures --list                 what there is, its minutes, and what is not of today's code
    python -m benchmarks.figures --only promises        that one
    python -m benchmarks.figures --data FOLDER          all that are not of today's code; --list says the hours

It can be interrupted and started again: what is of today's code is passed over, and studies go on in `runs/figures`.
Recorded samples of real models are read from the folder. Three results need a vLLM that serves `tinylm/target`: give
its address by `--base_url`. its_hub is found by SCAFFOLDING_ITS_HUB_PYTHON. Without these, what needs them is
left out. Afterwards `make pages` writes the figures onto the pages. Read the sentences beside them.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import click

from benchmarks._lib.imported import changed_since, imported_by
from benchmarks._lib.pages import RESULTS, ROOT, commit_of
from benchmarks._lib.provenance import commit
from scaffolding_ext.documents import write_text

STORE = ROOT / "runs" / "figures"
PICTURES = ROOT / "docs" / "results"


class Study(NamedTuple):
    """A study, and the options with which its result is measured.

    Attributes:
        command: Module below `benchmarks`, and its options.
        minutes: Of one core, about.
        reads: Whether the study takes `--data`, the folder of recordings.
        stores: Whether the study takes `--store`.
        draws: Whether it takes `--plot_path`.
        on_server: Whether it takes `--base_url`, the address of a live server.
    """

    command: str
    minutes: int
    reads: bool = False
    stores: bool = False
    draws: bool = False
    on_server: bool = False


STUDIES: Mapping[str, Study] = {
    **{
        f"real_{part}": Study(f"studies.real --part {part}", minutes, reads=True)
        for part, minutes in (("votes", 3), ("confirmed", 2), ("chains", 1), ("budgets", 1), ("loops", 1))
    },
    "certaindex": Study("studies.certaindex", 1, reads=True),
    "autotts": Study("studies.autotts", 10, reads=True, draws=True),
    "rolling": Study("studies.rolling", 1, reads=True),
    "deadlines": Study("studies.deadlines", 2, reads=True),
    "until": Study("studies.until", 5, reads=True),
    "orders": Study("studies.orders", 10),
    **{
        part: Study(f"studies.tune --part {part}", minutes, reads=True)
        for part, minutes in (("few_questions", 4), ("at_once", 5), ("promises", 2))
    },
    "peers": Study("studies.peers --num_problems 150 --block 25", 35, stores=True),
    "demo": Study("studies.demo --num_problems 200 --num_vote_problems 40", 5, draws=True),
    "draft_target_a1": Study("studies.draft_target_a1", 20, reads=True),
    "conformal_replay": Study("studies.conformal_replay", 1, reads=True, draws=True),
    "queueing": Study("studies.queueing", 1, draws=True),
    "search": Study("studies.search", 5),
    "eviction": Study("engines.eviction", 2),
    "vllm": Study("studies.vllm --num_problems 120 --block 8", 12, on_server=True),
    "vllm_one": Study("studies.vllm --num_problems 30 --block 1", 10, on_server=True),
    "vllm_16": Study("studies.vllm --num_problems 64 --block 16", 10, on_server=True),
    "vllm_64": Study("studies.vllm --num_problems 256 --block 64", 20, on_server=True),
}


def is_current(name: str) -> bool:
    """True if nothing that its study imports has changed since a kept result was measured."""
    if not (RESULTS / f"{name}.json").exists():
        return False
    changed = changed_since(commit_of(name))
    return changed is not None and not changed & imported_by(module_of(name))


def module_of(name: str) -> str:
    """The module that measures a result."""
    return f"benchmarks.{shlex.split(STUDIES[name].command)[0]}"


def command_of(name: str, data: Path | None, base_url: str | None = None) -> list[str] | None:
    """The command that measures a result; None if it reads a file or asks a server that is not at hand."""
    study = STUDIES[name]
    _, *options = shlex.split(study.command)
    command = [sys.executable, "-m", module_of(name), *options, "--json"]
    if (study.reads and data is None) or (study.on_server and base_url is None):
        return None
    if study.reads:
        command += ["--data", str(data)]
    if study.stores:
        command += ["--store", str(STORE / name)]
    if study.on_server:
        command += ["--base_url", str(base_url)]
    if study.draws:
        command += ["--plot_path", str(PICTURES / f"{name}.png")]
    return command


def measure(name: str, command: list[str]) -> None:
    """Run a study with one thread, and keep its document once it is whole."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if run.returncode:
        raise click.ClickException(f"{name} failed; call again to go on: {' '.join(command)}")
    write_text(RESULTS / f"{name}.json", run.stdout)


@click.command(help=__doc__, epilog="Example: python -m benchmarks.figures --only until --only promises")
@click.option("--only", multiple=True, type=click.Choice(list(STUDIES)), help="A result; repeatable.", metavar="NAME")
@click.option("--data", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Folder of samples.")
@click.option("--base_url", help="Address of a vLLM that serves tinylm/target, up to /v1.")
@click.option("--list", "as_list", is_flag=True, help="Say what there is; run nothing.")
def main(only: tuple[str, ...], data: Path | None, base_url: str | None, as_list: bool) -> None:
    names = list(only) or [name for name in STUDIES if not is_current(name)]
    if as_list:
        print(f"{'result':28} minutes  of today's code  command")
        for name, study in STUDIES.items():
            print(f"{name:28} {study.minutes:7}  {'yes' if is_current(name) else 'no':15}  {study.command}")
        left = sum(study.minutes for name, study in STUDIES.items() if not is_current(name))
        print(f"{left / 60:.0f} hours of one core are left")
        return
    if str(commit()).endswith("-dirty"):
        raise click.ClickException("tracked files differ from their commit: a result names the commit; commit first")
    for number, name in enumerate(names, 1):
        command = command_of(name, data, base_url)
        if command is None:
            needed = "it asks a server: give --base_url" if STUDIES[name].on_server else "it reads samples: give --data"
            print(f"{name}: left out, {needed}", file=sys.stderr)
            continue
        print(f"{name} ({number} of {len(names)}, about {STUDIES[name].minutes} minutes)", file=sys.stderr)
        measure(name, command)


if __name__ == "__main__":
    main()
