"""The same stacks in process and over HTTP: do they give the same answers, to the seed, and save the same tokens?

    python -m benchmarks.engines.openai_parity --num_problems 60

DynasorCoT and votes of 4 on held-out problems, by HuggingFaceWorker in process and by OpenAIWorker over a local server
on the same model. What DynasorCoT saves is stated against plain chains of the same seeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import click

from benchmarks._lib.command import benchmark, progress, size
from benchmarks._lib.report import Report
from scaffolding_ext import (
    DynasorCoTController,
    HuggingFaceWorker,
    MajorityVoteController,
    NativeGenerationController,
    OpenAIWorker,
    ScaffoldingLlm,
)
from scaffolding_ext.controllers.chain.looking import ProbeSchedule
from scaffolding_ext.controllers.chain.probe import AnswerProbe
from scaffolding_ext.evaluation.run.datasets import Example, load_dataset
from scaffolding_ext.protocol import Controller, Worker
from scaffolding_ext.protocol.notes import Purpose
from tests.servers.openai_server import OpenAIServer

MAX_TOKENS = 800
SAMPLING = {"temperature": 0.7}
SAME = 0.98
SAVED_POINTS = 1.0


class Outcome(NamedTuple):
    """One request.

    Attributes:
        answer: Its answer.
        num_used: Tokens decoded for it, those beyond its stop left out: how many a worker decodes before it hears of
            the stop depends on time.
        num_discarded: Those.
    """

    answer: str | None
    num_used: int
    num_discarded: int


def stacks() -> dict[str, Controller]:
    """The controllers, by name."""
    plain = NativeGenerationController({**SAMPLING, "max_tokens": MAX_TOKENS})
    dynasor = DynasorCoTController(
        MAX_TOKENS,
        schedule=ProbeSchedule(32, growth=1.2),
        probe=AnswerProbe(8, {"temperature": 1.0}),
        sampling_params=SAMPLING,
    )
    return {"plain": plain, "DynasorCoT": dynasor, "vote of 4": MajorityVoteController(plain, 4, allocation=None)}


def run(controller: Controller, worker: Worker, samples: Sequence[Example], seed: int, label: str) -> list[Outcome]:
    """All samples on one worker."""

    async def ask_all(llm: ScaffoldingLlm) -> list[Outcome]:
        with progress() as bars:
            bar = bars.add_task(label, total=len(samples))

            async def ask(sample: Example) -> Outcome:
                result = await llm.generate_async(sample.prompt, sample_id=sample.id).aresult()
                bars.advance(bar)
                counts = result.program.ledger.by_purpose
                discarded = counts[Purpose.DISCARDED].decoded if Purpose.DISCARDED in counts else 0
                return Outcome(result.answer, result.program.ledger.total.decoded - discarded, discarded)

            return list(await asyncio.gather(*map(ask, samples)))

    with ScaffoldingLlm(controller, {"generation": worker}, seed=seed) as llm:
        return asyncio.run(ask_all(llm))


@benchmark("engines.openai_parity --num_problems 60")
@size("--num_problems", 200, quick=12, help="Held-out problems.")
@click.option("--model", default="tinylm/target", show_default=True, help="The model behind both.")
def main(report: Report, num_problems: int, model: str) -> None:
    """Answers and savings, in process and over HTTP."""
    seed = report.seed
    report.setting |= {"max_tokens": MAX_TOKENS, **SAMPLING, "flavor": "vllm"}
    samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=seed)
    found: dict[tuple[str, str], list[Outcome]] = {}
    with (
        HuggingFaceWorker(model) as here,
        OpenAIServer(here, model) as server,
        OpenAIWorker(server.url, model, seams="none") as there,
    ):
        for name, controller in stacks().items():
            for place, worker in (("in process", here), ("over HTTP", there)):
                found[name, place] = run(controller, worker, samples, seed, f"{name}, {place}")
    for name in ("plain", "DynasorCoT", "vote of 4"):
        pairs = list(zip(found[name, "in process"], found[name, "over HTTP"], strict=True))
        same = sum(a.answer == b.answer for a, b in pairs)
        share = report.share(f"{name}: same answers, share", same, num_problems)
        report.figure(f"{name}: same tokens, share", sum(a.num_used == b.num_used for a, b in pairs) / num_problems)
        if name != "plain":
            report.bar(f"{name}: same answers", share, ">=", SAME)
    saved = {}
    for place in ("in process", "over HTTP"):
        used = {name: sum(one.num_used for one in found[name, place]) for name in stacks()}
        saved[place] = 100 * (1 - used["DynasorCoT"] / used["plain"])
        report.figure(f"{place}: tokens saved by DynasorCoT, %", saved[place])
        discarded = sum(one.num_discarded for one in found["DynasorCoT", place])
        report.figure(f"{place}: decoded beyond the stop, % of plain", 100 * discarded / used["plain"])
    difference = abs(saved["in process"] - saved["over HTTP"])
    report.bar("difference of the saving, points", difference, "<=", SAVED_POINTS)


if __name__ == "__main__":
    main()
