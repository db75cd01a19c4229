"""The first hour on a GPU: the papers' own tables, on the user's models.

    python -m benchmarks.gpu.headline --model /models/r1-distill-8b --draft /models/r1-distill-1.5b \
        --dataset math500.jsonl --num_problems 100 --json > headline.json

Four tables in one: chains that stop (DynasorCoT, its presets, fixed cuts), votes that stop, draft and target (A1 beside
SpecReason's marks and the target alone), and branches on shared KV (RKSC: no reuse, reuse, the same tokens). All
differences are paired by question and have 95 % intervals. `min_difference` says what difference in accuracy the
number of questions can show.
"""

from __future__ import annotations

import asyncio
import importlib.util
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import click
import numpy as np

from benchmarks._lib.command import benchmark, size
from benchmarks._lib.lab import questions_of
from benchmarks._lib.report import Report
from benchmarks._lib.runs import Run, add_run, compare_runs, matching_budget, timed_run
from scaffolding_ext import (
    BudgetForcingController,
    ConformalDraftTargetController,
    DynasorCoTController,
    HuggingFaceWorker,
    MajorityVoteController,
    NativeGenerationController,
    OpenAIWorker,
    ScaffoldingLlm,
    TRTLLMWorker,
)
from scaffolding_ext.controllers.draft_target.baselines import Coin, SpecReasonMarks
from scaffolding_ext.controllers.draft_target.growing_rule import GrowingRule
from scaffolding_ext.errors import WorkerError
from scaffolding_ext.evaluation.run.datasets import EMBEDDED, Example
from scaffolding_ext.prompts.prompting import load_tokenizer
from scaffolding_ext.prompts.served_model import take_prompting
from scaffolding_ext.protocol import Controller, Worker
from scaffolding_ext.protocol.branching import BranchTask
from scaffolding_ext.protocol.meta import token_counts_of

PARTS = ("chains", "votes", "draft_target", "branches")
PLAIN = "plain chain"
PRESETS = ("mild", "low", "high", "crazy")  # "mid" is DynasorCoT itself
POWER_Z = 1.96 + 0.8416  # two-sided 0.05, power 0.8
ALPHA, LEAST_MARK = 0.25, 5
T = TypeVar("T")


def chosen_models(function: Callable[..., T]) -> Callable[..., T]:
    """Options of a command: which models, and where they run."""
    for option in (
        click.option("--base_url", help="A server's address that ends in /v1; --model then names a model of it."),
        click.option("--tokenizer", help="Folder or name of the server's tokenizer.  [default: --model]"),
        click.option("--model", default="tinylm/target", show_default=True, help="A checkpoint."),
    ):
        function = option(function)
    return function


def worker_of(model: str, base_url: str | None = None, tokenizer: str | None = None, **arguments: Any) -> Worker:
    """A worker: of the server at `base_url`, else of TensorRT-LLM where it is installed, else of transformers.

    Args:
        model: A checkpoint, or the server's name of it.
        base_url: The server's address.
        tokenizer: The server's tokenizer.
        arguments: Of `TRTLLMWorker`.
    """
    if base_url is not None:
        return OpenAIWorker(base_url, model, tokenizer=tokenizer or model)
    if importlib.util.find_spec("tensorrt_llm") is not None:
        return TRTLLMWorker(model, self_test=False, **arguments)
    reuse = arguments.get("enable_block_reuse", True)
    return HuggingFaceWorker(model, enable_block_reuse=reuse, **({"device": "cuda"} if _has_gpu() else {}))


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def run_controller(
    controller: Controller, workers: Mapping[str, Worker], samples: Sequence[Example], *, seed: int, at_once: int
) -> Run:
    """Answer the questions on workers that stay loaded."""
    take_prompting(controller, workers)
    with ScaffoldingLlm(controller, dict(workers), seed=seed, max_parallel_requests=at_once) as llm:
        return timed_run(llm, samples)


class Headline:
    """The questions and the workers, which stay loaded.

    Args:
        report: Gets the figures.
        target: The model.
        draft: The draft model; None leaves its part out.
        samples: The questions.
        sampling: Sampling fields of chains.
        max_tokens: Of a chain.
        at_once: Requests that run at once.
    """

    def __init__(
        self,
        report: Report,
        target: Worker,
        draft: Worker | None,
        samples: Sequence[Example],
        sampling: dict[str, Any],
        max_tokens: int,
        at_once: int,
    ) -> None:
        self._report, self._samples, self._sampling, self._max_tokens = report, samples, sampling, max_tokens
        self._target, self._draft, self._at_once = target, draft, at_once

    def _run(self, name: str, controller: Controller, **workers: Worker) -> Run:
        run = run_controller(
            controller,
            workers or {"generation": self._target},
            self._samples,
            seed=self._report.seed,
            at_once=self._at_once,
        )
        add_run(self._report, name, run)
        self._report.figure(f"{name}: questions a second", len(run.records) / run.seconds)
        self._report.difference(f"{name}: seconds of a question", [record.seconds["total"] for record in run.records])
        return run

    def chains(self) -> None:
        """DynasorCoT and its presets beside plain chains, and the fixed cut of as many tokens."""
        plain = self._run(PLAIN, NativeGenerationController({**self._sampling, "max_tokens": self._max_tokens}))
        share = float(np.mean(plain.correct))
        self._report.figure("min_difference", POWER_Z * math.sqrt(max(share * (1 - share), 0.01) / len(plain.correct)))
        for effort in (None, *PRESETS):
            name = "DynasorCoT" if effort is None else f"DynasorCoT, {effort}"
            made = DynasorCoTController(self._max_tokens, effort=effort, sampling_params=self._sampling)
            run = self._run(name, made)
            compare_runs(self._report, name, run, PLAIN, plain)
            if effort is None:
                budget = matching_budget(plain.decoded, float(np.mean(run.decoded)))
                cut = self._run("fixed cut", BudgetForcingController(budget, sampling_params=self._sampling))
                compare_runs(self._report, name, run, "fixed cut", cut)

    def votes(self, num_samples: int) -> None:
        """A vote that stops once its winner is settled, beside the vote of all samples."""
        runs = {}
        for name, allocation in (("whole vote", None), ("vote that stops", "LeaderChange")):
            chain = NativeGenerationController({**self._sampling, "max_tokens": self._max_tokens})
            runs[name] = self._run(name, MajorityVoteController(chain, num_samples, allocation=allocation))
        compare_runs(self._report, "vote that stops", runs["vote that stops"], "whole vote", runs["whole vote"])

    def draft_target(self, tokenizer: str, yes: str, no: str) -> None:
        """A1 beside SpecReason's marks and the target alone: accuracy, tokens, throughput, latency and memory."""
        if self._draft is None:
            raise click.UsageError("--part draft_target needs --draft.")
        encode = load_tokenizer(tokenizer).backend_tokenizer.encode
        yes_token, no_token = (encode(word, add_special_tokens=False).ids[0] for word in (yes, no))
        marks = SpecReasonMarks(
            LEAST_MARK,
            "\n\nThe answer is \\boxed{",
            f"\nIs this answer right? Reply with {yes} or {no}.\n",
            yes_token,
            no_token,
        )
        both = {"draft": self._draft, "target": self._target}
        alone = dict.fromkeys(both, self._target)
        runs = {}
        for name, rule, workers in (
            ("target alone", Coin(0.0), alone),
            ("SpecReason's marks", marks, both),
            ("A1", GrowingRule(alpha=ALPHA), both),
        ):
            made = ConformalDraftTargetController(
                rule=rule, num_chains=2, max_tokens=self._max_tokens, max_turns=-(-self._max_tokens // 64)
            )
            runs[name] = self._run(name, made, **workers)
            if (used := gpu_gigabytes()) is not None:
                self._report.figure(f"{name}: GB of GPU memory in use", used)
        for base in ("target alone", "SpecReason's marks"):
            compare_runs(self._report, "A1", runs["A1"], base, runs[base])


def gpu_gigabytes() -> float | None:
    """GPU memory in use, by all processes; None without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 1e9


def branches(report: Report, model: str, prefix_len: int, num_branches: int, repetitions: int, **where: Any) -> None:
    """Branches on one prefix, with KV reused and not: seconds, computed tokens, and the same greedy tokens."""
    found: dict[bool, list[list[int]]] = {}
    seconds: dict[bool, list[float]] = {}
    read: dict[bool, int] = {}
    for reuses in (False, True):
        worker = worker_of(model, enable_block_reuse=reuses, **where)
        try:
            for number in range(repetitions):
                prefix = [5 + (number * 31 + place * 7) % 200 for place in range(prefix_len)]
                suffixes = [[6 + branch] for branch in range(num_branches)]
                task = BranchTask(prefix_tokens=prefix, suffixes=suffixes, max_tokens=16, temperature=0.0)
                started = time.perf_counter()
                asyncio.run(worker.run_task(task))
                seconds.setdefault(reuses, []).append(time.perf_counter() - started)
                found.setdefault(reuses, []).extend(task.output_tokens or ())
                counts = token_counts_of(task)
                read[reuses] = read.get(reuses, 0) + (0 if counts is None else counts.prefilled)
        finally:
            worker.shutdown()
    report.difference("branches, KV not reused: seconds", seconds[False])
    report.difference("branches, KV reused: seconds", seconds[True])
    report.saved("branches, KV reused: seconds saved", seconds[True], seconds[False])
    report.figure("branches, KV reused: prefilled tokens saved", 1 - read[True] / max(1, read[False]))
    same = sum(a == b for a, b in zip(found[False], found[True], strict=True))
    report.share("branches: the same tokens with and without reuse", same, len(found[False]))


@benchmark("gpu.headline --model /models/target --draft /models/draft --dataset math500.jsonl", fails=True)
@chosen_models
@click.option("--draft", help="The draft model; without it the part draft_target is left out.")
@click.option("--dataset", default=EMBEDDED, show_default=True, help="Questions with answers.")
@click.option("--part", "parts", multiple=True, type=click.Choice(PARTS), help="By default all that can be run.")
@size("--num_problems", 100, quick=3, help="Questions.", least=2)
@size("--max_tokens", 4096, quick=160, help="Tokens of a chain.")
@size("--num_samples", 16, quick=3, help="Samples of a vote.", least=2)
@size("--prefix_len", 4096, quick=96, help="Tokens that branches share.")
@click.option("--temperature", default=0.6, show_default=True, help="Of chains.")
@click.option("--top_p", default=0.95, show_default=True, help="Of chains.")
@click.option("--at_once", default=32, show_default=True, help="Requests that run at once.")
@click.option("--words", nargs=2, default=("Yes", "No"), show_default=True, help="By which the target judges.")
def main(
    report: Report,
    model: str,
    base_url: str | None,
    tokenizer: str | None,
    draft: str | None,
    dataset: str,
    parts: tuple[str, ...],
    num_problems: int,
    max_tokens: int,
    num_samples: int,
    prefix_len: int,
    temperature: float,
    top_p: float,
    at_once: int,
    words: tuple[str, str],
) -> None:
    """The papers' own tables on your models; the exit code is 1 if a chain that stops answers worse than it may."""
    asked = parts or tuple(part for part in PARTS if draft is not None or part != "draft_target")
    samples = questions_of(dataset, num_problems, report.seed)
    fraction = 0.4 if draft is not None else 0.85
    shares = {"kv_cache_fraction": fraction, "max_seq_len": 2 * max_tokens, "serve_scores": draft is not None}
    if set(asked) - {"branches"}:
        target = worker_of(model, base_url, tokenizer, **shares)
        drafting = None if draft is None else worker_of(draft, base_url, tokenizer, **shares)
        try:
            made = Headline(
                report, target, drafting, samples, {"temperature": temperature, "top_p": top_p}, max_tokens, at_once
            )
            if "chains" in asked:
                made.chains()
            if "votes" in asked:
                made.votes(num_samples)
            if "draft_target" in asked:
                made.draft_target(tokenizer or model, *words)
        finally:
            for worker in (target, drafting):
                if worker is not None:
                    worker.shutdown()
    if "branches" in asked:
        try:
            branches(report, model, prefix_len, 4, 8, base_url=base_url, tokenizer=tokenizer)
        except WorkerError as error:
            raise click.ClickException(f"the branches failed: {error}") from None
    for name in ("DynasorCoT against plain chain", "vote that stops against whole vote"):
        figure = report.figures.get(f"{name}: accuracy, points")
        if figure is not None and figure["high"] is not None:
            report.bar(f"{name}: accuracy, points, upper end of the interval", figure["high"], ">=", 0.0)


if __name__ == "__main__":
    main()
