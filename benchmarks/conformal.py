"""What a conformal target is worth: accuracy against target-decoded tokens, beside other rules of taking over.

    python benchmarks/conformal.py --num_problems 300 --store runs/conformal

All systems run the same chains on the same workers with the same seeds; they differ in who decides. Pools a turn are
made on the questions at hand, by chains that ran the same rule at the same level, in step. With `--store` a study that
was broken off goes on where it was.
"""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np
from common import Bar, Report, report_options
from draft_target_lab import Answered, Lab, Setting, controller, pooled_rates
from take_over_rules import Coin, Ranking, ReflectionWords, Verdict

from scaffolding_ext.controllers.take_over import TakeOverRule
from scaffolding_ext.evaluation.datasets import load_dataset
from scaffolding_ext.maths.conformal import p_values
from scaffolding_ext.maths.conformal_validity import realised_rate
from scaffolding_ext.maths.statistics import Estimate, paired_bootstrap
from scaffolding_ext.prompting import Prompting
from scaffolding_ext.protocol import Worker
from scaffolding_ext.tinylm import grammar
from scaffolding_ext.workers.budgeted import BudgetedWorker
from scaffolding_ext.workers.huggingface import HuggingFaceWorker

MODELS = {"draft": "tinylm/draft", "target": "tinylm/target"}
ENOUGH_DECISIONS, SHOWN_DECISIONS = 300, 100  # of a turn, for a bar and for a figure
OTHER_LENGTH = 5 / 7  # the paper calibrates on chunks of 500 tokens and decides on chunks of 700
NUM_SPLITS = 20
TIMED_ALPHA = 0.25
PARTS = ("alone", "lengths", "words", "marks", "times", "memory")
POWER_Z = 1.96 + 1.2816  # two-sided 0.05, power 0.9


class Study:
    """Runs the systems and reports on them."""

    def __init__(self, lab: Lab, setting: Setting, report: Report, verdict: Verdict, rng: np.random.Generator) -> None:
        self.lab, self.setting, self.report, self.verdict, self.rng = lab, setting, report, verdict, rng
        self.curve: dict[str, list[tuple[float, float]]] = {}

    def show(self, family: str, name: str, answers: list[Answered]) -> list[Answered]:
        """Report accuracy, tokens and rate of one system, and put it on its family's curve."""
        for what in ("vote", "best", "chains", "target_tokens"):
            values = [float(getattr(answered, what)) for answered in answers]
            estimate = paired_bootstrap(values, np.zeros(len(values)), rng=self.rng, num_resamples=2_000)
            self.report.figure(f"{name}: {what}", *estimate)
        fired, questions = _decisions(answers)
        if len(set(questions)) > 1:
            rate = realised_rate(fired, questions, rng=self.rng)
            self.report.figure(f"{name}: rate", rate.rate, *(rate.clustered or (None, None)))
        point = (float(np.mean([a.target_tokens for a in answers])), float(np.mean([a.vote for a in answers])))
        self.curve.setdefault(family, []).append(point)
        return answers

    def alone(self) -> None:
        """Draft only and target only; the target writes in chunks as the draft does."""
        made = controller(self.setting, rule=Coin(0.0))
        self.show("draft only", "draft only", self.lab.answered("draft_only", made, self.setting.seed))
        workers = {"draft": self.lab.workers["target"], "target": self.lab.workers["target"]}
        answers = self.lab.answered("target_only", made, self.setting.seed, workers)
        written = [a._replace(target_tokens=len(a.chunks) * self.setting.chunk_tokens) for a in answers]
        self.show("target only", "target only (its tokens to whole chunks)", written)

    def level(self, alpha: float, *, compared: bool, ranked: bool) -> None:
        """Conformal take-over at a level; on request beside a coin, and beside a ranking."""
        seed = self.setting.seed
        fewer = self.setting._replace(num_chains=max(2, self.setting.num_chains // 2))
        turns = self.lab.calibrated(f"pools_{alpha}", controller(fewer, alpha), seed + 1)
        made = controller(self.setting, alpha, turns)
        name = f"conformal, alpha {alpha}"
        found = self.show("conformal", name, self.lab.answered(f"conformal_{alpha}", made, seed))
        self.rates(name, alpha, found)
        rate = float(np.mean(_decisions(found)[0]))
        rules: dict[str, TakeOverRule] = {"coin": Coin(rate)} if compared else {}
        for family, rule in (rules | ({"ranking": Ranking(alpha)} if ranked else {})).items():
            answers = self.lab.answered(f"{family}_{alpha}", controller(self.setting, rule=rule), seed)
            shown = self.show(family, f"{family}, alpha {alpha}", answers)
            self.gain(f"conformal over {family}, alpha {alpha}", found, shown)

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
        if differences.mean():
            needed = (POWER_Z * differences.std(ddof=1) / differences.mean()) ** 2
            self.report.figure(f"{name}: questions for power 0.9", float(np.ceil(needed)))
        if "coin" in name:
            self.report.bar(Bar(f"{name}: lower end", gain.low, 0.0, gain.low > 0, ">"))

    def lengths(self, alpha: float) -> None:
        """The rate by turn where the pools are of shorter chunks than those that are decided on."""
        shorter = self.setting._replace(
            num_chains=max(2, self.setting.num_chains // 2),
            chunk_tokens=round(OTHER_LENGTH * self.setting.chunk_tokens),
        )
        pools = self.lab.calibrated(f"shorter_{alpha}", controller(shorter, alpha), self.setting.seed + 1, num_turns=4)
        answers = self.lab.answered(f"conformal_{alpha}", controller(self.setting, alpha), self.setting.seed)
        for turn, pool in enumerate(pools):
            scores = [value for a in answers for _, t, value, _, _ in a.chunks if t == turn and value is not None]
            if scores and pool:
                rate = float(np.mean(p_values(pool, scores, "random", self.rng) <= alpha))
                name = f"alpha {alpha}, pools of {shorter.chunk_tokens}-token chunks: rate at turn {turn}"
                self.report.figure(name, rate)

    def marks(self) -> None:
        """SpecReason's marks."""
        name = f"verdict below {self.verdict.threshold}"
        marked = self.lab.answered("verdict", controller(self.setting, rule=self.verdict), self.setting.seed)
        self.show("SpecReason's marks", name, marked)

    def words(self) -> None:
        """Speculative Thinking's reflection words."""
        made = controller(self.setting, rule=ReflectionWords())
        self.show("reflection words", "reflection words", self.lab.answered("words", made, self.setting.seed))

    def times(self, num_timed: int) -> None:
        """Completion of chains, one question at a time, without and with waiting for each other."""
        few = Lab(self.lab.workers, self.lab.samples[:num_timed], self.lab.prompting, self.lab.store)
        turns = self.lab.calibrated(
            f"pools_{TIMED_ALPHA}", controller(self.setting, TIMED_ALPHA), self.setting.seed + 1
        )
        systems = {
            "asynchronous": controller(self.setting, TIMED_ALPHA, turns),
            "synchronous": controller(self.setting, rule=Ranking(TIMED_ALPHA)),
        }
        ends = {
            name: [a.ends for a in few.answered(f"timed_{name}", made, self.setting.seed, at_once=1)]
            for name, made in systems.items()
        }
        for what, take in (("mean", np.mean), ("last", np.max)):
            ours, theirs = ([float(take(e)) for e in ends[name]] for name in systems)
            ratio = sum(ours) / sum(theirs)
            self.report.figure(f"asynchronous over synchronous, {what} completion", ratio)
            self.report.bar(Bar.at_most(f"asynchronous over synchronous, {what} completion", ratio, 0.8))

    def memory(self, num_chains: tuple[int, ...]) -> None:
        """The most calls and tokens that the target had at once, by chains, without and with a budget."""
        few = Lab(self.lab.workers, self.lab.samples[:1], self.lab.prompting, None)
        for chains in num_chains:
            for what, max_calls in (("without a budget", 10_000), ("budget of 4 calls", 4)):
                target = BudgetedWorker(self.lab.workers["target"], max_calls)
                made = controller(self.setting._replace(num_chains=chains), TIMED_ALPHA)
                workers = {"draft": self.lab.workers["draft"], "target": target}
                answers = few.answered("memory", made, self.setting.seed, workers, at_once=1)
                name = f"target, {chains} chains, {what}"
                self.report.figure(f"{name}: most calls at once (rows)", target.most_calls)
                self.report.figure(f"{name}: most tokens held at once", target.most_tokens)
                self.report.figure(f"{name}: seconds waited in all", sum(answered.waited for answered in answers))


def _decisions(answers: list[Answered]) -> tuple[list[bool], list[int]]:
    """Whether each chunk was taken over, and its question."""
    fired = [taken for answered in answers for _, _, _, taken, _ in answered.chunks]
    return fired, [number for number, answered in enumerate(answers) for _ in answered.chunks]


def plot(curve: dict[str, list[tuple[float, float]]], path: str, title: str) -> None:
    """Draw accuracy against the target's tokens."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for family, points in curve.items():
        tokens, accuracy = zip(*sorted(points), strict=True)
        axes.plot(tokens, accuracy, "o-" if len(points) > 1 else "o", label=family)
    axes.set(xlabel="tokens the target decoded, a question", ylabel="accuracy of the vote", title=title)
    axes.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


@click.command(epilog="Example: python benchmarks/conformal.py --alpha 0.25 --num_problems 300")
@report_options
@click.option("--alpha", "alphas", type=float, multiple=True, default=(0.25, 0.4, 0.1, 0.6), help="Level; repeatable.")
@click.option("--compared", default=2, show_default=True, help="Of the levels, those that a coin runs at, too.")
@click.option("--ranked", default=2, show_default=True, help="Of the levels, those that a ranking runs at, too.")
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, default=PARTS, help="Repeatable; all parts.")
@click.option("--num_problems", default=100, show_default=True, help="Questions.")
@click.option("--num_chains", default=16, show_default=True, help="Chains a question.")
@click.option("--num_timed", default=4, show_default=True, help="Questions whose chains are timed.")
@click.option("--store", type=click.Path(path_type=Path), help="Folder of what was run before.")
@click.option("--plot_path", type=click.Path(), help="Where the curve is drawn.")
def main(
    seed: int,
    quick: bool,
    as_json: bool,
    alphas: tuple[float, ...],
    compared: int,
    ranked: int,
    parts: tuple[str, ...],
    num_problems: int,
    num_chains: int,
    num_timed: int,
    store: Path | None,
    plot_path: str | None,
) -> None:
    """Accuracy and target tokens of conformal take-over and of the rules that it is measured against."""
    max_tokens = 720
    if quick:
        alphas, compared, ranked, num_problems, num_chains, num_timed, max_tokens = (0.4,), 1, 1, 2, 2, 1, 96
    setting = Setting(num_chains, 48, max_tokens, 15, "resample", seed)
    if store is not None:
        store /= f"seed{seed}_problems{num_problems}_chains{num_chains}_tokens{max_tokens}"
        store.mkdir(parents=True, exist_ok=True)
    report = Report("conformal", setting._asdict() | {"problems": num_problems, "models": MODELS})
    rng = np.random.default_rng(seed)
    workers: dict[str, Worker] = {
        tag: HuggingFaceWorker(model, max_batch_size=64 if quick else 128) for tag, model in MODELS.items()
    }
    prompting = Prompting.for_model(MODELS["target"])
    yes, no = (prompting.encode(word)[0] for word in (grammar.YES, grammar.NO))
    verdict = Verdict(5, grammar.CLOSE, grammar.VERDICT, yes, no, prompting.encode)
    lab = Lab(workers, load_dataset("tinylm:held_out", num_samples=num_problems, seed=seed), prompting, store)
    study = Study(lab, setting, report, verdict, rng)
    try:
        for number, alpha in enumerate(alphas):
            study.level(alpha, compared=number < compared, ranked=number < ranked)
        steps = {
            "alone": study.alone,
            "lengths": lambda: study.lengths(alphas[0]),
            "words": study.words,
            "marks": study.marks,
            "times": lambda: study.times(num_timed),
            "memory": lambda: study.memory((2,) if quick else (4, 16)),
        }
        for part in parts:
            steps[part]()
    finally:
        for worker in workers.values():
            worker.shutdown()
    if plot_path:
        plot(study.curve, plot_path, f"{num_problems} questions, {num_chains} chains")
    report.show(as_json)


if __name__ == "__main__":
    main()
