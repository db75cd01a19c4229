"""Votes of its_hub and ours on one server: the same problems, tokens counted by the server, seconds.

    python -m venv ITS && ITS/bin/pip install 'its_hub[lm]'
    python -m benchmarks.studies.peers --its_hub_python ITS/bin/python --store FOLDER --json

Our front serves plain chains. Every vote asks it over HTTP for up to 16 of them a problem, some problems at a time. The
votes take turns, a block of problems each, so that a machine that gets slower slows all. What is tuned was chosen by
`Replay` on other problems, whose 16 samples were drawn before. Without its_hub only our votes run.
"""

from __future__ import annotations

import collections
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from benchmarks._lib import its_hub_votes
from benchmarks._lib.command import benchmark, kept, size, stored
from benchmarks._lib.report import Report
from scaffolding_ext import HuggingFaceWorker, MajorityVoteController, NativeGenerationController, ScaffoldingLlm
from scaffolding_ext.evaluation.logs.read import read_recording
from scaffolding_ext.evaluation.logs.samples import Recording
from scaffolding_ext.evaluation.run.datasets import Example, load_dataset
from scaffolding_ext.evaluation.run.record_chain import recording_stack
from scaffolding_ext.evaluation.run.run_folder import claimed
from scaffolding_ext.evaluation.run.scoring import score
from scaffolding_ext.evaluation.run.session import Session
from scaffolding_ext.evaluation.tune.choose import Cheapest, chosen
from scaffolding_ext.evaluation.tune.replay import Replay
from scaffolding_ext.request.program import Program
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.metrics import Metrics
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.server import FrontThread
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.stack.config import StackConfig
from scaffolding_ext.stack.load import load_config
from scaffolding_ext.workers.openai.worker import OpenAIWorker

MODEL = "tinylm/target"
AT_ONCE = 8  # problems
SAMPLING = {"temperature": 0.7}
MOST_LOST = 0.003
FULL, DEFAULT, TUNED = "its_hub SelfConsistency", "ours, default", "ours, tuned"
PEERS: Mapping[str, tuple[str, Sequence[float]]] = {
    FULL: ("SelfConsistency", ()),
    "its_hub AdaptiveSelfConsistency .75": ("AdaptiveSelfConsistency", (0.75,)),
    "its_hub BetaSelfConsistency .95": ("BetaSelfConsistency", (0.95,)),
}
OURS: Mapping[str, Mapping[str, Any]] = {
    DEFAULT: {"type": "LeaderChange", "args": {}},
    "ours, Adaptive-Consistency .90": {"type": "BetaConsistency", "args": {"confidence": 0.9}},
}


class Counted(Metrics):
    """Metrics that also know the decoded tokens of each prompt, those of cancelled requests included."""

    def __init__(self, num_programs: Any) -> None:
        super().__init__(num_programs)
        self.decoded = collections.Counter[str]()

    def ended(self, model: str, program: Program, reason: str, is_answered: bool = True) -> None:
        super().ended(model, program, reason, is_answered)
        self.decoded[program.question.prompt] += program.ledger.num_decoded


class Voted(NamedTuple):
    """A vote on a block of problems: whether each is right, the server's tokens for each, and seconds of the block."""

    right: list[float]
    decoded: list[int]
    seconds: float


class Server:
    """Our front over plain chains, and the votes that ask it."""

    def __init__(self, max_tokens: int, num_samples: int, seed: int) -> None:
        most = num_samples * AT_ONCE
        limits = Limits(max_queue=4 * most, ignores_unknown_fields=True)
        self.sampling = {**SAMPLING, "max_tokens": max_tokens}
        chain = NativeGenerationController(self.sampling)
        llm = ScaffoldingLlm(chain, {"generation": HuggingFaceWorker(MODEL)}, seed=seed, max_parallel_requests=most)
        stack = ServedStack("plain", llm, limits)
        self.front = Front([stack], limits)
        self.num_samples, self.seed = num_samples, seed
        self.metrics = self.front.metrics = Counted(lambda: {"plain": stack.num_open})

    def vote(self, url: str, rule: Any, prompts: Sequence[str]) -> tuple[list[str | None], float]:
        """Our vote over the server: the answers, and seconds."""
        worker = OpenAIWorker(f"{url}/v1", "plain", endpoint="chat", tokenizer=MODEL)
        chain = NativeGenerationController(self.sampling)
        controller = MajorityVoteController(chain, self.num_samples, allocation=rule)
        with ScaffoldingLlm(controller, {"generation": worker}, seed=self.seed, max_parallel_requests=AT_ONCE) as llm:
            began = time.perf_counter()
            answers = [result.answer for result in llm.generate(list(prompts))]
            return answers, time.perf_counter() - began

    def its_hub(self, url: str, python: Path, name: str, prompts: Sequence[str]) -> tuple[list[str | None], float]:
        """A vote of its_hub over the server: the answers, and seconds."""
        algorithm, argument = PEERS[name]
        return its_hub_votes.voted(
            python,
            url=f"{url}/v1",
            model="plain",
            algorithm=algorithm,
            argument=argument,
            prompts=list(prompts),
            num_samples=self.num_samples,
            at_once=AT_ONCE,
        )

    def timed(
        self, url: str, name: str, rule: Mapping[str, Any] | None, block: Sequence[Example], python: Path | None
    ) -> Voted:
        """A vote on a block of problems."""
        prompts = [example.prompt for example in block]
        self.metrics.decoded.clear()
        answers, seconds = (
            self.its_hub(url, python, name, prompts)
            if python is not None and name in PEERS
            else self.vote(url, rule, prompts)
        )
        while self.front.jobs:  # what was cancelled ends a step later
            time.sleep(0.05)
        right = [float(score(answer, example.target).correct) for answer, example in zip(answers, block, strict=True)]
        return Voted(right, [self.metrics.decoded[prompt] for prompt in prompts], seconds)


def recorded_samples(config: StackConfig, folder: Path, num_samples: int) -> Recording:
    """Samples of a stack on its data set, as `eval --epochs` records them; those of the folder are not drawn again."""
    settings = config.evaluation.model_copy(update={"epochs": num_samples})
    stack = recording_stack(config, 0).model_copy(update={"evaluation": settings})
    with claimed(folder, resume=True) as goes_on:
        run = Session(stack.for_run(), folder)
        if goes_on:
            run.resume(is_mended=True)
        stopped_by = run.go(lambda words: click.echo(words, err=True))
    if stopped_by is not None or run.tally.first_error is not None:
        raise click.ClickException(f"{folder}: {run.tally.first_error or 'interrupted: give the same command again'}")
    return read_recording([folder], num_samples=num_samples)


def tuned_rule(
    num_problems: int, num_samples: int, max_tokens: int, seed: int, folder: Path
) -> tuple[str, Mapping[str, Any] | None]:
    """The cheapest vote on other problems that loses at most 0.3 points there: in words, and its rule."""
    overrides = [
        f"workers.generation.args.model={MODEL}",
        f"seed={seed}",
        f"dataset.num_samples={num_problems}",
        f"dataset.seed={seed + 1}",
        f"controller.args.generation_controller.args.sampling_params.max_tokens={max_tokens}",
    ]
    config = load_config("configs:majority_vote", overrides)
    trial = Replay(recorded_samples(config, folder, num_samples))
    trial.try_all()
    setting = chosen(trial, Cheapest(MOST_LOST)) or trial.all_samples
    return str(setting), setting.rule_config()


def add_votes(report: Report, votes: Mapping[str, Sequence[Voted]]) -> None:
    """Accuracy, tokens and seconds of each vote, and beside the vote of all samples."""
    full = next(iter(votes))
    right, decoded, seconds = {}, {}, {}
    for name, blocks in votes.items():
        right[name] = np.concatenate([each.right for each in blocks])
        decoded[name] = np.concatenate([each.decoded for each in blocks])
        seconds[name] = np.array([each.seconds for each in blocks])
        report.difference(f"{name}: right", right[name])
        report.difference(f"{name}: tokens a question", decoded[name])
        report.difference(f"{name}: seconds a block", seconds[name])
        if name != full:
            report.difference(f"{name}: points over all samples", right[name], right[full], scale=100)
            report.ratio(f"{name}: tokens, share of all", decoded[name], decoded[full])
            report.ratio(f"{name}: seconds, share of all", seconds[name], seconds[full])
    for name in (DEFAULT, TUNED):
        for peer in [peer for peer in PEERS if peer in votes and peer != full]:
            report.ratio(f"{name} beside {peer}: tokens", decoded[name], decoded[peer])
            report.ratio(f"{name} beside {peer}: seconds", seconds[name], seconds[peer])
            report.difference(f"{name} beside {peer}: points", right[name], right[peer], scale=100)
    for peer in list(PEERS)[1:]:
        if peer in votes:
            found = report.figures[f"{TUNED} beside {peer}: tokens"]
            report.bar(f"{TUNED} beside {peer}: tokens, upper end", found["high"] or np.nan, "<=", 1.0)


@benchmark("studies.peers --its_hub_python ITS/bin/python --store FOLDER")
@click.option(
    "--its_hub_python",
    type=click.Path(exists=True, path_type=Path),
    envvar="SCAFFOLDING_ITS_HUB_PYTHON",
    help="Python that has its_hub.",
)
@size("--num_problems", 400, quick=4, help="Problems.", least=2)
@size("--num_tuned", 100, quick=6, help="Other problems, on which a rule is chosen.", least=5)
@size("--num_samples", 16, quick=3, help="Most samples of a vote.", least=2)
@size("--max_tokens", 1200, quick=60, help="Of a chain.")
@size("--block", 50, quick=2, help="Problems of a block.", least=2)
@stored
def main(
    report: Report,
    its_hub_python: Path | None,
    num_problems: int,
    num_tuned: int,
    num_samples: int,
    max_tokens: int,
    block: int,
    store: Path | None,
) -> None:
    """Votes of its_hub and ours on one server."""
    report.setting["its_hub_python"] = None if its_hub_python is None else "its_hub 1.2.0"
    samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=report.seed)
    with tempfile.TemporaryDirectory() as folder:
        drawn = (store or Path(folder)) / "tuned"
        report.setting["tuned"], rule = tuned_rule(num_tuned, num_samples, max_tokens, report.seed, drawn)
    rules: dict[str, Mapping[str, Any] | None] = {FULL: None, **OURS, TUNED: rule}
    names = [*(PEERS if its_hub_python is not None else (FULL,)), *OURS, TUNED]
    votes: dict[str, list[Voted]] = {name: [] for name in names}
    server = Server(max_tokens, num_samples, report.seed)
    with FrontThread(server.front) as front:
        for number, start in enumerate(range(0, len(samples), block)):
            for place in range(len(names)):
                name = names[(place + number) % len(names)]

                def find(name: str = name, start: int = start) -> Voted:
                    own = samples[start : start + block]
                    return server.timed(front.url, name, rules.get(name), own, its_hub_python)

                votes[name].append(Voted(*kept(store, f"{name}, {start}".replace(" ", "_"), find)))
    add_votes(report, votes)


if __name__ == "__main__":
    main()
