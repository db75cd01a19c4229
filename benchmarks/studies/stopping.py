"""Every stopping rule on the same recorded chains: against fixed cuts and random exits, with a guarantee, and live.

    python -m benchmarks.studies.stopping --store FOLDER --plot_path frontier.png --json

Chains of two sets of problems are recorded with probes every 16 tokens. *Rules*: each is set on one set and judged on
the other, both ways round, at equal decoded tokens. *Guarantee*: settings are chosen on random halves of each set, and
what they lose is counted on the other halves. *Live*: a policy of 300 problems of the first set answers problems of the
second, and saves what the replay foretold, or not.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np

from benchmarks._lib.chain_replay import COSTS, Outcome, cut_at, fixed_cuts
from benchmarks._lib.chain_trial import (
    Setting,
    Trial,
    choose,
    halves,
    settings_to_try,
    try_settings,
)
from benchmarks._lib.command import benchmark, plotted, progress, size, stored
from benchmarks._lib.drawing import GREEDY, Figures, beside, coloured, drawing, of, point, rows
from benchmarks._lib.recorded_chains import RecordedChain
from benchmarks._lib.replayed import SPACING, STACK, Floats, Level, cut_of_as_many, record_chains
from benchmarks._lib.report import Report
from benchmarks._lib.runs import run_stack
from scaffolding_ext import load_config
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.stats.intervals import Estimate

NUM_SETS = 2
NUM_LOTS = 20  # random exits of each rule
NUM_CALIBRATED = 300  # problems of the live policy
LEVELS, CONFIDENCE = (0.01, 0.02, 0.05), 0.9
LIVE_LOSS = 0.02
COMPUTED = ("kept", "blocks", "nothing")
ANY_RULE = "best of all rules"
OVER_CUT = ": points over a fixed cut"
CHEAP = ", no more computed than a cut"


def play_settings(
    folder: Path, chains: Sequence[RecordedChain], settings: Sequence[Setting], on_setting: Callable[[Setting], object]
) -> Trial:
    """All settings on chains, from the folder where they were played before."""
    asked = json.dumps([setting.to_json() for setting in settings], sort_keys=True)
    path = folder / f"played_{hashlib.sha256(asked.encode()).hexdigest()[:16]}.npz"
    if not path.exists():
        outcomes = try_settings(chains, settings, on_setting).outcomes
        columns = {name: np.stack([getattr(each, name) for each in outcomes]) for name in Outcome._fields[:-1]}
        np.savez_compressed(
            path, **columns, **{cost: np.stack([each.costs[cost] for each in outcomes]) for cost in COSTS}
        )
    with np.load(path) as kept:
        columns = {name: kept[name] for name in kept.files}
    outcomes = [
        Outcome(*(columns[name][row] for name in Outcome._fields[:-1]), {cost: columns[cost][row] for cost in COSTS})
        for row in range(len(settings))
    ]
    return Trial(list(settings), outcomes, cut_at(chains, [-1] * len(chains)), fixed_cuts(chains))


# ---- rules


class Judged(NamedTuple):
    """A rule's setting on chains that it was not set on."""

    outcome: Outcome
    level: Level
    random: Floats
    full: Outcome


def best_of(trial: Trial, rule: str, is_cheap: bool) -> int | None:
    """The setting that is furthest above the fixed cut of as many tokens.

    Args:
        trial: The settings.
        rule: Name of the rule, or `ANY_RULE`.
        is_cheap: Whether only settings count that compute no more than that cut, the chain's KV kept.
    """
    best, index_of_best = -np.inf, None
    for index, (setting, outcome) in enumerate(zip(trial.settings, trial.outcomes, strict=True)):
        if rule not in (setting.rule["type"], ANY_RULE) or (outcome.exits >= 0).mean() < 0.05:
            continue
        level = cut_of_as_many(outcome, trial.cuts)
        above = outcome.right.mean() - level.right.mean()
        if above > best and not (is_cheap and outcome.costs["kept"].mean() > level.cost("kept").mean()):
            best, index_of_best = above, index
    return index_of_best


def judge(chains: Sequence[RecordedChain], trial: Trial, index: int, rng: np.random.Generator) -> Judged:
    """A setting on some chains, beside the fixed cut of as many tokens and random exits."""
    outcome = trial.outcomes[index]
    lots = [cut_at(chains, rng.permutation(outcome.exits).tolist()).right for _ in range(NUM_LOTS)]
    return Judged(outcome, cut_of_as_many(outcome, trial.cuts), np.mean(lots, axis=0), trial.full)


def add_rules(report: Report, chains: Sequence[Sequence[RecordedChain]], trials: Sequence[Trial]) -> None:
    """What each rule is worth, set on one set and judged on the other."""
    rules = dict.fromkeys([*(setting.rule["type"] for setting in trials[0].settings), ANY_RULE])
    for is_cheap, suffix in ((False, ""), (True, CHEAP)):
        for rule in rules:
            found = [best_of(trial, rule, is_cheap) for trial in trials]
            if None in found:
                continue
            name = f"{rule}{suffix}"
            pairs = list(zip(chains, trials, reversed(found), strict=True))
            judged = [judge(own, trial, index or 0, report.rng) for own, trial, index in pairs]
            report.setting[name] = " / ".join(str(trials[0].settings[index or 0]) for index in reversed(found))
            add_rule(report, name, judged)
    best = ANY_RULE + CHEAP
    if best in report.setting:
        report.bar(
            f"{best}: points over a fixed cut, lower end",
            value_of(report, f"{best}: points over a fixed cut", "low"),
            ">",
            0.0,
        )
        report.bar(
            f"{best}: computed (kept) to a cut's", value_of(report, f"{best}: computed (kept) to a cut's"), "<=", 1.0
        )


def value_of(report: Report, name: str, end: str = "value") -> float:
    """A figure that was added."""
    value = report.figures[name][end]
    return np.nan if value is None else value


def add_rule(report: Report, name: str, judged: Sequence[Judged]) -> None:
    """Add a rule's figures on all sets together."""
    right = np.concatenate([each.outcome.right for each in judged])
    level = np.concatenate([each.level.right for each in judged])
    report.difference(f"{name}: accuracy", right)
    report.difference(f"{name}: points over a fixed cut", right, level, scale=100)
    for number, each in enumerate(judged):
        report.difference(f"{name}: the same, set {number}", each.outcome.right, each.level.right, scale=100)
    random = np.concatenate([each.random for each in judged])
    report.difference(f"{name}: points over a random exit", right, random, scale=100)
    full = np.concatenate([each.full.right for each in judged])
    report.difference(f"{name}: points over whole chains", right, full, scale=100)
    for cost in ("decoded", *COMPUTED):
        ours = np.concatenate([each.outcome.costs[cost] for each in judged])
        report.saved(f"{name}: {cost} saved", ours, np.concatenate([each.full.costs[cost] for each in judged]))
        if cost != "decoded":
            cuts = np.concatenate([each.level.cost(cost) for each in judged])
            report.ratio(f"{name}: computed ({cost}) to a cut's", ours, cuts)
    report.figure(f"{name}: probes", float(np.mean([each.outcome.costs["probes"].mean() for each in judged])))


# ---- greedy chains


def add_greedy(report: Report, greedy: Sequence[Sequence[RecordedChain]], trials: Sequence[Trial]) -> None:
    """One greedy chain of the first problems, whole and cut at as many tokens as the best rule on drawn chains."""
    cuts = [fixed_cuts(chains) for chains in greedy]
    whole = [each[-1] for each in cuts]
    report.difference("greedy whole chains: accuracy", np.concatenate([each.right for each in whole]))
    report.difference("greedy whole chains: decoded", np.concatenate([each.costs["decoded"] for each in whole]))
    for is_cheap, suffix in ((False, ""), (True, CHEAP)):
        found = [best_of(trial, ANY_RULE, is_cheap) for trial in reversed(trials)]
        if None in found:
            continue
        ours, levels = [], []
        for own, trial, index in zip(cuts, trials, found, strict=True):
            outcome = trial.outcomes[index or 0]
            first = len(own[-1].right)
            outcome = Outcome(
                *(column[:first] for column in outcome[:-1]), {k: v[:first] for k, v in outcome.costs.items()}
            )
            ours.append(outcome.right)
            levels.append(cut_of_as_many(outcome, own).right)
        name = f"{ANY_RULE}{suffix}: points over a greedy chain"
        report.difference(f"{name} cut at as many tokens", np.concatenate(ours), np.concatenate(levels), scale=100)
        report.difference(name, np.concatenate(ours), np.concatenate([each.right for each in whole]), scale=100)


# ---- guarantee


def add_guarantee(report: Report, trials: Sequence[Trial], num_halves: int) -> None:
    """How often a loss is exceeded on the other half, with and without a promise, and what is saved at that price."""
    error = 1.96 * float(np.sqrt(CONFIDENCE * (1 - CONFIDENCE) / num_halves))
    for confidence, what in ((CONFIDENCE, "guarantee"), (None, "no guarantee")):
        for loss, level, (number, trial) in itertools.product(("lost", "differs"), LEVELS, enumerate(trials)):
            name = f"{what}, {loss}, E {level:g}, set {number}"
            lost, saved, passed = [], [], 0
            for _ in range(num_halves):
                choosing, reporting = halves(len(trial.full.right), report.rng)
                index = choose(trial, choosing, level, confidence, report.rng, loss=loss)
                outcome = trial.outcome_of(index)
                decoded = [each.costs["decoded"][reporting].mean() for each in (outcome, trial.full)]
                lost.append(float(getattr(outcome, loss)[reporting].mean()))
                saved.append(1 - decoded[0] / decoded[1])
                passed += index is not None
            share = report.share(f"{name}: halves that lose more", sum(each > level for each in lost), num_halves)
            report.figure(f"{name}: loss", float(np.mean(lost)))
            report.figure(f"{name}: halves with a setting", passed / num_halves)
            report.figure(f"{name}: decoded saved", float(np.mean(saved)), *np.quantile(saved, (0.025, 0.975)))
            if confidence is not None:
                report.bar(f"{name}: halves that lose more", share, "<=", 1 - CONFIDENCE + error)


# ---- live


def add_live(
    report: Report, model: str, trial: Trial, recorded: Sequence[RecordedChain], num_live: int, seed: int
) -> None:
    """A policy of some problems of the first set, on others: what is saved, against the replay's forecast.

    Args:
        report: Gets the figures.
        model: The model.
        trial: Of the first set.
        recorded: Whole chains of the second set, which is answered.
        num_live: Problems of it.
        seed: Of the second set.
    """
    rows = np.arange(min(NUM_CALIBRATED, len(trial.full.right)))
    index = choose(trial, rows, LIVE_LOSS, None, report.rng)
    if index is None:
        raise click.ClickException("no setting passes; there is nothing to run live")
    setting, outcome = trial.settings[index], trial.outcomes[index]
    report.setting["live policy"] = str(setting)
    forecast = report.saved(
        "live: decoded saved, foretold", outcome.costs["decoded"][rows], trial.full.costs["decoded"][rows]
    )
    report.difference(
        "live: points over whole chains, foretold", outcome.right[rows], trial.full.right[rows], scale=100
    )
    samples = load_dataset("tinylm:held_out", num_samples=len(recorded), seed=seed)[:num_live]
    config = load_config(STACK, [f"workers.generation.args.model={model}", f"seed={seed + 1000}"]).resolved()
    config["controller"]["args"] |= {
        **setting.to_json(),
        "chunk_size": None,
        "certainty_threshold": None,
        "max_lead": 1,
    }
    with progress() as bars:
        run = run_stack("live", config, samples, bars)
    whole = {chain.question: chain for chain in recorded}
    plain = [whole[record.id] for record in run.records]
    saved = report.saved("live: decoded saved", run.decoded, [chain.num_tokens for chain in plain])
    right = [float(chain.full == chain.target) for chain in plain]
    report.difference("live: points over whole chains", run.correct, right, scale=100)
    report.figure(
        "live: stopped", float(np.mean([record.exit_reason not in ("end", "length") for record in run.records]))
    )
    vain = [record.ledger["by_purpose"].get("discarded", {"decoded": 0})["decoded"] for record in run.records]
    report.figure("live: decoded in vain", float(np.mean(vain)))
    report.bar("live: decoded saved, from the forecast's lower end", saved.value - forecast.low, ">=", 0.0)
    report.bar("live: decoded saved, to the forecast's upper end", saved.value - forecast.high, "<=", 0.0)


def plot(figures: Figures, path: Path) -> None:
    """Draw what every rule gains over a cut of as many tokens, and its accuracy against the tokens that it saves."""
    names = [name.partition(OVER_CUT)[0] for name in figures if name.endswith(OVER_CUT)]
    arguments = load_config(STACK).controller.args
    default = arguments.get("rule", {"type": "consecutive" if "certainty_threshold" in arguments else "all"})["type"]
    with drawing(path, 1, 2, figsize=(13, 5)) as (_, (gained, places)):
        found = {name: of(figures, name + OVER_CUT) for name in names}
        cut = of(figures, f"{ANY_RULE}: points over a greedy chain cut at as many tokens")
        found[f"{ANY_RULE}, over a cut of chains that are {GREEDY}"] = cut
        rows(gained, {name: each for name, each in found.items() if each is not None}, default=default)
        gained.axvline(0.0, color="black", linewidth=0.8)
        gained.set(xlabel="points over a fixed cut that decodes as many tokens (95 %)")
        gained.set_title(
            "Right of 0 a rule is worth its probes\n(bold, ring: the rule of the stack that ships, set here)"
        )
        for number, name in enumerate(name for name in names if not name.startswith(ANY_RULE)):
            saved, accuracy = of(figures, f"{name}: decoded saved", 100), of(figures, f"{name}: accuracy", 100)
            if saved is not None and accuracy is not None and not name.endswith(CHEAP):
                point(places, saved, accuracy, name, is_default=name == default, **coloured(number))
        whole, length = (
            of(figures, f"whole chains: {what}", scale) for what, scale in (("accuracy", 100), ("decoded", 1))
        )
        if whole is not None and length is not None:
            point(places, Estimate(0.0, 0.0, 0.0), whole, "whole chains", color="black")
            accuracy, tokens = (
                of(figures, "greedy whole chains: accuracy", 100),
                of(figures, "greedy whole chains: decoded"),
            )
            if accuracy is not None and tokens is not None:
                saved = Estimate(*(100 * (1 - end / length.value) for end in (tokens.value, tokens.high, tokens.low)))
                point(places, saved, accuracy, f"whole chains, {GREEDY}", color="black")
        places.set(xlabel="decoded tokens saved of whole chains, %", ylabel="accuracy, % (95 %)")
        places.set_title("What lies further right saves more,\nwhat lies higher is right more often")
        beside(places)


@benchmark("studies.stopping --store FOLDER --plot_path frontier.png")
@size("--num_problems", 1000, quick=24, help="Problems of each of the two sets.", least=8)
@size("--num_greedy", 500, quick=12, help="Of them those that are also answered greedily.", least=2)
@size("--num_live", 600, quick=12, help="Problems that are answered live; 0 leaves that out.", least=0)
@size("--num_halves", 200, quick=20, help="Random halves of the guarantee.", least=2)
@click.option("--model", default="tinylm/target", show_default=True, help="Embedded model.")
@stored
@plotted
def main(
    report: Report,
    num_problems: int,
    num_greedy: int,
    num_live: int,
    num_halves: int,
    model: str,
    store: Path | None,
    plot_path: Path | None,
) -> None:
    """Stopping rules at equal tokens, the guarantee of a calibrated policy, and what it saves live."""
    with tempfile.TemporaryDirectory() as folder:
        seeds = [report.seed + number for number in range(NUM_SETS)]
        root = Path(folder) if store is None else store
        chains = [record_chains(root / str(seed), model, num_problems, seed) for seed in seeds]
        greedy = [record_chains(root / f"{seed}_greedy", model, num_greedy, seed, greedy=True) for seed in seeds]
        settings = list(settings_to_try(chains[0], SPACING))
        with progress() as bars:
            bar = bars.add_task("replayed settings", total=NUM_SETS * len(settings))
            trials = [
                play_settings(root / str(seed), own, settings, lambda setting: bars.advance(bar))
                for seed, own in zip(seeds, chains, strict=True)
            ]
    full = [trial.full for trial in trials]
    report.difference("whole chains: accuracy", np.concatenate([each.right for each in full]))
    for cost in ("decoded", "kept"):
        report.difference(f"whole chains: {cost}", np.concatenate([each.costs[cost] for each in full]))
    add_rules(report, chains, trials)
    add_greedy(report, greedy, trials)
    add_guarantee(report, trials, num_halves)
    if plot_path is not None:
        plot(report.figures, plot_path)
    if num_live:
        add_live(report, model, trials[0], chains[1], num_live, seeds[1])


if __name__ == "__main__":
    main()
