"""Makes the two files of recorded A1 runs from the authors' public repository, and checks that they are what they were.

    git clone https://github.com/menik1126/Asynchronous-Test-Time-Scaling
    python -m benchmarks.data.make_a1_runs Asynchronous-Test-Time-Scaling --math500 math500.jsonl --output_path data

The repository has a file a chain, 16 chains of a question side by side: its question, the seconds that it took, and
a history of chunks drafted, scored and written anew. A row of ours is such a chain with the answer, level and subject
of its question, which stand in MATH-500 (HuggingFaceH4/MATH-500, `test.jsonl`). The studies use 60 of the 100
questions.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

from scaffolding_ext.evaluation.run.jsonl import read_rows

COMMIT = "bedf81d7369af3ea811875feefc5a903e97766ab"  # of the repository, whose files gave the hashes below
CHAINS = 16
QUESTIONS = (
    *(4, 6, 7, 8, 9, 12, 15, 18, 19, 20, 21, 23, 24, 25, 26, 27, 30, 31, 33, 38, 39, 40, 45, 47, 48, 49),
    *(50, 52, 53, 54, 57, 63, 64, 65, 66, 67, 69, 70, 72, 73, 74, 75, 78, 79, 80, 81, 82, 83, 84, 85, 86),
    *(87, 88, 89, 91, 92, 93, 96, 98, 99),
)


class Source(NamedTuple):
    """A folder of results, and what is made of it.

    Attributes:
        folder: Below `results/`.
        kinds: What the history calls a drafted chunk, its score, and what was written after a rejection.
        sha256: Of the rows, as they stand in the file before it is compressed.
    """

    folder: str
    kinds: tuple[str, str, str]
    sha256: str


SOURCES = {
    "r1_distill_8b_math500_draft_target": Source(
        "deepseek-ai_DeepSeek-R1-Distill-Llama-8B_Qwen_QwQ-32B_math500_sm500_em500_t15_smt0.8_sct0.8_emt0.8_smc16_emc4",
        ("small", "eval_ppl", "eval_generate"),
        "a1dd15b017885886a4bf78393ef32c7c9316236e7449d82fbbe1da838ed63b9e",
    ),
    "r1_distill_8b_math500_draft_only": Source(
        "self_deepseek-ai_DeepSeek-R1-Distill-Llama-8B_math500_sm500_t15_temp0.8_ct1",
        ("draft", "self_ppl", "self_continue"),
        "122d53f2769f541ef2df3473b8175009e361c1a39009df6be90fff4690a43406",
    ),
}


def turns_of(history: list[dict[str, Any]], kinds: tuple[str, str, str]) -> list[dict[str, Any]]:
    """The chunks of a chain: drafted text, perplexity and percentile where it was scored, text after a rejection."""
    drafted, scored, written = kinds
    turns: list[dict[str, Any]] = []
    for event in history:
        if event["model"] == drafted:
            turns.append({"draft": event["output"], "ppl": None, "target": None})
        elif event["model"] == scored:
            turns[-1] |= {"ppl": round(event["ppl"], 6), "percentile": round(event["percentile"], 6)}
        elif event["model"] == written:
            turns[-1]["target"] = event["output"]
    return turns


def rows_of(source: Source, clone: Path, problems: dict[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A row a chain, in order of question and chain."""
    for question in QUESTIONS:
        for chain in range(CHAINS):
            path = clone / "results" / source.folder / f"problem_{CHAINS * question + chain:04}.json"
            found = json.loads(path.read_text(encoding="utf-8"))
            problem = problems[found["question"]]
            yield {
                "question": found["question"],
                "answer": problem["answer"],
                "level": problem["level"],
                "subject": problem["subject"],
                "chain": chain,
                "turns": turns_of(found["full_history"], source.kinds),
                "seconds": round(found["duration_seconds"], 2),
            }


def written(rows: Iterator[dict[str, Any]], path: Path) -> str:
    """Write rows as gzipped JSON lines; returns the SHA-256 of the lines."""
    digest = hashlib.sha256()
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wb") as file:
        for row in rows:
            line = (json.dumps(row, ensure_ascii=False) + "\n").encode()
            digest.update(line)
            file.write(line)
    return digest.hexdigest()


FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(
    epilog="Example: python -m benchmarks.data.make_a1_runs CLONE --math500 math500.jsonl --output_path data"
)
@click.argument("clone", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--math500", type=FILE, required=True, help="MATH-500: JSON lines of problem, answer, level, subject.")
@click.option("--output_path", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder.")
def main(clone: Path, math500: Path, output_path: Path) -> None:
    """Regroup the results in CLONE, a clone of the authors' repository."""
    problems = {row.value["problem"]: row.value for row in read_rows(math500)}
    for name, source in SOURCES.items():
        path = output_path / f"{name}.jsonl.gz"
        found = written(rows_of(source, clone, problems), path)
        if found != source.sha256:
            raise click.ClickException(
                f"{path} has the SHA-256 {found}, not {source.sha256}; check out commit {COMMIT} of the repository"
            )
        click.echo(f"{path}: {found}")


if __name__ == "__main__":
    main()
