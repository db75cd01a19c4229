"""Reads labelled samples of many questions, from our own records or from others' files, as votes to replay."""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scaffolding_ext.answers import extract, group
from scaffolding_ext.controllers.certaindex import entropy_certaindex
from scaffolding_ext.controllers.vote.allocation.labelled_vote import LabelledVote
from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.run.jsonl import read_rows
from scaffolding_ext.evaluation.run.records import read_records
from scaffolding_ext.evaluation.run.scoring import answer_of_target

CHUNK_TOKENS = 500  # a chunk of the released draft/target chains, whose true lengths are not recorded


def read_votes(path: str | os.PathLike[str]) -> list[LabelledVote]:
    """Read the samples of a JSONL file (or .jsonl.gz) as one vote a question, in the file's order.

    Three kinds of rows are known, and a file holds one of them:

    - evaluation records, as `scaffolding-ext eval --epochs N` writes them: the epochs of an id are its samples;
    - a question with its `samples`: each has `text` and `num_tokens`, and may have `prm_score`, its reward, and
      `correct_by_source`, its label; the others are right where they equal `answer`;
    - a chain of drafts: `question`, `answer`, `chain`, and `turns` of `draft`, `ppl` and `target`; every draft and
      target that is not empty counts as 500 tokens, and the mean log-probability is that of the drafts under their
      scorer.

    Raises:
        DatasetError: The file cannot be read, a row is of no known kind or lacks a field, or questions differ in
            their number of samples; it names file and line.
    """
    name = os.fspath(path)
    rows = _rows(name)
    if not rows:
        raise DatasetError(f"{name} is empty; it needs at least one row")
    kinds = {"turns": _chain_votes, "ledger": _record_votes, "samples": _sample_votes}
    kind = next((key for key in kinds if key in rows[0]), None)
    if kind is None:
        raise DatasetError(
            f"{name}, line 1: has the fields {sorted(rows[0])}; give evaluation records, samples or turns"
        )
    for number, row in enumerate(rows, 1):
        if kind not in row:
            raise DatasetError(f"{name}, line {number}: has no {kind!r} as line 1 has; a file holds rows of one kind")
    try:
        votes = kinds[kind](rows)
    except (KeyError, TypeError, ValueError) as error:
        raise DatasetError(f"{name}: a row lacks a field or holds a wrong one: {error!r}") from error
    sizes = sorted({len(vote.classes) for vote in votes})
    if len(sizes) > 1:
        raise DatasetError(f"{name}: questions have {sizes[0]} to {sizes[-1]} samples; give each the same number")
    return votes


def read_certaindex(path: str | os.PathLike[str], knob: int) -> list[float]:
    """Certaindex after `knob` samples of every vote that the traces of evaluation records hold, one a record.

    Votes with fewer samples are left out.

    Raises:
        DatasetError: The file is not one of records, or no vote in it has as many samples.
    """
    found = []
    for record in read_records(path):
        votes = [event for event in record.trace if event["event"] == "vote"]
        if votes:
            outermost = min(votes, key=lambda event: len(event["branch"]))
            if len(outermost["classes"]) >= knob:
                found.append(entropy_certaindex(outermost["classes"][:knob]))
    if not found:
        raise DatasetError(f"{os.fspath(path)} holds no vote of {knob} samples or more; run a stack that votes")
    return found


def read_exits(path: str | os.PathLike[str]) -> list[float]:
    """Tokens after which the chain of each evaluation record was left or ended; of several chains, the first's.

    Raises:
        DatasetError: The file is not one of records, or no trace in it has a chain.
    """
    found = []
    for record in read_records(path):
        left = next((event for event in record.trace if event["event"] in ("stop", "end")), None)
        if left is not None:
            found.append(float(left["position"]))
    if not found:
        raise DatasetError(f"{os.fspath(path)} holds no chain that was watched; run a stack that stops chains")
    return found


def fingerprint(path: str | os.PathLike[str]) -> str:
    """The SHA-256 of a file, as `sha256:` and 64 hexadecimal digits."""
    return "sha256:" + hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _rows(name: str) -> list[dict[str, Any]]:
    rows = []
    for row in read_rows(name, "samples"):
        if row.problem is not None:
            raise DatasetError(f"{name}, line {row.number}: {row.problem}")
        rows.append(row.value)
    return rows


def _graded(answers: Sequence[str | None], target: str) -> tuple[list[int], list[bool]]:
    """The class of each answer, and whether it is the target's."""
    *classes, right = group([*answers, answer_of_target(target)])
    return classes, [number == right for number in classes]


def _record_votes(rows: Sequence[Mapping[str, Any]]) -> list[LabelledVote]:
    votes = []
    for identity, records in _grouped(rows, "id").items():
        ended = sorted((record for record in records if record["error"] is None), key=lambda record: record["epoch"])
        votes.append(
            LabelledVote(
                identity,
                group([record["answer"] for record in ended]),
                [record["correct"] is True for record in ended],
                [record["ledger"]["total"]["decoded"] for record in ended],
            )
        )
    return votes


def _sample_votes(rows: Sequence[Mapping[str, Any]]) -> list[LabelledVote]:
    votes = []
    for row in rows:
        samples = row["samples"]
        classes, correct = _graded([extract(sample["text"]) for sample in samples], row["answer"])
        labels = [sample.get("correct_by_source", own) for sample, own in zip(samples, correct, strict=True)]
        rewards = [float(sample["prm_score"]) for sample in samples] if "prm_score" in samples[0] else None
        lengths = [sample["num_tokens"] for sample in samples]
        votes.append(LabelledVote(row["id"], classes, labels, lengths, rewards))
    return votes


def _chain_votes(rows: Sequence[Mapping[str, Any]]) -> list[LabelledVote]:
    votes = []
    for question, chains in _grouped(rows, "question").items():
        ordered = sorted(chains, key=lambda chain: chain["chain"])
        texts = ["".join(turn["draft"] + (turn["target"] or "") for turn in chain["turns"]) for chain in ordered]
        classes, correct = _graded([extract(text) for text in texts], ordered[0]["answer"])
        chunks = [sum(bool(turn["draft"]) + bool(turn["target"]) for turn in chain["turns"]) for chain in ordered]
        votes.append(
            LabelledVote(
                question,
                classes,
                correct,
                [CHUNK_TOKENS * number for number in chunks],
                logprobs=[_mean_logprob(chain["turns"]) for chain in ordered],
            )
        )
    return votes


def _mean_logprob(turns: Sequence[Mapping[str, Any]]) -> float:
    """Of the drafts; one that is empty has none."""
    logs = [-math.log(turn["ppl"]) for turn in turns if turn["ppl"] is not None]
    return sum(logs) / len(logs)


def _grouped(rows: Sequence[Mapping[str, Any]], key: str) -> dict[str, list[Mapping[str, Any]]]:
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups
