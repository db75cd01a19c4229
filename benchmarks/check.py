"""Every figure on every page is in a file, and every file bears its figures out.

    python -m benchmarks.check              says what is wrong, and exits with 1 if anything is
    python -m benchmarks.check --write      renders the pages first, as `make pages` does
    python -m benchmarks.check --every 1    computes every interval again, not one of fifty: minutes

A page with figures is what its template gives (`benchmarks._lib.pages`). Each file has to say on which commit it was
measured. That commit is of this history, and its tree was clean. The file has at most 300 kB, its intervals come out of
its own columns once more, a page quotes it, and a page prints its bars. The check names what failed its bar.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import click

from benchmarks._lib.columns import mismatches
from benchmarks._lib.pages import (
    QUOTED,
    RESULTS,
    ROOT,
    WITH_BARS,
    Fault,
    commit_of,
    faults_of,
    rendered,
    result,
    templates,
)

MOST_BYTES = 300_000


def results() -> list[str]:
    """The names of the kept results."""
    return [path.stem for path in sorted(RESULTS.glob("*.json"))]


def faults_of_result(name: str, quoted: set[str], every: int = 1, barred: set[str] | None = None) -> Iterator[Fault]:
    """The faults of a file.

    Args:
        name: Of the file.
        quoted: Files that a page quotes.
        every: Of so many of its intervals, one is computed again.
        barred: Files whose bars a page prints; None asks for none.
    """
    place, document = f"benchmarks/results/{name}.json", result(name)
    commit = str(document.get("setting", {}).get("commit") or "")
    if not commit or commit.endswith("-dirty"):
        yield Fault(place, f"its commit is {commit or 'not said'}: run the study on a clean tree")
    elif not is_in_history(commit_of(name)):
        yield Fault(
            place, f"no one can look up its commit {commit_of(name)}: name one of main by `on_main` in its setting"
        )
    size = (RESULTS / f"{name}.json").stat().st_size
    if size > MOST_BYTES:
        yield Fault(place, f"it has {size:,} bytes, at most {MOST_BYTES:,} are kept")
    for figure in mismatches(document, every):
        yield Fault(place, f"its columns give another figure for {figure!r}: run the study again")
    if name not in quoted:
        yield Fault(place, "no page quotes it: write what it shows, or delete it")
    if document.get("bars") and barred is not None and name not in barred:
        yield Fault(place, f'no page prints its bars: write {{{{ bars("{name}") }}}} on its page')


def is_in_history(commit: str) -> bool:
    """True if a commit is this one or one before it, or if there is no history to look it up in."""

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)

    is_whole = git("rev-parse", "--is-shallow-repository").stdout.strip() == "false"
    return not is_whole or not git("merge-base", "--is-ancestor", commit, "HEAD").returncode


def faults(every: int = 1) -> list[Fault]:
    """The faults of all files and pages; of every so many of a file's intervals, one is computed again."""
    found, quoted, barred = [], set[str](), set[str]()
    for place, path in templates():
        template, page = path.read_text(encoding="utf-8"), ROOT / place
        quoted |= set(QUOTED.findall(template))
        barred |= {name for call in WITH_BARS.findall(template) for name in re.findall(r"\w+", call)}
        found += faults_of(place, template, page.read_text(encoding="utf-8") if page.exists() else None)
    return found + [fault for name in results() for fault in faults_of_result(name, quoted | barred, every, barred)]


@click.command(help=__doc__, epilog="Example: python -m benchmarks.check --write")
@click.option("--write", is_flag=True, help="Render the pages from their templates first.")
@click.option("--every", type=click.IntRange(1), default=50, show_default=True, help="Compute one interval of so many.")
def main(write: bool, every: int) -> None:
    if write:
        for place, path in templates():
            text, page = rendered(path.read_text(encoding="utf-8")), ROOT / place
            if not page.exists() or page.read_text(encoding="utf-8") != text:
                page.write_text(text, encoding="utf-8")
                print(f"written: {place}")
    for name in results():
        for bar in result(name).get("bars", ()):
            if not bar["holds"]:
                print(f"{name}: failed its bar: {bar['name']}: {bar['value']:.3g}, and the bar is {bar['bar']:g}")
    found = faults(every)
    for fault in found:
        print(f"{fault.place}: {fault.words}")
    print(f"{len(results())} results, {len(found)} faults")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
