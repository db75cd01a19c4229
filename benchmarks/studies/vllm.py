"""Votes, DynasorCoT and its_hub's adaptive vote on one vLLM: right answers, the server's own tokens, seconds.

    VLLM_SERVER_DEV_MODE=1 vllm serve FOLDER --served-model-name tinylm/target --enable-prompt-tokens-details
    python -m benchmarks.studies.vllm --base_url http://127.0.0.1:8000/v1 --its_hub_python ITS/bin/python --json

Every system answers the same held-out problems, block by block in turns that rotate; before each turn the server's
prefix cache is emptied, which it only allows in its development mode. `/metrics` tells the tokens of a turn, those of
cancelled requests included, so their intervals resample blocks; those of right answers resample questions.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
import openai

from benchmarks._lib import its_hub_votes
from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.report import Report
from benchmarks._lib.runs import MAX_TOKENS, TEMPERATURE, timed_run
from scaffolding_ext import load_stack
from scaffolding_ext.answers.extraction import extract
from scaffolding_ext.evaluation.run.datasets import Example, load_dataset
from scaffolding_ext.evaluation.run.scoring import score
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask

NUM_VOTES = 8
CHAIN, FULL, DEFAULT, DYNASOR = "one chain", "vote of 8, all samples", "vote of 8, default", "DynasorCoT"
ROLLING = "vote of 8, 3 in flight"
WIDE, WIDE_FULL = "vote of 8, 8 in flight", "vote of 8, 8 in flight, all samples"
REQUEST, CLIENT = "one request with n = 8", "a plain client's chains"
PEER = "its_hub AdaptiveSelfConsistency .75, at most 8"
VOTE = f"controller.args.default_sample_num={NUM_VOTES}"
ROLLS = ("controller.args.in_flight=3", "controller.args.allocation=LeaderChange")
STACKS = {
    CHAIN: ("configs:native", ()),
    FULL: ("configs:majority_vote", (VOTE, "controller.args.allocation=null")),
    DEFAULT: ("configs:majority_vote", (VOTE, "controller.args.allocation=LeaderChange")),
    ROLLING: ("configs:majority_vote", (VOTE, *ROLLS)),
    WIDE: ("configs:majority_vote", (VOTE, *ROLLS, "controller.args.in_flight=8")),
    WIDE_FULL: ("configs:majority_vote", (VOTE, "controller.args.allocation=null", "controller.args.in_flight=8")),
    DYNASOR: ("configs:dynasor_cot", ()),
}
BESIDE = (
    *((name, FULL) for name in (DEFAULT, PEER, DYNASOR, CHAIN)),
    *((name, REQUEST) for name in (FULL, DEFAULT, ROLLING, WIDE, WIDE_FULL)),
    (DYNASOR, CHAIN),
    (ROLLING, DEFAULT),
)
RAW = {REQUEST: NUM_VOTES, CLIENT: 1}  # samples of a request
MOST_SECONDS = 1.1  # of a vote that needs all samples, to one request with n
LEAST_RATE = 0.95  # tokens a second to those of a plain client
COUNTERS = ("generation_tokens", "prefix_cache_queries", "prefix_cache_hits")


class Turn(NamedTuple):
    """A block of problems by one system.

    Attributes:
        counted: Growth of each of the server's counters.
        cpu: Seconds of this process.
    """

    right: list[float]
    seconds: float
    counted: list[float]
    cpu: float


class Server:
    """A vLLM: its counters, and its prefix cache."""

    def __init__(self, base_url: str) -> None:
        self.root = base_url.rstrip("/").removesuffix("/v1")

    def counters(self) -> np.ndarray:
        """The counters, once nothing runs."""
        while True:
            with urllib.request.urlopen(f"{self.root}/metrics", timeout=60) as reply:
                found = re.findall(r"^vllm:(\w+?)(?:_total)?(?:\{.*\})? ([0-9.e+]+)$", reply.read().decode(), re.M)
            total = {name: sum(float(value) for other, value in found if other == name) for name, _ in found}
            if not total["num_requests_running"] + total["num_requests_waiting"]:
                return np.array([total[name] for name in COUNTERS])
            time.sleep(0.05)

    def empty_cache(self) -> None:
        """Empty the prefix cache.

        Raises:
            click.ClickException: The server does not allow it.
        """
        request = urllib.request.Request(f"{self.root}/reset_prefix_cache", method="POST")
        try:
            urllib.request.urlopen(request, timeout=60).close()
        except urllib.error.HTTPError as error:
            raise click.ClickException(
                f"{error.url} answered {error.code}: start vLLM with VLLM_SERVER_DEV_MODE=1"
            ) from error

    def raw(self, prompts: Sequence[list[int]], model: str, num_samples: int, seed: int) -> list[list[str]]:
        """Send one request a prompt, all at once, and return the texts of each."""

        async def ask(client: openai.AsyncOpenAI, number: int, prompt: list[int]) -> list[str]:
            sampling: Any = {"temperature": TEMPERATURE, "max_tokens": MAX_TOKENS, "seed": seed + number}
            reply = await client.completions.create(model=model, prompt=prompt, n=num_samples, **sampling)
            return [choice.text for choice in reply.choices]

        async def ask_all() -> list[list[str]]:
            async with openai.AsyncOpenAI(base_url=f"{self.root}/v1", api_key="none", timeout=600) as client:
                return await asyncio.gather(*(ask(client, *each) for each in enumerate(prompts)))

        return asyncio.run(ask_all())

    def its_hub(self, python: Path, model: str, block: Sequence[Example]) -> tuple[list[float], float]:
        """Run its_hub's adaptive vote on a block: right answers, and seconds."""
        answers, seconds = its_hub_votes.voted(
            python,
            url=f"{self.root}/v1",
            model=model,
            algorithm="AdaptiveSelfConsistency",
            argument=[0.75],
            prompts=[example.prompt for example in block],
            num_samples=NUM_VOTES,
            at_once=len(block),
            sampling={"temperature": TEMPERATURE, "max_tokens": MAX_TOKENS},
        )
        return [float(score(given, own.target).correct) for given, own in zip(answers, block, strict=True)], seconds


def add_system(report: Report, name: str, turns: Sequence[Turn]) -> None:
    """Add a system's right answers, and its tokens, seconds and prefix hits."""
    sizes = [len(turn.right) for turn in turns]
    decoded, asked, hits = np.array([turn.counted for turn in turns]).T
    report.difference(f"{name}: right", np.concatenate([turn.right for turn in turns]))
    report.ratio(f"{name}: decoded tokens a question", decoded, sizes)
    report.ratio(f"{name}: prompt tokens from the prefix cache, share", hits, asked)
    report.ratio(f"{name}: client's CPU seconds a question", [turn.cpu for turn in turns], sizes)


def add_beside(report: Report, names: str, turns: Sequence[Turn], base: Sequence[Turn]) -> None:
    """Add a system's figures beside another's."""
    right, other = (np.concatenate([turn.right for turn in each]) for each in (turns, base))
    report.difference(f"{names}: points", right, other, scale=100)
    report.ratio(f"{names}: decoded tokens", [turn.counted[0] for turn in turns], [turn.counted[0] for turn in base])
    report.ratio(f"{names}: seconds", [turn.seconds for turn in turns], [turn.seconds for turn in base])


def ids_of(llm: ScaffoldingLlm, prompt: str) -> list[int]:
    """The prompt as the stack sends it."""
    task = GenerationTask(input_str=prompt)
    llm.prototype_controller.prompting.apply(task)  # type: ignore[attr-defined]
    return list(task.input_tokens or ())


def most_frequent_is_right(texts: Sequence[str], example: Example) -> float:
    answers = Counter(answer for text in texts if (answer := extract(text)) is not None)
    given = answers.most_common(1)[0][0] if answers else None
    return float(score(given, example.target).correct)


@benchmark("studies.vllm --base_url http://127.0.0.1:8000/v1 --its_hub_python ITS/bin/python --json")
@click.option("--base_url", required=True, help="Address of the vLLM, up to /v1.")
@click.option("--model", default="tinylm/target", show_default=True, help="Its name there.")
@click.option(
    "--its_hub_python",
    type=click.Path(exists=True, path_type=Path),
    envvar="SCAFFOLDING_ITS_HUB_PYTHON",
    help="Python that has its_hub; without it its row is left out.",
)
@size("--num_problems", 120, quick=4, help="Held-out problems.", least=2)
@size("--block", 8, quick=2, help="Problems of a turn, all at once.")
def main(report: Report, base_url: str, model: str, its_hub_python: Path | None, num_problems: int, block: int) -> None:
    """Votes, DynasorCoT and its_hub's adaptive vote on one vLLM."""
    samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=report.seed)
    server = Server(base_url)
    worker = json.dumps({"base_url": base_url, "model": model})
    shared = ("workers.generation.type=OpenAIWorker", f"workers.generation.args={worker}", f"seed={report.seed}")
    names = [*STACKS, *RAW, *([PEER] if its_hub_python else [])]
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    with ExitStack() as opened:
        llms: dict[str, ScaffoldingLlm] = {}
        for name, (stack, overrides) in STACKS.items():
            llms[name] = opened.enter_context(load_stack(stack, overrides=(*shared, *overrides)))
            timed_run(llms[name], load_dataset("tinylm:held_out", num_samples=1, seed=report.seed + 1))  # its self-test

        def turn(name: str, part: Sequence[Example]) -> Turn:
            server.empty_cache()
            before, spent = server.counters(), time.process_time()
            began = time.perf_counter()
            if name in RAW:
                texts = server.raw([ids_of(llms[CHAIN], each.prompt) for each in part], model, RAW[name], report.seed)
                seconds = time.perf_counter() - began
                right = [most_frequent_is_right(own, each) for own, each in zip(texts, part, strict=True)]
            elif name == PEER and its_hub_python is not None:
                right, seconds = server.its_hub(its_hub_python, model, part)
            else:
                run = timed_run(llms[name], part)
                right, seconds = run.correct, run.seconds
            spent = time.process_time() - spent
            return Turn(right, seconds, list(server.counters() - before), spent)

        for number, start in enumerate(track(range(0, len(samples), block), "blocks")):
            for place in range(len(names)):
                name = names[(place + number) % len(names)]
                turns[name].append(turn(name, samples[start : start + block]))
    for name, own in turns.items():
        add_system(report, name, own)
    for name, base in BESIDE:
        if name in turns:
            add_beside(report, f"{name} beside {base}", turns[name], turns[base])
    for name, sign, bar in ((WIDE_FULL, "<=", MOST_SECONDS), (WIDE, "<=", 1.0)):
        seconds = report.figures[f"{name} beside {REQUEST}: seconds"]["value"]
        report.bar(f"{name} beside {REQUEST}: seconds", seconds, sign, bar)
    rates = [
        sum(each.counted[0] for each in turns[name]) / sum(each.seconds for each in turns[name])
        for name in (CHAIN, CLIENT)
    ]
    report.bar(f"{CHAIN} beside {CLIENT}: tokens a second", rates[0] / rates[1], ">=", LEAST_RATE)
    low = report.figures[f"{DEFAULT} beside {FULL}: points"]["low"]
    report.bar(f"{DEFAULT} beside {FULL}: points, lower end", np.nan if low is None else low, ">", -2.0)


if __name__ == "__main__":
    main()
