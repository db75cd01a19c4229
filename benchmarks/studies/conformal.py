"""Measures what a conformal target is worth: accuracy against target-decoded tokens and time, beside a coin.

    python -m benchmarks.studies.conformal --num_problems 100 --num_blocks 3 --store runs/conformal

All systems run the same chains on the same workers with the same seeds; they differ in who decides. Questions come in
blocks, each with a seed, and pools a turn of its own, made on the questions at hand by chains that ran the same rule at
the same level, in step. With `--store` a study that was broken off goes on where it was, and one with more blocks
takes in what is there.

Time is arithmetic: when each chain would end if only the two models' passes took time and all calls overlapped
(`benchmarks._lib.schedule`). A pass of the draft takes 8 ms, as one of an 8B model in bfloat16 at 2 TB/s; the
target's takes as many times longer as a figure says. `conformal in step` makes the decisions of `conformal`, and all
its chains wait for each other at each turn: what asynchrony alone brings.

Reference:
    A1, "Asynchronous test-time scaling via conformal prediction", arXiv:2509.15148.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from rich.progress import Progress

from benchmarks._lib.command import benchmark, plotted, progress, size, stored
from benchmarks._lib.drawing import Figures, beside, drawing, of, point, ring
from benchmarks._lib.lab import MODELS, Lab, draft_and_target, questions_of, told_apart
from benchmarks._lib.report import Report
from benchmarks._lib.runs import GREEDY
from benchmarks._lib.schedule import Latency, ScheduledChunk, scheduled_ends
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.draft_target.calibration_file import (
    ConformalCalibration,
    DraftTargetSetting,
    LevelScores,
    TurnScores,
)
from scaffolding_ext.controllers.draft_target.coin import Coin
from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.controllers.draft_target.conformal_rule import ConformalRule
from scaffolding_ext.controllers.draft_target.take_over import TakeOverRule
from scaffolding_ext.controllers.vote.voting import vote
from scaffolding_ext.evaluation.calibrate.conformal_run import CalibrateDraftTargetController, realised_rate, turns_in
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.evaluation.run.scoring import score
from scaffolding_ext.protocol import Controller, Worker
from scaffolding_ext.request.results import ScaffoldingResult

CALIBRATION_SEED = 1_000_000  # added to the seed of the answers
GREEDY_AT_ONCE = 64  # chains
CHAIN_COUNTS = (1, 2, 4, 8, 16)
NUM_DRAWS = 50
PARTS = ("alone", "greedy")
POWER_Z = 1.96 + 1.2816  # two-sided 0.05, power 0.9
DRAFT = Latency(0.008, 0.0001)
TOKEN_SHARE = 0.0131  # of a pass of the target: a token that it reads
SPEED_RATIOS = (1, 2, 4, 8)  # the target's pass over the draft's
ENDS: dict[str, Callable[[Sequence[float]], Any]] = {"mean": np.mean, "last": np.max}
IN_STEP, TARGET_ONLY = "conformal in step", "target only"
DEFAULT = "conformal, alpha 0.4"  # of configs:conformal_draft_target
COLOURS = {"draft only": "0.6", TARGET_ONLY: "0.0"}


class Setting(NamedTuple):
    """The settings that all systems of a study share.

    Attributes:
        num_chains: Chains a question.
        chunk_tokens: Tokens of a chunk, of draft and target alike.
        max_tokens: Tokens of a chain.
        max_turns: Chunks of a chain.
        on_reject: What a rejection leads to.
    """

    num_chains: int
    chunk_tokens: int
    max_tokens: int
    max_turns: int
    on_reject: Any


class Calibrated(NamedTuple):
    """Calibration chains.

    Attributes:
        turns: Scores of each turn.
        target_tokens: Tokens that the target decoded for them, a question.
    """

    turns: list[list[float]]
    target_tokens: float


class Chunk(NamedTuple):
    """A drafted chunk and what became of it; `score` is None under a rule that scores none."""

    chain: int
    turn: int
    score: float | None
    is_taken: bool
    draft_tokens: int
    target_tokens: int


class Answered(NamedTuple):
    """The chains of a system on one question.

    Attributes:
        vote: Whether the vote was right.
        right: Whether each chain's answer was.
        classes: Class of each chain's answer; -1 without one.
        target_tokens: Tokens that the target decoded.
        decoded: Tokens that both models decoded, rejected chunks and answers that were asked for included.
        computed: Positions that both models computed: those decoded, and those read or scored but not reused.
        chunks: In the order of their decisions.
    """

    vote: float
    right: list[float]
    classes: list[int]
    target_tokens: int
    decoded: int
    computed: int
    chunks: list[Chunk]

    @property
    def best(self) -> float:
        """True if any chain was right."""
        return max(self.right)

    @property
    def chains(self) -> float:
        """Share of the chains that were right."""
        return float(np.mean(self.right))

    def ends(self, draft: Latency, target: Latency, *, in_step: bool) -> list[float]:
        """The end of each chain with models of these latencies, in seconds."""
        chunks = [ScheduledChunk(c.chain, c.turn, c.draft_tokens, c.target_tokens, 0.0) for c in self.chunks]
        return scheduled_ends(chunks, draft, target, in_step=in_step)

    def vote_of(self, chains: Sequence[int]) -> float:
        """True if the vote of only these chains is right."""
        classes = [self.classes[chain] for chain in chains]
        winner = vote(classes)
        return self.right[chains[classes.index(winner)]] if winner >= 0 else 0.0


class GreedyChain(NamedTuple):
    """One greedy chain on one question; attributes as those of `Answered`."""

    vote: float
    target_tokens: int
    decoded: int


def controller(
    setting: Setting, alpha: float = 0.0, turns: Sequence[Sequence[float]] = (), rule: TakeOverRule | None = None
) -> ConformalDraftTargetController:
    """The controller with pools of some turns, or with another rule; at turns without a pool a coin decides."""
    scores = [TurnScores(scores=list(turn), rate=alpha, low=None, high=None) for turn in turns]
    calibrated = DraftTargetSetting(
        draft_model=None,
        target_model=None,
        draft_tokens=setting.chunk_tokens,
        target_tokens=setting.chunk_tokens,
        on_reject=setting.on_reject,
    )
    calibration = ConformalCalibration(
        source="held_out",
        setting=calibrated,
        num_chains=setting.num_chains,
        seed=0,
        questions=[],
        levels=[LevelScores(alpha=alpha, turns=scores)],
    )
    return ConformalDraftTargetController(
        draft_tokens=setting.chunk_tokens,
        target_tokens=setting.chunk_tokens,
        num_chains=setting.num_chains,
        max_turns=setting.max_turns,
        max_tokens=setting.max_tokens,
        on_reject=setting.on_reject,
        rule=rule or ConformalRule(alpha, calibration=calibration),
    )


def answered(
    lab: Lab, name: str, made: Controller, samples: Sequence[Example], workers: Mapping[str, Worker] | None = None
) -> list[Answered]:
    """The answers of a system to the questions; from the lab's store if it was run before."""

    def run() -> list[Answered]:
        results = lab.answers(made, [sample.prompt for sample in samples], workers)
        return [_answered(result, sample.target) for result, sample in zip(results, samples, strict=True)]

    found: list[Any] = lab.stored(name, run)
    return [Answered(*row)._replace(chunks=[Chunk(*chunk) for chunk in row[-1]]) for row in found]


def greedy_chains(
    lab: Lab, name: str, tag: str, params: Mapping[str, Any], samples: Sequence[Example]
) -> list[GreedyChain]:
    """One chain of one of the engines a question, without any vote."""

    def run() -> list[GreedyChain]:
        made = NativeGenerationController(sampling_params=dict(params))
        workers = {"generation": lab.workers[tag]}
        results = lab.answers(made, [sample.prompt for sample in samples], workers, at_once=GREEDY_AT_ONCE)
        return [
            GreedyChain(
                float(score(result.answer, sample.target).correct),
                result.program.ledger.total.decoded if tag == "target" else 0,
                result.program.ledger.total.decoded,
            )
            for result, sample in zip(results, samples, strict=True)
        ]

    return [GreedyChain(*row) for row in lab.stored(name, run)]


def calibrated(lab: Lab, name: str, made: ConformalDraftTargetController, samples: Sequence[Example]) -> Calibrated:
    """Calibration chains on the questions, whose seeds are not those of the answers."""

    def run() -> Calibrated:
        calibrating = CalibrateDraftTargetController(made, [sample.prompt for sample in samples])
        (result,) = lab.answers(calibrating, [samples[0].prompt], seed=lab.seed + CALIBRATION_SEED, at_once=1)
        trace = result.program.trace
        num_tokens = sum(event.get("num_target_tokens", 0) for event in trace)
        return Calibrated([turn.scores for turn in turns_in(trace)], num_tokens / len(samples))

    return Calibrated(*lab.stored(name, run))


def _answered(result: ScaffoldingResult, truth: str) -> Answered:
    trace = result.program.trace
    ends = sorted((event for event in trace if event["event"] == "end"), key=lambda event: event["chain"])
    (voted,) = (event for event in trace if event["event"] == "vote")
    chunks = [event for event in trace if event["event"] in ("accept", "take_over")]
    total = result.program.ledger.total
    return Answered(
        vote=float(score(result.answer, truth).correct),
        right=[float(score(event["answer"], truth).correct) for event in ends],
        classes=list(voted["classes"]),
        target_tokens=sum(event["num_target_tokens"] + event.get("num_rule_tokens", 0) for event in chunks),
        decoded=total.decoded,
        computed=total.decoded + total.prefilled,
        chunks=[
            Chunk(
                e["chain"],
                e["turn"],
                e["score"],
                e["event"] == "take_over",
                e["num_draft_tokens"],
                e["num_target_tokens"],
            )
            for e in chunks
        ],
    )


class Block(NamedTuple):
    """Questions, and the lab of their seed."""

    lab: Lab
    samples: list[Example]

    def answered(self, name: str, made: Controller, workers: dict[str, Worker] | None = None) -> list[Answered]:
        """The answers of a system to them."""
        return answered(self.lab, name, made, self.samples, workers)


class Study:
    """Runs the systems and reports on them.

    Args:
        blocks: The questions.
        setting: Of all systems.
        report: Gets the figures.
        bars: Show how far the study is.
    """

    def __init__(self, blocks: list[Block], setting: Setting, report: Report, bars: Progress) -> None:
        self.blocks, self.setting, self.report, self.rng = blocks, setting, report, report.rng
        self.found: dict[str, list[Answered]] = {}
        self._bars, self._bar = bars, bars.add_task("", total=None)

    def show(self, family: str, alpha: float | None, run: Callable[[Block], list[Answered]]) -> list[Answered]:
        """Run a system on all questions; report its accuracy, tokens and rate."""
        name = family if alpha is None else f"{family}, alpha {alpha}"
        answers: list[Answered] = []
        for number, block in enumerate(self.blocks, 1):
            self._bars.update(self._bar, description=f"{name}, block {number} of {len(self.blocks)}")
            answers += run(block)
        for what in ("vote", "best", "chains", "target_tokens", "decoded", "computed"):
            self.report.difference(f"{name}: {what}", [float(getattr(one, what)) for one in answers])
        self.found[name] = answers
        for number in CHAIN_COUNTS:
            if number <= self.setting.num_chains:
                self.report.figure(f"{name}: vote of {number} chains", vote_of(answers, number))
        fired, questions = _decisions(answers)
        rate, interval = realised_rate(fired, questions, self.rng)
        self.report.figure(f"{name}: rate", rate, *(interval or (None, None)))
        return answers

    def alone(self) -> None:
        """Draft only and target only; the target writes in chunks as the draft does."""
        made = controller(self.setting, rule=Coin(0.0))
        self.show("draft only", None, lambda block: block.answered("draft_only", made))

        def target_only(block: Block) -> list[Answered]:
            workers: dict[str, Worker] = dict.fromkeys(MODELS, block.lab.workers["target"])
            return [a._replace(target_tokens=a.decoded) for a in block.answered("target_only", made, workers)]

        self.show(TARGET_ONLY, None, target_only)

    def greedy(self) -> None:
        """One greedy chain of either model: what costs nothing but itself."""
        params = {"temperature": 0.0, "max_tokens": self.setting.max_tokens}
        for tag in MODELS:

            def chains(block: Block, tag: str = tag) -> list[GreedyChain]:
                return greedy_chains(block.lab, f"greedy_{tag}", tag, params, block.samples)

            found = [chain for block in self.blocks for chain in chains(block)]
            name = f"{tag} only{GREEDY}"
            for what in GreedyChain._fields:
                self.report.difference(f"{name}: {what}", [float(getattr(chain, what)) for chain in found])

    def conformal(self, block: Block, alpha: float) -> list[Answered]:
        """Conformal take-over with pools of the block's own questions."""
        turns = self.calibration(block, alpha).turns
        return block.answered(f"conformal_{alpha}", controller(self.setting, alpha, turns))

    def calibration(self, block: Block, alpha: float) -> Calibrated:
        """The calibration chains of a block's own questions."""
        made = controller(self._fewer(), alpha)
        return calibrated(block.lab, f"calibration_{alpha}", made, block.samples)

    def coin(self, block: Block, alpha: float) -> list[Answered]:
        """Take-over at random, at the rate that the conformal rule had on the block."""
        rate = float(np.mean(_decisions(self.conformal(block, alpha))[0]))
        return block.answered(f"coin_{alpha}", controller(self.setting, rule=Coin(rate)))

    def level(self, alpha: float, *, compared: bool) -> None:
        """Conformal take-over at a level; on request beside a coin."""
        found = self.show("conformal", alpha, lambda block: self.conformal(block, alpha))
        costs = [self.calibration(block, alpha).target_tokens for block in self.blocks]
        self.report.figure(f"conformal, alpha {alpha}: target_tokens of its calibration", float(np.mean(costs)))
        if compared:
            shown = self.show("coin", alpha, lambda block: self.coin(block, alpha))
            self.gain(f"conformal over coin, alpha {alpha}", found, shown)

    def schedule(self, alpha: float) -> None:
        """Report the ends of chains over those of systems that wait, or that have no draft, by the target's speed."""
        ours = self.found[f"conformal, alpha {alpha}"]
        for speed in SPEED_RATIOS:
            target = Latency(DRAFT.pass_s * speed, DRAFT.pass_s * speed * TOKEN_SHARE)
            free = [one.ends(DRAFT, target, in_step=False) for one in ours]
            rows = {IN_STEP: [one.ends(DRAFT, target, in_step=True) for one in ours]}
            if TARGET_ONLY in self.found:  # the target drafts, and nobody scores
                nobody = Latency(0.0, 0.0)
                rows[TARGET_ONLY] = [one.ends(target, nobody, in_step=False) for one in self.found[TARGET_ONLY]]
            for name, ends in rows.items():
                for what, take in ENDS.items():
                    label = f"conformal, alpha {alpha}, over {name}, target {speed} times slower: {what} chain's end"
                    self.report.ratio(label, [float(take(e)) for e in free], [float(take(e)) for e in ends])

    def gain(self, name: str, ours: list[Answered], theirs: list[Answered]) -> None:
        """The difference of the votes, paired by question, and how many questions would show it."""
        differences = np.array([a.vote - b.vote for a, b in zip(ours, theirs, strict=True)])
        gain = {
            what: self.report.difference(
                f"{name}: {what}", *([getattr(a, what) for a in side] for side in (ours, theirs))
            )
            for what in ("vote", "chains", "best")
        }
        for block, part in zip(self.blocks, np.array_split(differences, len(self.blocks)), strict=True):
            self.report.figure(f"{name}: vote, block of seed {block.lab.seed}", float(part.mean()))
        if differences.mean():
            needed = (POWER_Z * differences.std(ddof=1) / differences.mean()) ** 2
            self.report.figure(f"{name}: questions for power 0.9", float(np.ceil(needed)))
        if name.startswith("conformal over coin"):
            self.report.bar(f"{name}: lower end", gain["vote"].low, ">", 0.0)

    def _fewer(self) -> Setting:
        return self.setting._replace(num_chains=max(2, self.setting.num_chains // 2))


def vote_of(answers: Sequence[Answered], num_chains: int) -> float:
    """Accuracy of the vote of so many of the chains, the mean over random choices of them."""
    if num_chains == len(answers[0].right):  # in their order, by which ties are broken
        return float(np.mean([answered.vote for answered in answers]))
    rng = np.random.default_rng(num_chains)
    drawn = [answered for answered in answers for _ in range(NUM_DRAWS)]
    return float(np.mean([one.vote_of(rng.permutation(len(one.right))[:num_chains].tolist()) for one in drawn]))


def plot(figures: Figures, path: Path) -> None:
    """Draw accuracy against the target's tokens; the levels of a rule are joined."""
    systems: dict[str, list[str]] = {}
    for name in (key.removesuffix(": vote") for key in figures if f"{key.removesuffix(': vote')}: decoded" in figures):
        systems.setdefault(name.split(", alpha ")[0], []).append(name)
    with drawing(path) as (_, axes):
        for number, (family, names) in enumerate(systems.items()):
            shape: dict[str, Any] = {
                "color": COLOURS.get(family.removesuffix(GREEDY), f"C{number}"),
                "ms": 4,
                "clip_on": False,
            }
            shape |= {"fmt": "s", "mfc": "white"} if family.endswith(GREEDY) else {}
            places: list[tuple[float, float]] = []
            for name in names:
                x, y = of(figures, f"{name}: target_tokens"), of(figures, f"{name}: vote", 100)
                assert x is not None
                assert y is not None
                point(axes, x, y, family if not places else "_", **shape)
                places.append((x.value, y.value))
                if name == DEFAULT:
                    ring(axes, x.value, y.value)
            axes.plot(*zip(*sorted(places), strict=True), color=shape["color"], lw=1)
        axes.set(xlabel="tokens the target decoded, a question", ylabel="accuracy of the vote, %")
        axes.set_title("Take-over pays where it lies above a coin's line,\nand left of the target alone")
        beside(axes)


def _decisions(answers: list[Answered]) -> tuple[list[bool], list[int]]:
    """For each chunk, if it was taken over, and its question."""
    fired = [chunk.is_taken for answered in answers for chunk in answered.chunks]
    return fired, [number for number, answered in enumerate(answers) for _ in answered.chunks]


@benchmark("studies.conformal --alpha 0.25 --num_problems 100 --num_blocks 3 --store runs/conformal")
@click.option("--alpha", "alphas", type=float, multiple=True, help="Level; repeatable.  [default: 0.25, 0.4, 0.1, 0.6]")
@size("--compared", 2, quick=1, help="Of the levels, those that a coin runs at, too.", least=0)
@click.option(
    "--part", "parts", type=click.Choice((*PARTS, "none")), multiple=True, default=PARTS, help="Beside the levels."
)
@draft_and_target
@size("--num_problems", 100, quick=2, help="Questions of a block.")
@size("--num_blocks", 1, quick=2, help="Blocks, of consecutive seeds.")
@size("--num_chains", 16, quick=2, help="Chains a question.")
@size("--max_tokens", 720, quick=96, help="Tokens of a chain.")
@stored
@plotted
def main(
    report: Report,
    alphas: tuple[float, ...],
    compared: int,
    parts: tuple[str, ...],
    model: str,
    draft: str,
    base_url: str | None,
    dataset: str,
    num_problems: int,
    num_blocks: int,
    num_chains: int,
    max_tokens: int,
    store: Path | None,
    plot_path: Path | None,
) -> None:
    """Accuracy and target tokens of conformal take-over and of the rules that it is measured against."""
    alphas = alphas or ((0.4,) if report.setting["quick"] else (0.25, 0.4, 0.1, 0.6))
    setting = Setting(num_chains, 48, max_tokens, 15, "resample")
    report.setting |= setting._asdict() | {"alphas": alphas}
    models = {"draft": draft, "target": model}
    with Lab(models, base_url=base_url, max_batch_size=128) as lab, progress() as bars:
        blocks = []
        for seed in range(report.seed, report.seed + num_blocks):
            name = f"seed{seed}_problems{num_problems}_chains{num_chains}_tokens{max_tokens}"
            folder = store and store / (name + told_apart(model, draft, dataset))
            samples = questions_of(dataset, num_problems, seed)
            blocks.append(Block(lab.block(seed, folder), samples))
        study = Study(blocks, setting, report, bars)
        for number, alpha in enumerate(alphas):
            study.level(alpha, compared=number < compared)
        steps = {"alone": study.alone, "greedy": study.greedy}
        for part in parts:
            if part != "none":
                steps[part]()
        study.schedule(alphas[0])
    if plot_path is not None:
        plot(report.figures, plot_path)


if __name__ == "__main__":
    main()
