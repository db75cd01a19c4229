"""Read run folders of `scaffolding-ext eval`: epochs, kept samples of a vote, or recorded chains."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from scaffolding_ext.controllers.chain.probe import probes_of
from scaffolding_ext.controllers.vote.voting import drawn_by
from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.logs.samples import NO_ANSWER, ChainProbes, Log, LoggedQuestion, LoggedSample
from scaffolding_ext.evaluation.run.record_chain import PROBED, VERSION
from scaffolding_ext.evaluation.run.records import Record, each_record
from scaffolding_ext.evaluation.run.run_folder import CONFIG
from scaffolding_ext.evaluation.stack_sections import EvaluationConfig
from scaffolding_ext.protocol.meta import Purpose
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.stack.load import load_config

_OF_SAMPLE = ("answer", "correct", "output_tokens", "seconds", "logprob", "reward")  # fields of a vote's kept sample


def read_run(samples: Path, fingerprint: str) -> Log:
    """Read a run: the epochs of an id are its samples, or the kept samples of a vote of one epoch.

    Failed requests are left out. If chains were recorded (`RecordChainController`), each sample has its probes.

    Raises:
        DatasetError: The file cannot be read, its chains were recorded by another version, or a rule or a budget over
            all questions chose how many samples of a question there are.
    """
    run = samples.parent.resolve().name
    questions: dict[str, LoggedQuestion] = {}
    epochs: dict[str, list[tuple[int, list[LoggedSample]]]] = {}
    drawn = []  # of votes that their rule ended
    num_asked: Counter[str] = Counter()
    for record in each_record(samples):
        num_asked[record.id] += 1
        if record.error is None:
            if record.exit_reason == "certain" and record.samples and (votes := drawn_by(record.trace)) is not None:
                drawn.append(votes)
            questions.setdefault(record.id, LoggedQuestion(record.id, record.target, run=run, task=record.kind or ""))
            epochs.setdefault(record.id, []).append((record.epoch, _samples(record, samples)))
    path = samples.parent / CONFIG
    config = load_config(path) if path.exists() else None
    again = f"scaffolding-ext eval --config {path} --set controller.args.allocation=null --keep_samples"
    if drawn:
        num, most = map(sum, zip(*drawn, strict=True))
        raise DatasetError(
            f"{samples}: {len(drawn):,} votes ended early, with {num:,} of {most:,} samples, so the rule of their "
            f"stack chose the samples, and no advice can be based on them; record all: {again} --output_path NEW_FOLDER"
        )
    numbers = set(num_asked.values())
    if config is not None and config.evaluation.total_tokens is not None and len(numbers) > 1:
        raise DatasetError(
            f"{samples}: one budget (total_tokens) was spent on all questions, which have {min(numbers)} to "
            f"{max(numbers)} samples: unsettled ones have more, and no advice can be based on such a choice; record "
            f"equally many: {again} --set evaluation.total_tokens=null --output_path NEW_FOLDER"
        )
    for identity, found in epochs.items():
        for _, own in sorted(found, key=lambda each: each[0]):
            questions[identity].samples += own
    return Log(str(samples), fingerprint, list(questions.values()), **({} if config is None else _stack(config)))


def _stack(config: StackConfig) -> dict[str, Any]:
    """Return the fields of a `Log` from a run's stack.

    The stack has no dataset and no evaluation settings, because its setting is chosen on the recorded questions.
    """
    worker = config.workers.get("generation")
    model = None if worker is None else worker.args.get("model")
    return {
        "model": None if model is None else str(model),
        "sampling": config.sampling_of_samples() or None,
        "dataset": None if config.dataset is None else config.dataset.source,
        "stack": config.model_copy(update={"dataset": None, "evaluation": EvaluationConfig(), "tuned": None}),
    }


def _samples(record: Record, path: Path) -> list[LoggedSample]:
    kept = getattr(record, "samples", None)
    if kept:
        return [LoggedSample(*map(each.get, _OF_SAMPLE)) for each in kept]
    probes = _probes(record, path)
    if probes is None:
        return [LoggedSample(record.answer, record.correct, _decoded(record), record.seconds.get("total"))]
    decoded = _whole_chain(record, probes)  # probes take seconds, too: the chain's own are not known
    return [LoggedSample(record.answer, record.correct, decoded, probes=probes)]


def _probes(record: Record, path: Path) -> ChainProbes | None:
    start = next((event for event in record.trace if event["event"] == "recording"), None)
    if start is None:
        return None
    if start["version"] != VERSION:
        raise DatasetError(
            f"{path}: the chain of {record.id!r} was recorded by version {start['version']}, but this is version "
            f"{VERSION}; record it again: scaffolding-ext eval --probe_every TOKENS"
        )
    rows = [event for event in record.trace if event["event"] == PROBED]
    asked, closed = (
        np.array([row[name] for row in rows], np.int64) for name in ("num_answer_tokens", "num_forced_tokens")
    )
    return ChainProbes(
        probes_of(rows),
        np.full(len(rows), NO_ANSWER),
        asked,
        closed,
        next(event["position"] for event in record.trace if event["event"] == "end"),
        start["num_prompt_tokens"],
        start["num_probe_suffix"],
        start["num_close_suffix"],
        [row["forced"] for row in rows],
    )


def _decoded(record: Record) -> int:
    """Return the tokens decoded for the answer, without those of an audit."""
    audit = record.ledger["by_purpose"].get(str(Purpose.AUDIT), {"decoded": 0})
    decoded: int = record.ledger["total"]["decoded"] - audit["decoded"]
    return decoded


def _whole_chain(record: Record, probes: ChainProbes) -> int:
    """Return the tokens that the whole chain decoded, with a forced answer but without the probes."""
    by_purpose = record.ledger["by_purpose"]
    asked = probes.num_answer_tokens.sum() + probes.num_forced_tokens.sum()
    decoded: int = by_purpose.get("chain", {}).get("decoded", 0) + by_purpose.get("probe", {}).get("decoded", 0)
    return decoded - int(asked)
