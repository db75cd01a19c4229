"""The main job on the embedded model: plain chains, cuts and DynasorCoT, drawn and greedy, and votes that stop early.

    python -m benchmarks.studies.demo --num_problems 100

The fixed cut is given the budget at which it decodes as many tokens as DynasorCoT did, so that the two can be compared
by accuracy. Each runs the same problems with the same seeds: until it stops, DynasorCoT writes the very chain that the
plain run writes. Chains are drawn at temperature 0.7, and once more decoded greedily. Then votes of 8 drawn chains on
the first of the problems: all 8 samples, and the same vote stopped once its winner would probably stay. It ends in
four lines; the picture has the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
from rich.progress import Progress

from benchmarks._lib.command import benchmark, progress, size
from benchmarks._lib.drawing import Figures, coloured, of
from benchmarks._lib.provenance import PLACE
from benchmarks._lib.report import Report
from benchmarks._lib.runs import MAX_TOKENS, TEMPERATURE, Run, timed_run
from scaffolding_ext import load_stack
from scaffolding_ext.evaluation.drawing import below, drawing, marked, point
from scaffolding_ext.evaluation.run.datasets import Example, load_dataset

PLAIN, CUT, DYNASOR = "plain CoT", "fixed cut", "DynasorCoT"
GREEDY = ", greedy"
METHODS = [name + suffix for suffix in ("", GREEDY) for name in (PLAIN, CUT, DYNASOR)]
STACKS = {  # the stack file of each, and what bounds its chains
    PLAIN: ("configs:native", "controller.args.sampling_params.max_tokens"),
    DYNASOR: ("configs:dynasor_cot", "controller.args.max_tokens"),
    CUT: ("configs:budget_forcing", "controller.args.thinking_tokens"),
}
FORCED_LEN = 4  # tokens of a forced answer, about: what a cut decodes beyond its budget
NUM_VOTES = 8
VOTE, STOPPED_VOTE = f"vote of {NUM_VOTES}", f"vote of {NUM_VOTES}, stopped early"
FIRST_GREEDY = f"{PLAIN}{GREEDY}, of the voted problems"


def show(report: Report) -> None:
    """Print what was compared and what was saved."""

    def told(name: str, scale: int = 1) -> str:
        found = of(report.figures, name, scale)
        return "" if found is None else f"{found.value:.1f} ({found.low:.1f} to {found.high:.1f})"

    chains, vote = f"{DYNASOR} against {PLAIN}", f"{STOPPED_VOTE} against {VOTE}"
    saved, points = told(f"{chains}: decoded saved", 100), told(f"{chains}: accuracy, points")
    cut = told(f"{DYNASOR} against {CUT}: accuracy, points")
    fewer, voted = told(f"{vote}: decoded saved", 100), told(f"{vote}: accuracy, points")
    number = report.setting["num_problems"]
    print(f"{number} problems on a tiny model: whole chains, and DynasorCoT, which stops settled chains.")
    print(f"DynasorCoT decodes {saved} % fewer tokens and is {points} points above whole chains;")
    print(f"above chains that are cut to as many tokens it is {cut} points. All intervals are 95 %.")
    print(f"A vote of {NUM_VOTES} that stops when it is settled: {fewer} % fewer tokens, {voted} points.")


def plot(figures: Figures, path: Path) -> None:
    """Draw accuracy against decoded tokens, each method with both intervals."""
    with drawing(path, figsize=(7.5, 4.8)) as (figure, axes):
        for number, name in enumerate(METHODS):
            tokens, accuracy = of(figures, f"{name}: decoded tokens"), of(figures, f"{name}: accuracy", 100)
            shape = coloured(number % len(STACKS)) | (marked(name) if name.endswith(GREEDY) else {})
            if name.startswith(CUT):  # of as many tokens as DynasorCoT: it lies behind that
                shape |= {"elinewidth": 4, "alpha": 0.5}
            if tokens is not None and accuracy is not None:
                point(axes, tokens, accuracy, name, is_default=name == DYNASOR, **shape)
        axes.set(xlabel="decoded tokens a problem (all that was generated)", ylabel="accuracy, %")
        axes.set_xlim(0, None)
        axes.set_title("What lies further left decodes less, what lies higher is right more often")
        below(figure, axes, 3)


class Stacks:
    """Runs stacks on an embedded model.

    Args:
        bars: Show how far it is.
        seed: Of all requests.
        model: Embedded model or folder.
    """

    def __init__(self, bars: Progress, seed: int, model: str) -> None:
        self._bars = bars
        self._shared = (f"seed={seed}", f"workers.generation.args.model={model}")

    def run(self, name: str, stack: str, samples: Sequence[Example], *overrides: str) -> Run:
        bar = self._bars.add_task(name, total=len(samples))
        with load_stack(stack, overrides=(*self._shared, *overrides)) as llm:
            return timed_run(llm, samples, lambda record: self._bars.advance(bar))

    def side_by_side(self, samples: Sequence[Example], suffix: str) -> dict[str, Run]:
        """Plain chains, the fixed cut that decodes as many tokens as DynasorCoT did, and DynasorCoT."""
        temperature = 0.0 if suffix else TEMPERATURE

        def run(name: str, budget: int) -> Run:
            stack, bound = STACKS[name]
            sampling = f"controller.args.sampling_params.temperature={temperature}"
            return self.run(name + suffix, stack, samples, sampling, f"{bound}={budget}")

        plain, dynasor = run(PLAIN, MAX_TOKENS), run(DYNASOR, MAX_TOKENS)
        cut = run(CUT, matching_budget(plain.tokens("decoded"), float(np.mean(dynasor.tokens("decoded")))))
        return {PLAIN + suffix: plain, CUT + suffix: cut, DYNASOR + suffix: dynasor}

    def votes(self, samples: Sequence[Example]) -> dict[str, Run]:
        """Votes, with and without early stop."""
        number, stack = f"controller.args.default_sample_num={NUM_VOTES}", "configs:majority_vote"
        return {
            VOTE: self.run(VOTE, stack, samples, number, "controller.args.allocation=null"),
            STOPPED_VOTE: self.run(STOPPED_VOTE, stack, samples, number),
        }


def matching_budget(chain_lengths: list[int], mean_tokens: float) -> int:
    """The fixed cut whose mean of decoded tokens comes closest to `mean_tokens` on chains of these lengths."""
    lengths = np.array(chain_lengths)
    budgets = np.arange(1, lengths.max() + 1)
    means = [np.minimum(lengths, b).mean() + FORCED_LEN * (lengths > b).mean() for b in budgets]
    return int(budgets[np.argmin(np.abs(np.array(means) - mean_tokens))])


def add_run(report: Report, name: str, run: Run) -> None:
    """Add a method's accuracy and tokens."""
    report.share(f"{name}: accuracy", round(sum(run.correct)), len(run.correct))
    report.difference(f"{name}: decoded tokens", run.tokens("decoded"))


def add_comparison(report: Report, name: str, base: str, runs: dict[str, Run]) -> None:
    """Add what a method gains and saves against another, paired by problem."""
    run, other = runs[name], runs[base]
    report.difference(f"{name} against {base}: accuracy, points", run.correct, other.correct, scale=100)
    for what, kinds in (("decoded", ["decoded"]), ("computed", ["decoded", "prefilled"])):
        report.saved(f"{name} against {base}: {what} saved", run.tokens(*kinds), other.tokens(*kinds))


@benchmark("studies.demo --num_problems 100", show=show)
@size("--num_problems", 200, quick=60, help="Held-out problems.", least=2)
@size("--num_vote_problems", 40, quick=10, help="Of them those that are voted on, too.", least=2)
@click.option("--model", default="tinylm/target", show_default=True, help="Embedded model.")
@click.option("--plot_path", default="runs/demo/demo.png", show_default=True, type=PLACE, help="Where it is drawn.")
def main(report: Report, num_problems: int, num_vote_problems: int, model: str, plot_path: Path) -> None:
    """Plain chains, fixed cuts, DynasorCoT and votes: accuracy and tokens."""
    samples = load_dataset("tinylm:held_out", num_samples=num_problems, seed=report.seed)
    first = min(num_vote_problems, num_problems)
    with progress() as bars:
        stacks = Stacks(bars, report.seed, model)
        runs = stacks.side_by_side(samples, "") | stacks.side_by_side(samples, GREEDY)
        greedy = runs[PLAIN + GREEDY]
        runs |= {FIRST_GREEDY: greedy._replace(records=greedy.records[:first]), **stacks.votes(samples[:first])}
    for name, run in runs.items():
        add_run(report, name, run)
    for suffix in ("", GREEDY):
        for name, base in ((CUT, PLAIN), (DYNASOR, PLAIN), (DYNASOR, CUT)):
            add_comparison(report, name + suffix, base + suffix, runs)
    add_comparison(report, VOTE, FIRST_GREEDY, runs)
    add_comparison(report, STOPPED_VOTE, VOTE, runs)
    plot(report.figures, plot_path)


if __name__ == "__main__":
    main()
