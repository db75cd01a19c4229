"""Recorded chains, read back with their answers sorted into classes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from scaffolding_ext.answers import group
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.chain.probe import Probe, probes_of
from scaffolding_ext.controllers.chain.record_chain import VERSION, RecordChainController
from scaffolding_ext.errors import ConfigError, DatasetError
from scaffolding_ext.evaluation.run.records import Record, each_record
from scaffolding_ext.evaluation.run.scoring import answer_of_target
from scaffolding_ext.registry import controllers
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.config import ComponentConfig, StackConfig

_NOT_RECORDED = ("rule", "certainty_threshold", "effort", "schedule", "chunk_size")  # when and where it stops


class RecordedChain(NamedTuple):
    """A chain that ran to its end, with all looks at it.

    Attributes:
        question: Id of its question.
        looks: The looks, oldest first.
        forced: Class of the answer that it gives at each look when its thinking is closed, shape [num_looks]; -1 for
            none.
        num_answer_tokens: Tokens of the response to the probe at each look.
        num_forced_tokens: Tokens of the forced answer at each look.
        full: Class of the whole chain's answer.
        target: Class of the right answer; -2 where the question has none that can be extracted.
        num_prompt_tokens: Of its question as the model reads it.
        length: Tokens after which it ended.
        num_tokens: Tokens that the whole chain decoded, those of an answer that it had to be asked for included.
        num_probe_suffix: Tokens that ask for the answer.
        num_close_suffix: Tokens that close thinking.
    """

    question: str
    looks: Sequence[Probe]
    forced: Sequence[int]
    num_answer_tokens: Sequence[int]
    num_forced_tokens: Sequence[int]
    full: int
    target: int
    num_prompt_tokens: int
    length: int
    num_tokens: int
    num_probe_suffix: int
    num_close_suffix: int


def read_chains(path: str | os.PathLike[str]) -> list[RecordedChain]:
    """The chains of a run of `RecordChainController`, in the file's order; failed requests are left out.

    Args:
        path: The `samples.jsonl` of the run.

    Raises:
        DatasetError: The file cannot be read, holds no recorded chain, or one of another version.
    """
    chains = [_recorded(record, os.fspath(path)) for record in each_record(path) if record.error is None]
    if not chains:
        raise DatasetError(f"{os.fspath(path)} holds no recorded chain; record some: scaffolding-ext tune --store DIR")
    return chains


def _recorded(record: Record, name: str) -> RecordedChain:
    start = next((event for event in record.trace if event["event"] == "recording"), None)
    if start is None or start["version"] != VERSION:
        raise DatasetError(
            f"{name}: {record.id!r} is no chain recorded by version {VERSION}; record anew: scaffolding-ext tune"
        )
    rows = [event for event in record.trace if event["event"] == "look"]
    looks = probes_of(rows)
    answers = [look.answer for look in looks]
    forced = [row["forced"] for row in rows]
    *classes, full, target = group([*answers, *forced, record.answer, answer_of_target(record.target)])
    asked = [row["num_answer_tokens"] + row["num_forced_tokens"] for row in rows]
    written = record.ledger["by_purpose"]
    ending = written.get("probe", {}).get("decoded", 0) - sum(asked)  # what it was asked for behind its end
    return RecordedChain(
        question=record.id,
        looks=[look._replace(answer_class=number) for look, number in zip(looks, classes, strict=False)],
        forced=classes[len(looks) :],
        num_answer_tokens=[row["num_answer_tokens"] for row in rows],
        num_forced_tokens=[row["num_forced_tokens"] for row in rows],
        full=full,
        target=-2 if target == -1 else target,
        num_prompt_tokens=start["num_prompt_tokens"],
        length=next(event["position"] for event in record.trace if event["event"] == "end"),
        num_tokens=written.get("chain", {}).get("decoded", 0) + ending,
        num_probe_suffix=start["num_probe_suffix"],
        num_close_suffix=start["num_close_suffix"],
    )


def recording_stack(config: StackConfig, spacing: int | None = None, num_logprobs: int = 20) -> StackConfig:
    """The stack with a controller that records the chains of its own.

    Args:
        config: A stack whose outermost controller is a DynasorCoTController; when that stops is not used.
        spacing: Tokens between recorded looks; None takes half of those between the first two of its own.
        num_logprobs: Log-probabilities a token that the worker is asked for.

    Raises:
        ConfigError: The stack is wrong, or its controller is another.
    """
    controller = check_stack(config)
    if not isinstance(controller, DynasorCoTController):
        raise ConfigError(
            f"is a {type(controller).__name__}; calibrate the DynasorCoTController by itself", "controller.type"
        )
    args = {key: value for key, value in config.controller.args.items() if key not in _NOT_RECORDED}
    component = ComponentConfig(
        type=controllers.name_of(RecordChainController),
        args={
            "spacing": spacing or max(1, controller.schedule.chunk_size // 2),
            "num_logprobs": num_logprobs,
            "generation_controller": {"type": config.controller.type, "args": args},
        },
    )
    return config.model_copy(update={"controller": component})
