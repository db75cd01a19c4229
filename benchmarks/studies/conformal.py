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

import click
import numpy as np
from rich.console import Console
from rich.progress import Progress

from benchmarks._lib.conformal_figures import CHAIN_COUNTS, SHOWN_DECISIONS, Found, plot
from benchmarks._lib.draft_target import Answered, Lab, Setting, controller, pooled_rates
from benchmarks._lib.report import Bar, Report, report_options
from benchmarks._lib.take_over_rules import Coin, Ranking, ReflectionWords, Verdict
from scaffolding_ext.evaluation.datasets import load_dataset
from scaffolding_ext.maths.conformal import p_values
from scaffolding_ext.maths.conformal_validity import realised_rate
from scaffolding_ext.maths.statistics import Estimate, paired_bootstrap
from scaffolding_ext.prompting import Prompting
from scaffolding_ext.protocol import Worker
from scaffolding_ext.tinylm import grammar
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

MODELS = {"draft": "tinylm/draft", "target": "tinylm/target"}
ENOUGH_DECISIONS = 300  # of a turn, for a bar
OTHER_LENGTH = 5 / 7  # the paper calibrates on chunks of 500 tokens and decides on chunks of 700
NUM_SPLITS = 200
PARTS = ("alone", "words", "marks", "conditional", "lengths")
POWER_Z = 1.96 + 1.2816  # two-sided 0.05, power 0.9


class Study:
    """Runs the systems and reports on them.

    Args:
        labs: One a block of questions.
        setting: Of all systems.
        report: Gets the figures.
        verdict: The rule by marks.
        rng: Of splits and resamples.
        progress: Shows how far the study is.
    """

    def __init__(
        self,
        labs: list[Lab],
        setting: Setting,
        report: Report,
        verdict: Verdict,
        rng: np.random.Generator,
        progress: Progress,
    ) -> None:
        self.labs, self.setting, self.report, self.verdict, self.rng = labs, setting, report, verdict, rng
        self.found: list[Found] = []
        self._progress, self._bar = progress, progress.add_task("", total=None)

    def show(self, family: str, alpha: float | None, run: Callable[[Lab], list[Answered]]) -> list[Answered]:
        """Run a system on all questions; report its accuracy, tokens and rate."""
        name = family if alpha is None else f"{family}, alpha {alpha}"
        answers: list[Answered] = []
        for number, lab in enumerate(self.labs, 1):
            self._progress.update(self._bar, description=f"{name}, block {number} of {len(self.labs)}")
            answers += run(lab)
        for what in ("vote", "best", "chains", "target_tokens", "decoded", "computed"):
            self._mean(f"{name}: {what}", [float(getattr(answered, what)) for answered in answers])
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
        self.show("draft only", None, lambda lab: lab.answered("draft_only", made))

        def target_only(lab: Lab) -> list[Answered]:
            workers = {"draft": lab.workers["target"], "target": lab.workers["target"]}
            return [a._replace(target_tokens=a.decoded) for a in lab.answered("target_only", made, workers)]

        self.show("target only", None, target_only)

    def conformal(self, lab: Lab, alpha: float) -> list[Answered]:
        """Conformal take-over with pools of the block's own questions."""
        turns = lab.calibrated(f"pools_{alpha}", controller(self._fewer(), alpha))
        return lab.answered(f"conformal_{alpha}", controller(self.setting, alpha, turns))

    def coin(self, lab: Lab, alpha: float) -> list[Answered]:
        """Take-over at random, at the rate that the conformal rule had on the block."""
        rate = float(np.mean(_decisions(self.conformal(lab, alpha))[0]))
        return lab.answered(f"coin_{alpha}", controller(self.setting, rule=Coin(rate)))

    def ranking(self, lab: Lab, alpha: float) -> list[Answered]:
        """Chains in step, of which the worst are taken over at each turn."""
        return lab.answered(f"ranking_{alpha}", controller(self.setting, rule=Ranking(alpha)))

    def level(self, alpha: float, *, compared: bool, ranked: bool) -> None:
        """Conformal take-over at a level; on request beside a coin, and beside a ranking."""
        found = self.show("conformal", alpha, lambda lab: self.conformal(lab, alpha))
        self.rates(f"conformal, alpha {alpha}", alpha, found)
        if compared:
            shown = self.show("coin", alpha, lambda lab: self.coin(lab, alpha))
            self.gain(f"conformal over coin, alpha {alpha}", found, shown)
        if ranked:
            shown = self.show("ranking", alpha, lambda lab: self.ranking(lab, alpha))
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
                        self.report.bar(Bar.at_most(f"{name}: rate error online, {where}", abs(mean - alpha), 0.01))

    def gain(self, name: str, ours: list[Answered], theirs: list[Answered]) -> None:
        """The difference of the votes, paired by question, and how many questions would show it."""
        differences = np.array([a.vote - b.vote for a, b in zip(ours, theirs, strict=True)])
        gain: Estimate = paired_bootstrap([a.vote for a in ours], [b.vote for b in theirs], rng=self.rng)
        self.report.figure(f"{name}: vote", *gain)
        for what in ("chains", "best"):
            values = [[float(getattr(a, what)) for a in side] for side in (ours, theirs)]
            self.report.figure(f"{name}: {what}", *paired_bootstrap(*values, rng=self.rng))
        for lab, part in zip(self.labs, np.array_split(differences, len(self.labs)), strict=True):
            self.report.figure(f"{name}: vote, block of seed {lab.seed}", float(part.mean()))
        if differences.mean():
            needed = (POWER_Z * differences.std(ddof=1) / differences.mean()) ** 2
            self.report.figure(f"{name}: questions for power 0.9", float(np.ceil(needed)))
        if "coin" in name:
            self.report.bar(Bar(f"{name}: lower end", gain.low, 0.0, gain.low > 0, ">"))

    def conditional(self, alpha: float) -> None:
        """Coverage conditional on the question: the rate of its first turn, and how far later turns go astray."""
        made = controller(self.setting, alpha, coverage="conditional")
        answers = self.show("conditional", alpha, lambda lab: lab.answered(f"conditional_{alpha}", made))
        by_turn = [[[fired for _, t, _, fired, _ in a.chunks if t == turn] for a in answers] for turn in (0, 1, 2)]
        for turn, rows in enumerate(by_turn):
            means = [float(np.mean(fired)) for fired in rows if fired]
            if not means:
                break
            self._mean(f"conditional, alpha {alpha}: mean over questions of the rate at turn {turn}", means)
            if turn == 0:
                error = abs(float(np.mean(means)) - alpha)
                self.report.bar(Bar.at_most(f"conditional, alpha {alpha}: rate error of the first turn", error, 0.01))

    def lengths(self, alpha: float) -> None:
        """The rate by turn where the pools are of shorter chunks than those decided on; of the first block."""
        shorter = self._fewer()._replace(chunk_tokens=round(OTHER_LENGTH * self.setting.chunk_tokens))
        lab = self.labs[0]
        pools = lab.calibrated(f"shorter_{alpha}", controller(shorter, alpha), num_turns=4)
        answers = self.conformal(lab, alpha)
        for number, pool in enumerate(pools):
            scores = [value for a in answers for _, t, value, _, _ in a.chunks if t == number and value is not None]
            if scores and pool:
                rate = float(np.mean(p_values(pool, scores, "random", self.rng) <= alpha))
                name = f"alpha {alpha}, pools of {shorter.chunk_tokens}-token chunks: rate at turn {number}"
                self.report.figure(name, rate)

    def marks(self) -> None:
        """SpecReason's marks."""
        made = controller(self.setting, rule=self.verdict)
        self.show(f"marks below {self.verdict.threshold}", None, lambda lab: lab.answered("verdict", made))

    def words(self) -> None:
        """Speculative Thinking's reflection words."""
        made = controller(self.setting, rule=ReflectionWords())
        self.show("reflection words", None, lambda lab: lab.answered("words", made))

    def _fewer(self) -> Setting:
        return self.setting._replace(num_chains=max(2, self.setting.num_chains // 2))

    def _mean(self, name: str, values: list[float]) -> None:
        estimate = paired_bootstrap(values, np.zeros(len(values)), rng=self.rng, num_resamples=2_000)
        self.report.figure(name, *estimate)


def _decisions(answers: list[Answered]) -> tuple[list[bool], list[int]]:
    """Whether each chunk was taken over, and its question."""
    fired = [taken for answered in answers for _, _, _, taken, _ in answered.chunks]
    return fired, [number for number, answered in enumerate(answers) for _ in answered.chunks]


@click.command(epilog="Example: python -m benchmarks.studies.conformal --alpha 0.25 --num_problems 100 --num_blocks 3")
@report_options
@click.option("--alpha", "alphas", type=float, multiple=True, default=(0.25, 0.4, 0.1, 0.6), help="Level; repeatable.")
@click.option("--compared", default=2, show_default=True, help="Of the levels, those that a coin runs at, too.")
@click.option("--ranked", default=2, show_default=True, help="Of the levels, those that a ranking runs at, too.")
@click.option(
    "--part",
    "parts",
    type=click.Choice((*PARTS, "none")),
    multiple=True,
    default=PARTS,
    help="Beside the levels; repeatable.",
)
@click.option("--num_problems", default=100, show_default=True, help="Questions of a block.")
@click.option("--num_blocks", default=1, show_default=True, help="Blocks, of consecutive seeds.")
@click.option("--num_chains", default=16, show_default=True, help="Chains a question.")
@click.option("--store", type=click.Path(path_type=Path), help="Folder of what was run before.")
@click.option("--plot_path", type=click.Path(), help="Where the figures are drawn.")
def main(
    seed: int,
    quick: bool,
    as_json: bool,
    alphas: tuple[float, ...],
    compared: int,
    ranked: int,
    parts: tuple[str, ...],
    num_problems: int,
    num_blocks: int,
    num_chains: int,
    store: Path | None,
    plot_path: str | None,
) -> None:
    """Accuracy and target tokens of conformal take-over and of the rules that it is measured against."""
    max_tokens = 720
    if quick:
        alphas, compared, ranked, num_problems, num_blocks, num_chains, max_tokens = (0.4,), 1, 1, 2, 2, 2, 96
    setting = Setting(num_chains, 48, max_tokens, 15, "resample")
    blocks = {"seed": seed, "problems_of_a_block": num_problems, "blocks": num_blocks}
    report = Report("conformal", setting._asdict() | blocks | {"models": MODELS})
    workers: dict[str, Worker] = {
        tag: HuggingFaceWorker(model, max_batch_size=64 if quick else 128) for tag, model in MODELS.items()
    }
    prompting = Prompting.for_model(MODELS["target"])
    yes, no = (prompting.encode(word)[0] for word in (grammar.YES, grammar.NO))
    verdict = Verdict(5, grammar.CLOSE, grammar.VERDICT, yes, no, prompting.encode)
    labs = []
    for block in range(seed, seed + num_blocks):
        folder = store and store / f"seed{block}_problems{num_problems}_chains{num_chains}_tokens{max_tokens}"
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
        samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=block)
        labs.append(Lab(workers, samples, prompting, block, folder))
    with Progress(console=Console(stderr=True), transient=True) as progress:
        study = Study(labs, setting, report, verdict, np.random.default_rng(seed), progress)
        try:
            for number, alpha in enumerate(alphas):
                study.level(alpha, compared=number < compared, ranked=number < ranked)
            steps = {
                "alone": study.alone,
                "words": study.words,
                "marks": study.marks,
                "conditional": lambda: study.conditional(alphas[0]),
                "lengths": lambda: study.lengths(alphas[0]),
            }
            for part in parts:
                if part != "none":
                    steps[part]()
        finally:
            for worker in workers.values():
                worker.shutdown()
    if plot_path:
        plot(study.found, plot_path, f"{num_problems * num_blocks} questions, {num_chains} chains, {MODELS['target']}")
    report.show(as_json)


if __name__ == "__main__":
    main()
