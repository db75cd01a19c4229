"""The run folders of `scaffolding-ext eval`: epochs, the kept samples of a vote, or recorded chains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scaffolding_ext.controllers.chain.probe import probes_of
from scaffolding_ext.controllers.chain.record_chain import VERSION
from scaffolding_ext.errors import DatasetError
from scaffolding_ext.evaluation.recordings.logged import LoggedChain, LoggedLook, LoggedQuestion, LoggedSample
from scaffolding_ext.evaluation.run.records import Record, each_record
from scaffolding_ext.evaluation.run.run_folder import CONFIG
from scaffolding_ext.stack.load import load_config


def read_run(samples: Path) -> list[LoggedQuestion]:
    """The questions of a run: the epochs of an id are its samples, or the samples that a vote of one epoch kept.

    Failed requests are left out. Where chains were recorded (`RecordChainController`), each sample has its looks.

    Args:
        samples: The run's `samples.jsonl`.

    Raises:
        DatasetError: The file cannot be read, or its chains were recorded by another version.
    """
    run = samples.parent.resolve().name
    questions: dict[str, LoggedQuestion] = {}
    epochs: dict[str, list[tuple[int, list[LoggedSample]]]] = {}
    for record in each_record(samples):
        if record.error is None:
            questions.setdefault(record.id, LoggedQuestion(record.id, record.target, run=run, task=record.kind or ""))
            epochs.setdefault(record.id, []).append((record.epoch, _samples(record, samples)))
    for identity, found in epochs.items():
        for _, own in sorted(found, key=lambda each: each[0]):
            questions[identity].samples += own
    return list(questions.values())


def stack_of(samples: Path) -> tuple[str | None, dict[str, Any] | None]:
    """Model and sampling fields of the run's stack, as far as its `config.yaml` says them."""
    path = samples.parent / CONFIG
    if not path.exists():
        return None, None
    config = load_config(path)
    worker = config.workers.get("generation")
    model = None if worker is None else worker.args.get("model")
    sampling = dict(config.controller.args.get("sampling_params") or {}) | dict(config.sampling or {})
    return None if model is None else str(model), sampling or None


def _samples(record: Record, path: Path) -> list[LoggedSample]:
    kept = getattr(record, "samples", None)
    if kept:
        return [
            LoggedSample(
                each["answer"],
                each.get("correct"),
                each.get("output_tokens"),
                each.get("seconds"),
                each.get("logprob"),
                each.get("reward"),
                each.get("text"),
            )
            for each in kept
        ]
    decoded = record.ledger["total"]["decoded"]
    chain = _chain(record, path)
    if chain is not None:
        decoded = _whole_chain(record, chain)
    return [
        LoggedSample(
            record.answer,
            record.correct,
            decoded,
            None if chain is not None else record.seconds.get("total"),  # looks take seconds of their own
            text=record.output,
            chain=chain,
        )
    ]


def _chain(record: Record, path: Path) -> LoggedChain | None:
    start = next((event for event in record.trace if event["event"] == "recording"), None)
    if start is None:
        return None
    if start["version"] != VERSION:
        raise DatasetError(
            f"{path}: the chain of {record.id!r} was recorded by version {start['version']}, and this is version "
            f"{VERSION}; record it anew: scaffolding-ext tune --config STACK --store DIR"
        )
    rows = [event for event in record.trace if event["event"] == "look"]
    looks = [
        LoggedLook(probe, row["forced"], row["num_answer_tokens"], row["num_forced_tokens"])
        for probe, row in zip(probes_of(rows), rows, strict=True)
    ]
    return LoggedChain(
        looks,
        next(event["position"] for event in record.trace if event["event"] == "end"),
        start["num_prompt_tokens"],
        start["num_probe_suffix"],
        start["num_close_suffix"],
    )


def _whole_chain(record: Record, chain: LoggedChain) -> int:
    """Tokens that the whole chain decoded: an answer that it had to be asked for included, the looks not."""
    by_purpose = record.ledger["by_purpose"]
    asked = sum(look.num_answer_tokens + look.num_forced_tokens for look in chain.looks)
    decoded: int = by_purpose.get("chain", {}).get("decoded", 0) + by_purpose.get("probe", {}).get("decoded", 0)
    return decoded - asked
