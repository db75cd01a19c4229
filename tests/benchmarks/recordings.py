"""Small recordings, under the names and in the forms of those that the studies read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

INTERVAL = 500  # tokens between the probes of a chain of Qwen3


def answers(num_samples: int, rng: np.random.Generator) -> list[str]:
    """Samples of one question: 7 is right, and wrong ones scatter over four answers."""
    right = rng.random(num_samples) < rng.uniform(0.3, 1.0)
    return [str(answer) for answer in np.where(right, 7, rng.integers(1, 5, num_samples)).tolist()]


def samples(num_samples: int, rng: np.random.Generator, **more: Any) -> list[dict[str, Any]]:
    tokens = (10 * rng.integers(10, 50, num_samples)).tolist()
    return [
        {"answer": answer, "output_tokens": number, "correct": answer == "7", **more}
        for answer, number in zip(answers(num_samples, rng), tokens, strict=True)
    ]


def votes_of_runs(rng: np.random.Generator) -> Iterable[dict[str, Any]]:
    """Eight samples of each question, by six runs of models."""
    for task in ("OTIS Mock AIME 2024-2025", "GPQA Diamond"):
        for run in range(6):
            for number in range(8):
                row = {"run": f"run {run}", "task": task, "question": f"{task} {number}", "target": "7"}
                yield row | {"samples": samples(8, rng)}


def votes(rng: np.random.Generator) -> Iterable[dict[str, Any]]:
    """Forty samples of each question; only one task has gold answers."""
    for task, num_questions in (("gsm", 32), ("medqa", 8), ("aime24", 16)):
        for number in range(num_questions):
            row: dict[str, Any] = {"task": task, "question": str(number)}
            own = samples(40, rng)
            if task == "gsm":
                row["target"] = "7"
            else:
                own = [{key: value for key, value in each.items() if key != "correct"} for each in own]
            yield row | {"samples": own}


def long_votes(rng: np.random.Generator) -> Iterable[dict[str, Any]]:
    """Eighty samples of each question, with the perplexities of their chunks."""
    for number in range(8):
        own = [
            {"chain": chain, "answer": each["answer"], "correct": each["correct"], "tokens": each["output_tokens"]}
            | {"seconds": 0.01 * each["output_tokens"], "ppl": rng.uniform(1.0, 1.5, 2).tolist()}
            for chain, each in enumerate(samples(80, rng))
        ]
        yield {"question": f"question {number}", "answer": "7", "samples": own}


def chains(rng: np.random.Generator) -> Iterable[dict[str, Any]]:
    """Sixty-four chains of each question, which are asked for their answer at every interval."""
    for model in ("0.6B", "1.7B", "4B", "8B"):
        for task in ("aime24", "aime25", "hmmt25"):
            for number in range(2):
                own = []
                for answer, length in zip(answers(64, rng), rng.integers(1_000, 4_000, 64).tolist(), strict=True):
                    asked = zip(range(INTERVAL, length, INTERVAL), answers(length // INTERVAL, rng), strict=False)
                    probes = [{"tokens": tokens, "answer": early} for tokens, early in asked]
                    own.append({"answer": answer, "output_tokens": length, "probes": probes})
                row = {"question": f"{task}-{number}", "target": "7", "task": task, "run": f"Qwen3-{model}"}
                yield row | {"samples": own}


def probed_chains(rng: np.random.Generator) -> Iterable[dict[str, Any]]:
    """One chain of each question, which is asked for its answer and its probability at each tenth."""
    for number in range(12):
        length, found = int(rng.integers(400, 900)), answers(11, rng)
        probes = [
            {"tokens": length * tenth // 10, "answer": answer, "p": float(rng.uniform(0.3, 1.0))}
            for tenth, answer in enumerate(found)
        ]
        row = {"set": "gpqa_diamond_gemma4_12b_seed0", "task": "gpqa_diamond", "seed": 0, "question": f"q{number}"}
        yield row | {"answer": "7", "tokens": length, "probes": probes}


def drafted(rng: np.random.Generator) -> Iterable[dict[str, Any]]:
    """Four chains of each question, whose chunks the target scored, and some of which it wrote again."""
    for number in range(12):
        for answer in answers(4, rng):
            last = {"draft": f"So \\boxed{{{answer}}}", "ppl": None, "target": None}
            turns = [
                {"draft": "x" * 2000, "ppl": float(ppl), "target": "y" * 200 if ppl > 1.4 else None}
                for ppl in rng.uniform(1.1, 1.6, rng.integers(1, 5))
            ]
            yield {"question": f"question {number}", "answer": "7", "turns": [*turns, last]}


def texts(rng: np.random.Generator) -> Iterable[dict[str, Any]]:
    """Two chains on each of the same questions, of which one repeats itself."""
    for number in range(24):
        text = "The sum is 7. " * 400 if number % 2 else "So x = 2. \\boxed{2}"
        turns = [{"draft": text, "ppl": None, "target": None}]
        yield {"question": f"question {number // 2}", "answer": "7", "turns": turns}


FILES = {
    "epoch_votes.jsonl.gz": votes_of_runs,
    "consol_votes.jsonl.gz": votes,
    "r1_distill_8b_math500_80_samples.jsonl.gz": long_votes,
    "qwen3_chains.jsonl.gz": chains,
    "gemma4_12b_probes.jsonl.gz": probed_chains,
    "r1_distill_8b_math500_draft_only.jsonl.gz": texts,
    "r1_distill_8b_math500_draft_target.jsonl.gz": drafted,
}


def write(folder: Path) -> None:
    """Write every file into a folder."""
    rng = np.random.default_rng(0)
    for name, rows in FILES.items():
        with gzip.open(folder / name, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows(rng))
