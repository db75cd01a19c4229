"""Are the embedded models like reasoning models? The gates that an edition of their weights must meet.

    python -m benchmarks.studies.tinylm --seed 90 --other_target runs/tinylm_seed1/target --store runs/gates

All figures are of held-out problems drawn by `--seed`, sampled without top-p; intervals are 95 %, from resampling whole
questions.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import numpy.typing as npt
import torch

from benchmarks._lib.command import benchmark, size, stored, track
from benchmarks._lib.report import Report
from benchmarks._lib.store import kept
from benchmarks.tinylm.decoder import Decoder
from benchmarks.tinylm.steps import STATED, check_steps
from scaffolding_ext.answers import extract
from scaffolding_ext.tinylm.embedded import model_folder
from scaffolding_ext.tinylm.grammar import CLOSE, Problem, sample_problem

TEMPERATURE = 0.7
OTHER_TEMPERATURES = (0.3, 0.5, 1.0)
QUARTERS = (0.25, 0.5, 0.75)
NUM_FORCED = 2  # chains a question that are cut
_THINK_CLOSE = "</think>"
_BLOCK = 25  # problems that are run and stored together


class Written(NamedTuple):
    """A chain that a model has written.

    Attributes:
        thinking: Its text up to where thinking closes.
        answer: What it answers; None where it gives no answer.
        num_tokens: Of the whole reply.
        first_pass_len: Tokens up to the first answer that is stated; None without one.
    """

    thinking: str
    answer: str | None
    num_tokens: int
    first_pass_len: int | None


class Answered(NamedTuple):
    """Everything that is asked of a model about one problem.

    Attributes:
        chains: By temperature as text.
        forced: Of the first chains at `TEMPERATURE`, the answers forced at `QUARTERS`.
    """

    chains: dict[str, list[Written]]
    forced: list[list[str | None]]


class Author:
    """A model that writes chains about problems.

    Args:
        folder: Its weights.
    """

    def __init__(self, folder: str) -> None:
        self._decoder = Decoder(folder)

    def answer(self, problems: list[Problem], num_votes: int, num_others: int, seed: int) -> list[Answered]:
        """Ask about all problems at once: votes, a greedy chain, and chains at other temperatures."""
        generator = torch.Generator().manual_seed(seed)
        temperatures = [TEMPERATURE] * num_votes + [0.0] + [t for t in OTHER_TEMPERATURES for _ in range(num_others)]
        encode = self._decoder.encode
        prompts = [encode(f"<|user|>{problem.question}<|assistant|><think>\n") for problem in problems]
        asked = [(prompt, temperature) for prompt in prompts for temperature in temperatures]
        replies = self._decoder.continuations([p for p, _ in asked], [t for _, t in asked], generator)
        answered: list[Answered] = []
        for i, prompt in enumerate(prompts):
            own = replies[i * len(temperatures) : (i + 1) * len(temperatures)]
            chains: dict[str, list[Written]] = {}
            for temperature, ids in zip(temperatures, own, strict=True):
                chains.setdefault(str(temperature), []).append(self._read(ids))
            answered.append(Answered(chains, [self._forced(prompt, ids) for ids in own[: min(NUM_FORCED, num_votes)]]))
        return answered

    def _read(self, ids: list[int]) -> Written:
        text = self._decoder.decode(ids)
        thinking, _, reply = text.partition(_THINK_CLOSE)
        first = STATED.search(thinking)
        first_pass_len = len(self._decoder.encode(thinking[: first.end()])) if first else None
        return Written(thinking, extract(reply), len(ids), first_pass_len)

    def _forced(self, prompt: list[int], ids: list[int]) -> list[str | None]:
        (close,) = self._decoder.encode(_THINK_CLOSE)
        length = ids.index(close) if close in ids else len(ids)
        cuts = [len(prompt) + round(share * length) for share in QUARTERS]
        replies = self._decoder.forced(prompt + ids, cuts, self._decoder.encode(CLOSE))
        return [extract(CLOSE.removeprefix(_THINK_CLOSE) + reply) for reply in replies]


def measure(
    author: Author, problems: list[Problem], num_votes: int, num_others: int, seed: int, store: Path | None
) -> list[Answered]:
    """Ask block by block; a block that the store holds is not asked again."""
    answered: list[Answered] = []
    for start in track(range(0, len(problems), _BLOCK), "blocks of problems"):
        block = problems[start : start + _BLOCK]
        found = kept(
            store,
            f"seed{seed}_{num_votes}_{num_others}_{start}_{len(block)}",
            lambda block=block, start=start: author.answer(block, num_votes, num_others, seed + start),  # type: ignore[misc]
        )
        for chains, forced in found:
            answered.append(Answered({t: [Written(*w) for w in own] for t, own in chains.items()}, forced))
    return answered


class Figures:
    """The figures of one model, added to a report under its name.

    Args:
        report: What they are added to.
        name: Of the model.
        problems: What was asked.
        answered: What it wrote, in the order of the problems.
    """

    def __init__(self, report: Report, name: str, problems: list[Problem], answered: list[Answered]) -> None:
        self._report, self._name, self._problems, self._answered = report, name, problems, answered
        self._votes = [own.chains[str(TEMPERATURE)] for own in answered]
        self._num_votes = len(self._votes[0])
        self.single = self._right(TEMPERATURE)
        self.vote = np.array(
            [voted([chain.answer for chain in own], p.answer) for own, p in zip(self._votes, problems, strict=True)]
        )

    def _right(self, temperature: float) -> npt.NDArray[np.float64]:
        """The share of right chains of each question."""
        chains = [own.chains.get(str(temperature), []) for own in self._answered]
        return np.array(
            [
                np.mean([chain.answer == p.answer for chain in own] or [np.nan])
                for own, p in zip(chains, self._problems, strict=True)
            ]
        )

    def _figure(self, name: str, values: npt.ArrayLike, less: npt.ArrayLike = 0.0, scale: float = 100) -> float:
        """A mean over questions, in percent or points where it has no other scale."""
        return self._report.difference(f"{self._name}: {name}", values, less, scale=scale).value

    def _bar(self, name: str, value: float, low: float | None, high: float | None = None) -> None:
        if low is not None:
            self._report.bar(f"{self._name}: {name}", value, ">=", low)
        if high is not None:
            self._report.bar(f"{self._name}: {name}", value, "<=", high)

    def accuracy(self, low: float, high: float) -> None:
        """One chain, and the same by kind."""
        self._bar("one chain", self._figure("one chain", self.single), low, high)
        kinds = np.array([problem.kind for problem in self._problems])
        for kind in sorted(set(kinds)):
            if (kinds == kind).sum() > 1:  # one question has no interval
                self._figure(f"one chain, {kind}", self.single[kinds == kind])

    def votes(self) -> None:
        """Report what a vote adds to one chain."""
        name = f"vote of {self._num_votes}"
        self._figure(name, self.vote)
        self._bar(f"{name} less one chain", self._figure(f"{name} less one chain", self.vote, self.single), 8, 20)
        self._wrong_answers()

    def vote_over_greedy(self, low: float) -> None:
        """A vote beside one greedy chain."""
        name = f"vote of {self._num_votes} less greedy"
        self._bar(name, self._figure(name, self.vote, self._right(0.0)), low)

    def temperatures(self) -> None:
        """Greedy and other temperatures less `TEMPERATURE`: methods are drawn alike at all of them."""
        for temperature in (0.0, *OTHER_TEMPERATURES):
            right = self._right(temperature)
            name = "greedy" if temperature == 0 else f"one chain at {temperature}"
            self._figure(name, right)
            gain = self._figure(f"{name} less {TEMPERATURE}", right, self.single)
            self._bar(f"{name} less {TEMPERATURE}", gain, -4, 4)

    def forced(self) -> None:
        """Forced answers along the thinking, and the answer of the whole chain."""
        shares = []
        for column, share in enumerate((*QUARTERS, 1.0)):
            right = [
                np.mean(
                    [
                        ((*cuts, chain.answer)[column]) == problem.answer
                        for cuts, chain in zip(own.forced, votes, strict=False)
                    ]
                )
                for own, votes, problem in zip(self._answered, self._votes, self._problems, strict=True)
            ]
            shares.append(self._figure(f"forced answer at {share:.0%}", right))
        self._bar("forced answers: least gain of a quarter", float(np.diff(shares).min()), 0)
        self._bar("forced answers: last less first", shares[-1] - shares[0], 8)

    def lines(self) -> None:
        """Report how well written steps follow their methods."""
        follows: dict[bool, list[bool]] = {True: [], False: []}
        for own, problem in zip(self._votes, self._problems, strict=True):
            counts: dict[bool, list[bool]] = {True: [], False: []}
            for chain in own:
                for line in check_steps(problem, chain.thinking):
                    if line.is_misread is not None:
                        counts[line.is_misread].append(bool(line.follows_method))
            for is_misread, held in counts.items():
                follows[is_misread] += held
        must = self._report.share(f"{self._name}: lines misread where their method must", *_counted(follows[True]))
        off = self._report.share(
            f"{self._name}: other lines that fail", *_counted([not held for held in follows[False]])
        )
        self._bar("lines misread where their method must, %", 100 * must, 85)
        self._bar("other lines that fail, %", 100 * off, None, 1.5)

    def lengths(self) -> None:
        """Tokens of whole chains and of first passes."""
        chains = [chain for own in self._votes for chain in own]
        self._figure("tokens of a chain", [np.mean([c.num_tokens for c in own]) for own in self._votes], scale=1)
        self._figure("chains without an answer", [np.mean([c.answer is None for c in own]) for own in self._votes])
        firsts = np.array([chain.first_pass_len for chain in chains if chain.first_pass_len is not None])
        for quantile in (10, 50, 90):
            self._report.figure(
                f"{self._name}: first pass, tokens, p{quantile}", float(np.percentile(firsts, quantile))
            )
        variation = float(firsts.std() / firsts.mean())
        self._report.figure(f"{self._name}: first pass, coefficient of variation", variation)
        self._bar("first pass, coefficient of variation", variation, 0.5)

    def _wrong_answers(self) -> None:
        """Hard and sure questions, and how wrong answers spread."""
        hard = self._figure("hard questions (p < 0.2)", self.single < 0.2)
        sure = self._figure("sure questions (p > 0.8)", self.single > 0.8)
        self._bar("hard questions (p < 0.2)", hard, 5, 20)
        self._bar("sure questions (p > 0.8)", sure, 45)
        wrong = [
            Counter(chain.answer for chain in own if chain.answer != p.answer)
            for own, p in zip(self._votes, self._problems, strict=True)
        ]
        wrong = [counts for counts in wrong if counts]
        self._figure("distinct wrong answers", [len(counts) for counts in wrong], scale=1)
        commonest = [max(counts.values()) / counts.total() for counts in wrong]
        share = self._figure("commonest wrong answer among wrong ones", commonest)
        self._bar("commonest wrong answer among wrong ones", share, 50, 85)


def voted(answers: list[str | None], target: str) -> float:
    """The share of the most frequent answers that are right."""
    counts = Counter(answer for answer in answers if answer is not None)
    leading = [answer for answer, count in counts.items() if count == max(counts.values())]
    return float(target in leading) / max(1, len(leading))


def _counted(held: list[bool]) -> tuple[int, int]:
    return sum(held), max(1, len(held))


def add_target(report: Report, name: str, problems: list[Problem], answered: list[Answered]) -> None:
    """All figures and gates of a target."""
    figures = Figures(report, name, problems, answered)
    figures.accuracy(65, 82)
    figures.temperatures()
    figures.votes()
    figures.vote_over_greedy(8)
    figures.forced()
    figures.lines()
    figures.lengths()


def add_draft(report: Report, name: str, problems: list[Problem], answered: list[Answered]) -> None:
    """The figures and gates of a draft."""
    figures = Figures(report, name, problems, answered)
    figures.accuracy(40, 60)
    figures.vote_over_greedy(5)
    figures.lengths()


@benchmark("studies.tinylm --seed 90 --store runs/gates")
@size("--num_problems", 300, quick=8, help="Held-out problems.", least=2)
@size("--num_votes", 16, quick=4, help="Chains a problem that are voted on.", least=2)
@size("--num_others", 1, quick=1, help="Chains a problem at each other temperature.")
@click.option("--target", default="tinylm/target", show_default=True, help="Name or folder of the model.")
@click.option("--other_target", help="Folder of a target that was trained from another seed.")
@click.option("--draft", default="tinylm/draft", show_default=True, help="Name or folder of the weaker model.")
@stored
def main(
    report: Report,
    num_problems: int,
    num_votes: int,
    num_others: int,
    target: str,
    other_target: str | None,
    draft: str,
    store: Path | None,
) -> None:
    """The gates of the embedded models, with intervals."""
    rng = random.Random(f"gates/{report.seed}")
    problems = [sample_problem(rng) for _ in range(num_problems)]
    asked = {"target": target, "other target": other_target, "draft": draft}
    folders = {name: model_folder(f) if f.startswith("tinylm/") else f for name, f in asked.items() if f}
    for name, folder in folders.items():
        kept_in = store / name.replace(" ", "_") if store else None
        answered = measure(
            Author(folder), problems, num_votes, 0 if name == "draft" else num_others, report.seed, kept_in
        )
        (add_draft if name == "draft" else add_target)(report, name, problems, answered)


if __name__ == "__main__":
    main()
