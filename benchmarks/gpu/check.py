"""The first ten minutes on a GPU: do TRTLLMWorker and the installed TensorRT-LLM understand each other?

    python -m benchmarks.gpu.check --model /models/small --store runs/check.jsonl

Each check prints a line as it ends: passed, failed with its cause, or not served by this release. The exit code is 1 if
a line failed. The cheapest and most telling checks come first. Every check has a time limit, because an engine's worst
fault is to hang; loading a model counts in none. A model that cannot be loaded ends the run.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from benchmarks._lib.command import libraries_on_stderr
from benchmarks._lib.provenance import PLACE, setting_of
from scaffolding_ext import (
    ConformalDraftTargetController,
    DynasorCoTController,
    HuggingFaceWorker,
    NativeGenerationController,
    ScaffoldingLlm,
    TRTLLMWorker,
    completion_of,
)
from scaffolding_ext.errors import InvalidTaskError
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.prompts.tokenizers import model_folder
from scaffolding_ext.protocol import UPSTREAM, WHY_STANDINS, GenerationTask, StreamGenerationTask, Task
from scaffolding_ext.protocol.branching import BranchTask, VerifyTask
from scaffolding_ext.protocol.meta import token_counts_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.protocol.worker import WrappingWorker
from scaffolding_ext.testing.worker_contract import WORKER_CHECKS
from scaffolding_ext.workers.trtllm.arguments import why_no_retention

PROMPT = "The capital of France is Paris. The capital of Italy is"
QUESTION = "Start with 5. Apply a+3,b-2. Find the total."
G = TypeVar("G", bound=GenerationTask)
STEP_TOKENS = 256  # of the LLM whose requests are longer than a step
LONGEST = 8192  # tokens of the longest score
LEAST_FRACTION = 0.1  # of the free memory for KV; with less, a model serves hardly a chain
KV_TOKENS = 1024  # of the LLM whose KV is evicted
LEAST_NATS = 0.05  # mean difference of log-probabilities from float32 that is always allowed
MOST_GAPS = 3.0  # as a multiple of the gap between bfloat16 and float32 of transformers itself
TEXTS = (
    (PROMPT, " Rome, and that of Spain is Madrid."),
    ("Water boils at 100 degrees Celsius. It freezes at", " 0 degrees Celsius, and ice floats on water."),
    ("Start with 5. Apply a+3,b-2. Find the total.", " 5 + 3 = 8, and 8 - 2 = 6. So the total is 6."),
)


class NotServedError(Exception):
    """The installed release, or this machine, does not have what the check is about."""


class Line(NamedTuple):
    """The outcome of a check.

    Attributes:
        name: What was checked.
        outcome: `"passed"`, `"failed"` or `"not served"`.
        cause: Why it failed or is not served; empty where it passed.
        seconds: How long it took.
        check: Name of its function.
    """

    name: str
    outcome: str
    cause: str
    seconds: float
    check: str

    def __str__(self) -> str:
        cause = f"\n            {self.cause}" if self.cause else ""
        return f"{self.outcome:10} {self.seconds:6.1f} s  {self.name}{cause}"


class Kept(WrappingWorker):
    """The one worker under each check: loading the model for each would take minutes."""

    def shutdown(self) -> None:
        """Leave the worker running."""


class Bench:
    """The model, and the worker that most checks share.

    Args:
        model: A checkpoint.
        fraction: Share of the free GPU memory that the shared worker takes for KV.
    """

    def __init__(self, model: str, fraction: float) -> None:
        self.model, self._fraction = model, fraction
        self._worker: TRTLLMWorker | None = None
        self.is_broken = False  # the model cannot be loaded
        self._loaded_s = 0.0
        self._loading_since: float | None = None

    @property
    def worker(self) -> TRTLLMWorker:
        """Loaded by the first check that asks."""
        if self._worker is None:
            self.is_broken = True
            self._worker = self.load(max_seq_len=1024, serve_scores=True, llm_args=self._with_stats())
            self.is_broken = False
        return self._worker

    @property
    def loading_seconds(self) -> float:
        """Seconds of loading models so far."""
        since = self._loading_since
        return self._loaded_s + (0.0 if since is None else time.monotonic() - since)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Count the block as loading, which no limit includes."""
        self._loading_since = time.monotonic()
        try:
            yield
        finally:
            self._loaded_s, self._loading_since = self.loading_seconds, None

    @property
    def llm(self) -> Any:
        """TensorRT-LLM's own `LLM` in it."""
        return self.worker._loaded.llm

    def load(self, **arguments: Any) -> TRTLLMWorker:
        """A further worker of the same model."""
        with self.loading():
            return TRTLLMWorker(self.model, **{"kv_cache_fraction": self._fraction, **arguments})

    def reference_scores(self, dtype: str) -> list[float]:
        """Log-probabilities of `TEXTS` by transformers."""
        import torch

        with self.loading():
            worker = HuggingFaceWorker(self.model, dtype=dtype, device="cuda" if torch.cuda.is_available() else "cpu")
        with worker:
            return self.scores(worker)

    @staticmethod
    def scores(worker: Any) -> list[float]:
        """Log-probabilities of the continuations in `TEXTS`."""
        tasks = [ScoreTask(input_str=prompt, continuation_str=text) for prompt, text in TEXTS]
        for task in tasks:
            asyncio.run(worker.run_task(task))
        return [value for task in tasks for value in task.logprobs or ()]

    def _with_stats(self) -> dict[str, Any]:
        from tensorrt_llm.llmapi import llm_args

        fields = getattr(llm_args.TorchLlmArgs, "model_fields", {})
        return {"enable_iter_perf_stats": True} if "enable_iter_perf_stats" in fields else {}

    def close(self) -> None:
        """Shut the shared worker down."""
        if self._worker is not None:
            self._worker.shutdown()

    def run(self, *tasks: Task) -> Any:
        """Run tasks at once on an event loop of their own; the first task."""

        async def scenario() -> None:
            await asyncio.gather(*map(self.worker.run_task, tasks))

        asyncio.run(scenario())
        return tasks[0]


def greedy(max_tokens: int = 16, **fields: Any) -> GenerationTask:
    """Greedy, and on to the last token."""
    return _with(GenerationTask(), {"max_tokens": max_tokens, **fields})


def stream(max_tokens: int = 512, **fields: Any) -> StreamGenerationTask:
    """A greedy stream in steps of eight tokens."""
    return _with(StreamGenerationTask(streaming_step=8), {"max_tokens": max_tokens, **fields})


async def cancelled(bench: Bench, **fields: Any) -> StreamGenerationTask:
    """A stream that is cancelled after its first step."""
    task = stream(**fields)
    await bench.worker.run_task(task)
    task.cancel_flag = True
    await bench.worker.run_task(task)
    return task


def _with(task: G, fields: dict[str, Any]) -> G:
    """The task with the fields; a release may not declare all of them."""
    for name, value in ({"input_str": PROMPT, "temperature": 0.0, "ignore_eos": True} | fields).items():
        setattr(task, name, value)
    return task


def expect(holds: object, cause: str) -> None:
    """Fail the check with a cause where something does not hold."""
    if not holds:
        raise AssertionError(cause)


def needs_keyword(bench: Bench, name: str) -> None:
    """End the check where `generate_async` has no such keyword."""
    if name not in inspect.signature(bench.llm.generate_async).parameters:
        raise NotServedError(f"generate_async has no {name}")


# ---- the checks; `CHECKS` has their order


def upstreams_classes(bench: Bench) -> None:
    """The protocol stands on TensorRT-LLM's own classes"""
    expect(UPSTREAM, WHY_STANDINS or "tensorrt_llm.scaffolding does not import")


def loading(bench: Bench) -> None:
    """The model loads"""
    expect(bench.worker.task_handlers, "the worker serves nothing")


def contract(bench: Bench) -> None:
    """The contract of every worker"""
    for check in WORKER_CHECKS:
        if check.__name__ != "check_shutdown_ends_it":
            check(lambda: Kept(bench.worker), PROMPT)


def scores(bench: Bench) -> None:
    """Scores are those of transformers, with KV reused and not"""
    expected = bench.reference_scores("float32")
    gap = _mean_difference(bench.reference_scores("bfloat16"), expected)
    limit = max(LEAST_NATS, MOST_GAPS * gap)
    for _ in range(2):
        found = _mean_difference(bench.scores(bench.worker), expected)
        expect(found < limit, f"log-probabilities differ by {found:.3f} nats on average; {limit:.3f} are allowed")


def _mean_difference(found: Sequence[float], expected: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(found, expected, strict=True)) / len(expected)


def prefix_reuse(bench: Bench) -> None:
    """A prompt that is sent again reads its KV from the cache"""
    tasks = [greedy(1, input_str=PROMPT * 20) for _ in range(2)]
    for task in tasks:
        bench.run(task)
    counts = token_counts_of(tasks[1])
    expect(counts is not None and counts.reused > 0, f"reused no token: {counts}")


def two_hosts(bench: Bench) -> None:
    """Two hosts share one worker"""
    controller = NativeGenerationController({"max_tokens": 32, "temperature": 0.0})
    workers = {"generation": bench.worker}
    with ScaffoldingLlm(controller, workers) as one, ScaffoldingLlm(controller.clone(), workers) as other:
        results = [host.generate_async(QUESTION) for _ in range(16) for host in (one, other)]
        for result in results:
            expect(result.result().outputs[0].text, "an output is empty")


def two_loops(bench: Bench) -> None:
    """A one-token request has its answer beside one that was given up on a loop that has ended"""
    for _ in range(20):
        asyncio.run(cancelled(bench))
        expect(bench.run(greedy(1)).output_tokens, "no token came")


def cancel(bench: Bench) -> None:
    """A cancelled stream keeps what it has, and leaves no active request in the engine"""
    task = asyncio.run(cancelled(bench))
    expect(task.end_flag and 8 <= len(task.output_tokens or ()) < 512, f"{len(task.output_tokens or ())} tokens came")
    until = time.monotonic() + 20.0
    active = None
    while time.monotonic() < until:
        try:
            told = [json.loads(each) if isinstance(each, str) else each for each in bench.llm.get_stats(timeout=1)]
        except Exception as error:  # of any type: some releases have no statistics without a setting of their own
            raise NotServedError(f"get_stats: {type(error).__name__}: {error}") from None
        active = told[-1].get("numActiveRequests") if told else 0
        if not active:
            return
    raise AssertionError(f"{active} requests are still active")


def stop_strings(bench: Bench) -> None:
    """A stop string ends the text inside a token and across tokens"""
    text = bench.run(greedy(24)).output_str or ""
    for start, end in ((4, 6), (5, 11)):
        stop = text[start:end]
        task = bench.run(greedy(24, stop=[stop]))
        expect(task.output_str == text[: text.index(stop)], f"stop {stop!r} gives {task.output_str!r} of {text!r}")
        expect(task.finish_reason == "stop", f"finish_reason is {task.finish_reason!r}")


def logprobs_aborted(bench: Bench) -> None:
    """A stream with five log-probabilities is aborted half-way, and the engine lives on"""
    task = asyncio.run(cancelled(bench, num_logprobs=5))
    expect(len(task.logprobs or ()) == len(task.output_tokens or ()), "not every token has log-probabilities")
    expect(bench.run(greedy(1)).output_tokens, "no token came afterwards")


def samples(bench: Bench) -> None:
    """Six samples without a seed are no copies"""
    tasks = [greedy(24, temperature=1.5) for _ in range(6)]
    bench.run(*tasks)
    texts = {task.output_str for task in tasks}
    expect(len(texts) == 6, f"six samples gave {len(texts)} texts")


def seeds(bench: Bench) -> None:
    """Samples with seeds differ, and repeat"""
    rounds = []
    for _ in range(2):
        tasks = [greedy(24, temperature=1.5, seed=seed) for seed in range(6)]
        bench.run(*tasks)
        rounds.append([task.output_str for task in tasks])
    expect(len(set(rounds[0])) == 6, f"six seeds gave {len(set(rounds[0]))} texts")
    same = sum(a == b for a, b in zip(*rounds, strict=True))
    if same < 6:
        raise NotServedError(
            f"{6 - same} of 6 texts differ when they are repeated (#17172, or the rounding of a batch)"
        )


def branches(bench: Bench) -> None:
    """A BranchTask runs on one prefix with retention priorities"""
    prefix = bench.worker._reader.ids(None, PROMPT * 10, "input")
    suffixes = [bench.worker._reader.ids(None, text, "input")[-1:] for text in ("A", "B", "C")]
    fields: dict[str, Any] = {"max_tokens": 8, "temperature": 0.0, "branch_scores": [1.0, 0.5, 0.0]}
    task = bench.run(BranchTask(prefix_tokens=prefix, suffixes=suffixes, **fields))
    expect([len(ids) for ids in task.output_tokens or ()] == [8] * 3, f"tokens: {task.output_tokens}")
    expect(all(0 < each <= 1 for each in task.confidences or ()), f"confidences: {task.confidences}")
    counts = token_counts_of(task)
    expect(counts is not None and counts.reused > 0, f"the branches shared nothing: {counts}")


def verdicts(bench: Bench) -> None:
    """A VerifyTask gives P(yes)"""
    ids = bench.worker._reader.ids(None, PROMPT, "input")
    likely = list(bench.run(greedy(1, num_logprobs=2)).logprobs[0])[:2]
    task = bench.run(VerifyTask(branches=[ids, ids], yes_token=likely[0], no_token=likely[1]))
    expect(all(0.5 <= score < 1 for score in task.scores or ()), f"scores: {task.scores}")
    expect(len(task.scores or ()) == 2, f"{len(task.scores or ())} scores")


def cache_salt(bench: Bench) -> None:
    """A cache salt keeps KV apart, so that scores and reused KV go together"""
    needs_keyword(bench, "cache_salt")
    for salt, shares in (("one", False), ("two", False), ("two", True)):
        task = bench.run(greedy(1, input_str=PROMPT * 25, custom_input_params={"cache_salt": salt}))
        counts = token_counts_of(task)
        expect(counts is not None and (counts.reused > 0) is shares, f"salt {salt!r}: {counts}")


def priority(bench: Bench) -> None:
    """An engine priority goes over"""
    needs_keyword(bench, "priority")
    bench.run(greedy(1, custom_input_params={"engine_priority": 0.9}))


def scored(worker: TRTLLMWorker, length: int) -> list[int]:
    """Score a text of so many tokens, and return its tokens."""
    ids = (worker._reader.ids(None, PROMPT, "input") * length)[:length]
    score = ScoreTask(input_tokens=ids[:4], continuation_tokens=ids[4:])
    asyncio.run(worker.run_task(score))
    expect(len(score.logprobs or ()) == length - 4, f"{len(score.logprobs or ())} of {length - 4} scores came")
    return ids


def longer_than_a_step(bench: Bench) -> None:
    """A score and a generation may be longer than max_num_tokens"""
    with bench.load(max_seq_len=4 * STEP_TOKENS, max_num_tokens=STEP_TOKENS, serve_scores=True) as worker:
        task = greedy(8, input_str=None, input_tokens=scored(worker, 2 * STEP_TOKENS))
        asyncio.run(worker.run_task(task))
    expect(len(task.output_tokens or ()) == 8, f"{len(task.output_tokens or ())} tokens came")


def longest_score(bench: Bench) -> None:
    """The longest score, of 8,192 tokens at most, fits into the memory that the worker leaves by default"""
    with bench.load(serve_scores=True, kv_cache_fraction=None) as worker:
        scored(worker, min(LONGEST, (worker.max_seq_len or LONGEST) - 1))


def retention(bench: Bench) -> None:
    """A branch of a high score keeps its KV longer than one of a low score that was used after it"""
    with bench.load(max_seq_len=1024, llm_args={"kv_cache_config": {"max_tokens": KV_TOKENS}}) as worker:
        base = worker._reader.ids(None, PROMPT, "input")

        def distinct(number: int, length: int) -> list[int]:
            return [
                base[number % len(base)],
                *(base[(number + place * place) % len(base)] for place in range(1, length)),
            ]

        prefix = distinct(0, KV_TOKENS // 16)
        suffixes = [distinct(number, 3 * KV_TOKENS // 16) for number in (1, 2)]
        fields: dict[str, Any] = {"max_tokens": 1, "temperature": 0.0, "branch_scores": [1.0, 0.0]}

        async def scenario() -> list[int]:
            await worker.run_task(BranchTask(prefix_tokens=prefix, suffixes=suffixes, **fields))
            for number in range(3, 9):  # they fill the cache one and a half times
                await worker.run_task(_with(GenerationTask(), _ids(distinct(number, KV_TOKENS // 4))))
            again = [_with(GenerationTask(), _ids(prefix + suffix)) for suffix in suffixes]
            for task in again:
                await worker.run_task(task)
            return [counts.reused if (counts := token_counts_of(task)) else 0 for task in again]

        high, low = asyncio.run(scenario())
        reason = why_no_retention(worker._loaded)
    found = f"{high} of {len(prefix) + len(suffixes[0])} tokens of the high score are still there, {low} of the low one"
    if high <= low and reason is not None:
        raise NotServedError(f"{found}: {reason}")
    expect(high > low, f"{found}: retention priorities have no effect")


def _ids(token_ids: list[int]) -> dict[str, Any]:
    return {"input_str": None, "input_tokens": token_ids, "max_tokens": 1}


def shutdown(bench: Bench) -> None:
    """A shutdown ends what is in flight; a cancel afterwards raises nothing, and no reader stays"""

    async def scenario(worker: TRTLLMWorker) -> None:
        task = stream(900)
        await worker.run_task(task)
        waiting = asyncio.ensure_future(worker.run_task(greedy(900)))
        await asyncio.sleep(0)
        await asyncio.to_thread(worker.shutdown)
        (failed,) = await asyncio.gather(waiting, return_exceptions=True)
        expect("shut down" in str(failed), f"a request in flight ended with {failed!r}")
        task.cancel_flag = True
        await worker.run_task(task)
        left = asyncio.all_tasks() - {asyncio.current_task()}
        expect(not left, f"{len(left)} readers stay")

    asyncio.run(scenario(bench.load(max_seq_len=1024)))


def dynasor_upstream(bench: Bench) -> None:
    """DynasorCoT answers under upstream's own host"""
    params = {"temperature": 0.6, "top_p": 0.95}
    _upstream(bench, DynasorCoTController(chunk_size=32, max_tokens=256, sampling_params=params), "generation")


def conformal_upstream(bench: Bench) -> None:
    """ConformalDraftTarget answers under upstream's own host"""
    controller = ConformalDraftTargetController(
        rule={"type": "growing", "args": {"alpha": 0.25}},  # type: ignore[arg-type]
        num_chains=2,
        draft_tokens=32,
        target_tokens=32,
        max_turns=4,
        max_tokens=192,
    )
    _upstream(bench, controller, "draft", "target")


def _upstream(bench: Bench, controller: Any, *tags: str) -> None:
    if not UPSTREAM:
        raise NotServedError(WHY_STANDINS or "tensorrt_llm.scaffolding does not import")
    from tensorrt_llm.scaffolding import ScaffoldingLlm as UpstreamHost

    workers = dict.fromkeys(tags, bench.worker)
    controller.prompting = Prompting.for_model(bench.model)
    controller.bind(workers)
    host = UpstreamHost(controller, workers)
    try:
        completion = completion_of(host.generate(QUESTION))
        expect(completion.text, "the output is empty")
        expect(completion.program is not None and completion.program.ledger.total.decoded > 0, "no token is counted")
    finally:
        host.shutdown()


CHECKS: tuple[Callable[[Bench], None], ...] = (  # the cheapest and most telling first, further loads last
    upstreams_classes,
    loading,
    prefix_reuse,
    stop_strings,
    cancel,
    two_loops,
    two_hosts,
    verdicts,
    branches,
    logprobs_aborted,
    samples,
    seeds,
    cache_salt,
    priority,
    contract,
    dynasor_upstream,
    conformal_upstream,
    scores,
    longer_than_a_step,
    shutdown,
    retention,
    longest_score,
)


def line_of(check: Callable[[Bench], None], bench: Bench, limit: float) -> Line:
    """Run a check on a thread of its own; it has failed after `limit` seconds in which no model was loading."""
    name, started, loaded = (inspect.getdoc(check) or "").splitlines()[0], time.monotonic(), bench.loading_seconds
    found: list[tuple[str, str]] = []

    def work() -> None:
        try:
            check(bench)
            found.append(("passed", ""))
        except NotServedError as error:
            found.append(("not served", str(error)))
        except InvalidTaskError as error:
            found.append(("not served" if "TensorRT-LLM" in str(error) else "failed", str(error)))
        except BaseException as error:  # of any type: the line says it, and the next check runs
            where = traceback.extract_tb(error.__traceback__)[-1]
            found.append(
                ("failed", f"{type(error).__name__}: {error} ({os.path.basename(where.filename)}:{where.lineno})")
            )

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while thread.is_alive() and time.monotonic() - started - (bench.loading_seconds - loaded) < limit:
        thread.join(min(limit, 1.0))
    outcome, cause = found[0] if found else ("failed", f"no end within {limit:g} seconds")
    return Line(name, outcome, cause, time.monotonic() - started, check.__name__)


class ModelNeeds(NamedTuple):
    """Memory of a model, by arithmetic; GB are 1e9 bytes.

    Attributes:
        weights: Bytes of its safetensors files, or of all parameters at two bytes.
        token: Bytes of one token's KV at two bytes a value.
        score: Bytes of the longest score: float32 logits of its text, and as much again for their log-softmax.
    """

    weights: int
    token: int
    score: int

    @classmethod
    def of(cls, model: str) -> ModelNeeds:
        """Read a checkpoint's configuration; weights and a GPU are not needed."""
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        folder = model_folder(model)
        config = AutoConfig.from_pretrained(folder)
        weights = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
        if not weights:
            with torch.device("meta"):
                weights = 2 * sum(each.numel() for each in AutoModelForCausalLM.from_config(config).parameters())
        text = config.get_text_config()
        heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
        head_dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        longest = min(LONGEST, text.max_position_embeddings)
        return cls(weights, 4 * text.num_hidden_layers * heads * head_dim, 8 * longest * text.vocab_size)

    def on(self, card: float) -> str:
        """Line about a card of so many bytes, of which 5 % are taken by its driver and the runtime."""
        free = 0.95 * card - self.weights
        most = 1 - self.score / free if free > 0 else -1.0
        name = f"{card / 1e9:4.0f} GB card"
        if free <= 0:
            return f"{name}: the weights do not fit"
        if most < LEAST_FRACTION:
            return (
                f"{name}: no room for the longest score; with serve_scores: false {free / self.token:,.0f} tokens of KV"
            )
        fraction = min(0.8, math.floor(100 * most) / 100)
        advice = "the default" if fraction == 0.8 else f"kv_cache_fraction: {fraction}"
        return (
            f"{name}: {advice} leaves {fraction * free / self.token:,.0f} tokens of KV, and room for the longest score"
        )

    def __str__(self) -> str:
        parts = f"{self.weights / 1e9:.1f} GB of weights, {self.token:,} bytes of KV a token"
        return f"{parts}, {self.score / 1e9:.1f} GB for the longest score"


def missing_checks(store: Path | None, only: Sequence[str]) -> tuple[list[Line], list[Callable[[Bench], None]]]:
    """Lines of a store that was begun, and the checks that are still to be run; what failed is run again."""
    told = store.read_text(encoding="utf-8").splitlines() if store is not None and store.exists() else []
    known = {line.check: line for line in (Line(**json.loads(text)) for text in told) if line.outcome != "failed"}
    wanted = [check for check in CHECKS if not only or check.__name__ in only]
    return list(known.values()), [check for check in wanted if check.__name__ not in known]


@click.command(epilog="Example: python -m benchmarks.gpu.check --model /models/small --store runs/check.jsonl")
@click.option("--model", default="tinylm/draft", show_default=True, help="A small checkpoint.")
@click.option("--for_model", help="Also say what this model needs, by arithmetic; it is not loaded.")
@click.option("--kv_cache_fraction", default=0.3, show_default=True, help="Share of the free memory of one worker.")
@click.option(
    "--limit_seconds", default=120.0, show_default=True, help="Seconds that a check may take, without loading."
)
@click.option("--store", type=PLACE, help="JSONL file of the lines; what passed there is not repeated.")
@click.option("--only", multiple=True, help="Names of checks, as functions of this file are called; all by default.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document; the lines go to stderr.")
@click.pass_context
def main(
    context: click.Context,
    model: str,
    for_model: str | None,
    kv_cache_fraction: float,
    limit_seconds: float,
    store: Path | None,
    only: tuple[str, ...],
    as_json: bool,
) -> None:
    """Check that TRTLLMWorker and the installed TensorRT-LLM understand each other; if not, the exit code is 1."""
    unknown = set(only) - {check.__name__ for check in CHECKS}
    if unknown:
        names = ", ".join(check.__name__ for check in CHECKS)
        raise click.UsageError(f"--only names {', '.join(sorted(unknown))}; known: {names}")
    bench = Bench(model, kv_cache_fraction)
    lines, left = missing_checks(store, only)
    needs = None
    with libraries_on_stderr() as report:

        def say(text: object) -> None:
            print(text, file=sys.stderr if as_json else report, flush=True)

        if for_model is not None:
            needs = ModelNeeds.of(for_model)
            for text in (f"{for_model}: {needs}", *map(needs.on, cards())):
                say(text)
        while left and not bench.is_broken:
            lines.append(line_of(left.pop(0), bench, limit_seconds))
            if store is not None:
                store.parent.mkdir(parents=True, exist_ok=True)
                with store.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(lines[-1]._asdict()) + "\n")
            say(lines[-1])
        counts = Counter(line.outcome for line in lines) | Counter({"not run": len(left)})
        say(", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "not served", "not run")))
        if as_json:
            release = getattr(sys.modules.get("tensorrt_llm"), "__version__", None)
            document = {"setting": setting_of(context) | {"tensorrt_llm": release}}
            document |= {"for_model": needs._asdict()} if needs is not None else {}
            lists = {"lines": [line._asdict() for line in lines], "not_run": [check.__name__ for check in left]}
            print(json.dumps(document | lists, indent=1), file=report, flush=True)
    if any("no end within" in line.cause for line in lines):
        os._exit(1)  # a check that hangs holds its worker, whose shutdown would hang, too
    bench.close()
    sys.exit(int(counts["failed"] > 0))


def cards() -> list[float]:
    """Bytes of this machine's first card, or of usual ones."""
    import torch

    return [torch.cuda.mem_get_info(0)[1]] if torch.cuda.is_available() else [24e9, 40e9, 48e9, 80e9, 141e9]


if __name__ == "__main__":
    main()
