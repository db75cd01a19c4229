"""What a conformal target is worth: accuracy against target-decoded tokens, beside other rules of taking over.

    python -m benchmarks.studies.conformal --num_problems 100 --num_blocks 3 --store runs/conformal

All systems run the same chains on the same workers with the same seeds; they differ in who decides. Questions come in
blocks, each with a seed, and pools a turn of its own, made on the questions at hand by chains that ran the same rule at
the same level, in step. With `--store` a study that was broken off goes on where it was, and one with more blocks
takes in what is there. How long all this takes is for `conformal_timing.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from rich.progress import Progress

from benchmarks._lib.command import benchmark, plotted, progress, size, stored
from benchmarks._lib.conformal_figures import CHAIN_COUNTS, SHOWN_DECISIONS, Found, plot
from benchmarks._lib.draft_target import (
    Answered,
    Calibrated,
    GreedyChain,
    Setting,
    answered,
    calibrated,
    controller,
    greedy_chains,
    pooled_rates,
)
from benchmarks._lib.lab import AT_ONCE, MODELS, Lab, draft_and_target, questions_of, told_apart
from benchmarks._lib.report import Report
from benchmarks._lib.runs import GREEDY
from scaffolding_ext.controllers.draft_target.baselines import Coin, Ranking, ReflectionWords, SpecReasonMarks
from scaffolding_ext.controllers.draft_target.growing_rule import GrowingRule
from scaffolding_ext.controllers.draft_target.p_values import p_values
from scaffolding_ext.evaluation.calibrate.conformal_run import realised_rate
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.protocol import Controller, Worker
from scaffolding_ext.tinylm import grammar

ENOUGH_DECISIONS = 300  # of a turn, for a bar
OTHER_LENGTH = 5 / 7  # the paper calibrates on chunks of 500 tokens and decides on chunks of 700
NUM_SPLITS = 200
LEAST_MARK = 5  # of SpecReason's scale from 0 to 9
PARTS = ("alone", "greedy", "words", "marks", "conditional", "lengths", "growing")
POWER_Z = 1.96 + 1.2816  # two-sided 0.05, power 0.9


class Block(NamedTuple):
    """Questions, and the lab of their seed."""

    lab: Lab
    samples: list[Example]

    def answered(
        self, name: str, made: Controller, workers: dict[str, Worker] | None = None, at_once: int = AT_ONCE
    ) -> list[Answered]:
        """What a system did on them."""
        return answered(self.lab, name, made, self.samples, workers, at_once)


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
        self.found: list[Found] = []
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
        found = Found(family, alpha, answers)
        self.found.append(found)
        for number in CHAIN_COUNTS:
            if number <= self.setting.num_chains:
                self.report.figure(f"{name}: vote of {number} chains", found.vote_of(number))
        fired, questions = _decisions(answers)
        rate = realised_rate(fired, questions, rng=self.rng)
        self.report.figure(f"{name}: rate", rate.rate, *(rate.clustered or (None, None)))
        return answers

    def alone(self) -> None:
        """Draft only and target only; the target writes in chunks as the draft does."""
        made = controller(self.setting, rule=Coin(0.0))
        self.show("draft only", None, lambda block: block.answered("draft_only", made))

        def target_only(block: Block) -> list[Answered]:
            workers: dict[str, Worker] = dict.fromkeys(MODELS, block.lab.workers["target"])
            return [a._replace(target_tokens=a.decoded) for a in block.answered("target_only", made, workers)]

        self.show("target only", None, target_only)

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

    def growing(self, alpha: float) -> None:
        """Pools that grow question by question, beside a coin at the rate that they had.

        One request at a time, as what is guaranteed of the first turn asks for; and with others beside it.
        """

        def grown(name: str, at_once: int) -> list[Answered]:
            made = controller(self.setting, rule=GrowingRule(alpha))
            return self.show(name, alpha, lambda block: block.answered(f"{name}_{alpha}", made, at_once=at_once))

        found = grown("growing", 1)
        for turn in range(self.setting.max_turns):
            fired = [taken for answer in found for _, at, _, taken, _ in answer.chunks if at == turn]
            if len(fired) >= SHOWN_DECISIONS:
                self.report.figure(f"growing, alpha {alpha}: rate at turn {turn}", float(np.mean(fired)))
        coin = controller(self.setting, rule=Coin(float(np.mean(_decisions(found)[0]))))
        shown = self.show("coin as growing", alpha, lambda block: block.answered(f"coin_as_growing_{alpha}", coin))
        self.gain(f"growing over its coin, alpha {alpha}", found, shown)
        grown("growing side by side", AT_ONCE)

    def coin(self, block: Block, alpha: float) -> list[Answered]:
        """Take-over at random, at the rate that the conformal rule had on the block."""
        rate = float(np.mean(_decisions(self.conformal(block, alpha))[0]))
        return block.answered(f"coin_{alpha}", controller(self.setting, rule=Coin(rate)))

    def ranking(self, block: Block, alpha: float) -> list[Answered]:
        """Chains in step, of which the worst are taken over at each turn."""
        return block.answered(f"ranking_{alpha}", controller(self.setting, rule=Ranking(alpha)))

    def level(self, alpha: float, *, compared: bool, ranked: bool) -> None:
        """Conformal take-over at a level; on request beside a coin, and beside a ranking."""
        found = self.show("conformal", alpha, lambda block: self.conformal(block, alpha))
        costs = [self.calibration(block, alpha).target_tokens for block in self.blocks]
        self.report.figure(f"conformal, alpha {alpha}: target_tokens of its calibration", float(np.mean(costs)))
        self.rates(f"conformal, alpha {alpha}", alpha, found)
        if compared:
            shown = self.show("coin", alpha, lambda block: self.coin(block, alpha))
            self.gain(f"conformal over coin, alpha {alpha}", found, shown)
        if ranked:
            shown = self.show("ranking", alpha, lambda block: self.ranking(block, alpha))
            self.gain(f"conformal over ranking, alpha {alpha}", found, shown)

    def rates(self, name: str, alpha: float, answers: list[Answered]) -> None:
        """The rate over random splits, overall and by turn, and how it scatters."""
        num_calibration = max(1, self.setting.num_chains // 4)
        rates = pooled_rates(answers, alpha, NUM_SPLITS, num_calibration, self.rng)
        reached = np.bincount([turn for answered in answers for _, turn, *_ in answered.chunks])
        for kind, by_turn in rates.items():
            for turn, values in by_turn.items():
                if turn is None or reached[turn] >= SHOWN_DECISIONS:
                    where = "overall" if turn is None else f"turn {turn}"
                    low, high = np.quantile(values, [0.025, 0.975])
                    mean = float(np.mean(values))
                    self.report.figure(f"{name}: rate over splits, {kind}, {where}", mean, float(low), float(high))
                    if kind == "online" and (turn is None or reached[turn] >= ENOUGH_DECISIONS):
                        self.report.bar(f"{name}: rate error online, {where}", abs(mean - alpha), "<=", 0.01)

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

    def conditional(self, alpha: float) -> None:
        """Coverage conditional on the question: the rate of its first turn, and how far later turns go astray."""
        made = controller(self.setting, alpha, coverage="conditional")
        answers = self.show("conditional", alpha, lambda block: block.answered(f"conditional_{alpha}", made))
        by_turn = [[[fired for _, t, _, fired, _ in a.chunks if t == turn] for a in answers] for turn in (0, 1, 2)]
        for turn, rows in enumerate(by_turn):
            means = [float(np.mean(fired)) for fired in rows if fired]
            if not means:
                break
            self.report.difference(f"conditional, alpha {alpha}: mean over questions of the rate at turn {turn}", means)
            if turn == 0:
                error = abs(float(np.mean(means)) - alpha)
                self.report.bar(f"conditional, alpha {alpha}: rate error of the first turn", error, "<=", 0.01)

    def lengths(self, alpha: float) -> None:
        """The rate by turn where the pools are of shorter chunks than those decided on; of the first block."""
        shorter = self._fewer()._replace(chunk_tokens=round(OTHER_LENGTH * self.setting.chunk_tokens))
        block = self.blocks[0]
        pools = calibrated(block.lab, f"shorter_{alpha}", controller(shorter, alpha), block.samples, num_turns=4).turns
        answers = self.conformal(block, alpha)
        for number, pool in enumerate(pools):
            scores = [value for a in answers for _, t, value, _, _ in a.chunks if t == number and value is not None]
            if scores and pool:
                rate = float(np.mean(p_values(pool, scores, "random", self.rng) <= alpha))
                name = f"alpha {alpha}, pools of {shorter.chunk_tokens}-token chunks: rate at turn {number}"
                self.report.figure(name, rate)

    def marks(self) -> None:
        """SpecReason's marks."""
        encode = self.blocks[0].lab.prompting.encode
        yes, no = (encode(word)[0] for word in (grammar.YES, grammar.NO))
        made = controller(self.setting, rule=SpecReasonMarks(LEAST_MARK, grammar.CLOSE, grammar.VERDICT, yes, no))
        self.show(f"marks below {LEAST_MARK}", None, lambda block: block.answered("verdict", made))

    def words(self) -> None:
        """Speculative Thinking's reflection words."""
        made = controller(self.setting, rule=ReflectionWords())
        self.show("reflection words", None, lambda block: block.answered("words", made))

    def _fewer(self) -> Setting:
        return self.setting._replace(num_chains=max(2, self.setting.num_chains // 2))


def _decisions(answers: list[Answered]) -> tuple[list[bool], list[int]]:
    """Whether each chunk was taken over, and its question."""
    fired = [taken for answered in answers for _, _, _, taken, _ in answered.chunks]
    return fired, [number for number, answered in enumerate(answers) for _ in answered.chunks]


@benchmark("studies.conformal --alpha 0.25 --num_problems 100 --num_blocks 3 --store runs/conformal")
@click.option("--alpha", "alphas", type=float, multiple=True, help="Level; repeatable.  [default: 0.25, 0.4, 0.1, 0.6]")
@size("--compared", 2, quick=1, help="Of the levels, those that a coin runs at, too.", least=0)
@size("--ranked", 2, quick=1, help="Of the levels, those that a ranking runs at, too.", least=0)
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
    ranked: int,
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
    if models != MODELS and "marks" in parts:
        raise click.UsageError(
            "--part marks asks in the embedded models' words: leave it out, by naming the other parts."
        )
    with Lab(models, base_url=base_url, max_batch_size=128) as lab, progress() as bars:
        blocks = []
        for seed in range(report.seed, report.seed + num_blocks):
            name = f"seed{seed}_problems{num_problems}_chains{num_chains}_tokens{max_tokens}"
            folder = store and store / (name + told_apart(model, draft, dataset))
            samples = questions_of(dataset, num_problems, seed)
            blocks.append(Block(lab.block(seed, folder), samples))
        study = Study(blocks, setting, report, bars)
        for number, alpha in enumerate(alphas):
            study.level(alpha, compared=number < compared, ranked=number < ranked)
        steps = {
            "alone": study.alone,
            "greedy": study.greedy,
            "words": study.words,
            "marks": study.marks,
            "conditional": lambda: study.conditional(alphas[0]),
            "lengths": lambda: study.lengths(alphas[0]),
            "growing": lambda: study.growing(alphas[0]),
        }
        for part in parts:
            if part != "none":
                steps[part]()
    if plot_path is not None:
        plot(
            study.found,
            report.figures,
            plot_path,
            f"{num_problems * num_blocks} questions, {num_chains} chains, {model}",
        )


if __name__ == "__main__":
    main()
