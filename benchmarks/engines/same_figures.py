"""Compare the figures of `tune`, `replay` and `compare` between two installations, on recorded runs.

    python benchmarks/engines/same_figures.py BEFORE/bin/python AFTER/bin/python --data FOLDER

Prints each figure that differs or is only on one side, and a count; the exit code is 1 if one differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOGS = {  # how `tune` reads them
    "consol_votes.jsonl.gz": (),
    "epoch_votes.jsonl.gz": ("--task", "GPQA", "--num_samples", "8"),
    "gemma4_12b_probes.jsonl.gz": ("--task", "gpqa_diamond"),
    "qwen25_1p5b_math500_samples.jsonl": (),
    "r1_distill_8b_math500_80_samples.jsonl.gz": ("--num_samples", "16"),
}
REPLAYED = {"consol_votes.jsonl.gz": (), "r1_distill_8b_math500_80_samples.jsonl.gz": ("--num_samples", "16")}
TABLE_1 = ("tune", "configs:calibrations/queueing_table_1.yaml", "--plan", "0.1", "--alpha", "30", "--json")
NOT_FIGURES = ("version", "date", "seconds", "an_hour", "fingerprint")


def figures(document: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each figure of a document with its path; rows with a name are found by it, not by their place."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key not in NOT_FIGURES:
                yield from figures(value, f"{path}.{key}")
    elif isinstance(document, list):
        for place, value in enumerate(document):
            named = value.get("name") if isinstance(value, dict) else None
            yield from figures(value, f"{path}.{place if named is None else named}")
    else:
        yield path, document


def run(python: str, arguments: tuple[str, ...]) -> dict[str, Any]:
    command = [python, "-P", "-m", "scaffolding_ext", *arguments]  # -P: not the package of the current folder
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    return dict(figures(json.loads(lines[-1]))) if lines else {"error": done.stderr.strip().splitlines()[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--data", type=Path, required=True)
    given = parser.parse_args()
    commands = {f"tune {log}": ("tune", str(given.data / log), *more, "--json") for log, more in LOGS.items()}
    commands |= {
        f"replay {log}": ("replay", str(given.data / log), *more, "--config", "configs:majority_vote", "--json")
        for log, more in REPLAYED.items()
    }
    commands["Table I"] = TABLE_1
    num_same = num_different = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in ("native", "dynasor_cot"):
            place = ("--output_path", f"{folder}/{name}")
            run(given.before, ("eval", "--config", f"configs:{name}", "--limit", "40", *place, "--json"))
        commands["compare"] = ("compare", f"{folder}/native", f"{folder}/dynasor_cot", "--json")
        for name, arguments in commands.items():
            before, after = run(given.before, arguments), run(given.after, arguments)
            different = [path for path in before if path in after and before[path] != after[path]]
            gone, new = before.keys() - after.keys(), after.keys() - before.keys()
            num_same += len(before.keys() & after.keys()) - len(different)
            num_different += len(different)
            print(f"{name}: {len(before)} figures, {len(different)} different, {len(gone)} gone, {len(new)} new")
            for path in different:
                print(f"  {path}: {before[path]!r}, now {after[path]!r}")
            for what, paths in (("gone", gone), ("new", new)):
                for path in sorted(paths):
                    print(f"  {what}: {path}")
    print(f"{num_same} figures are equal, {num_different} are not")
    sys.exit(num_different > 0)


if __name__ == "__main__":
    main()
