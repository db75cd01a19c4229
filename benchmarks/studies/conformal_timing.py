"""How long chains take that wait for no other: the conformal rule against ranking, and the target's memory.

    python -m benchmarks.studies.conformal_timing --plot_path conformal_timing.png

All systems run on the same two engines in one process, one question after the other, each question by every system in
an order that is drawn. They differ in who decides, and in whether chains wait for each other:

- `conformal`: each chain goes on as soon as it is decided;
- `conformal in step`: the same decisions, but all chains wait for each other (what asynchrony alone brings);
- `ranking`: the strangest share of each turn, which has to wait (what the bar is against);
- `coin`: takes over as often, whatever the chunk, and waits for nobody; its chunks are scored all the same;
- `target only`.

Once as the engines are on this machine, where both models are about as fast. Once with calls that take as long as those
of larger models, by a worker that sleeps: a pass reads the weights of a model of 8.03 and 32.5 billion parameters in
bfloat16 at 2.04 TB/s (one A100 of 80 GB: 7.9 and 31.9 ms), and a token that is read or scored costs 2 operations a
parameter at half of 312 TFLOP/s (0.1 and 0.42 ms). That is the authors' pair, R1-Distill-Llama-8B drafting for QwQ-32B;
decoding is bound by memory, so concurrent calls overlap and cost no more than one.

A1's asynchronous arithmetic intensity is `r = T_c / (T_m + T_s)`: the time for computing, over that for reading memory
and that for waiting. Here, of a request:

- T_c and T_m split each engine's busy time by a measured roofline (`roofline.py`): what grows with the tokens is T_c,
  and what its steps cost whatever their tokens is T_m;
- T_s is the time that chains wait: from when a chunk is drafted and scored until its decision is acted on, and until
  the target has a place for its call, summed over the chains as T_c and T_m are summed over them.

Reference:
    A1, "Asynchronous test-time scaling via conformal prediction", arXiv:2509.15148, asynchronous arithmetic intensity.

Deviation:
    The paper gives no procedure for T_s and drops T_m in its figures; here both are measured and kept. A step's fixed
    cost on a CPU is mostly calling the layers and not reading weights, and counts as T_m all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks._lib.command import benchmark, plotted, progress, size, stored
from benchmarks._lib.draft_target import Setting, calibrated, controller
from benchmarks._lib.lab import MODELS, Lab, draft_and_target, questions_of, told_apart
from benchmarks._lib.latency import SetLatency
from benchmarks._lib.report import Report
from benchmarks._lib.roofline import BATCH_SIZES, Roofline, measured
from benchmarks._lib.timing import InStep, System, Timed, Timer
from benchmarks._lib.timing_figures import plot
from scaffolding_ext.controllers.draft_target.baselines import Coin, Ranking, ReflectionWords, SpecReasonScores
from scaffolding_ext.evaluation.preflight.schedule import Latency, scheduled_ends
from scaffolding_ext.prompts.prompting import model_folder
from scaffolding_ext.protocol import Worker
from scaffolding_ext.stats.power import required_num_questions

LATENCIES = {"draft": Latency(0.008, 0.0001), "target": Latency(0.032, 0.00042)}
ALPHA = 0.25
BAR = 0.8
MAX_CALLS = 4
AT_ONCE = 4  # questions side by side where latencies are set: their calls overlap
CALIBRATION_CHAINS = 4  # of each question
CHAIN_COUNTS = (1, 2, 4, 8, 16, 32)
SPEED_RATIOS = (1, 2, 4, 8, 16)
COMPLETIONS: dict[str, Callable[[Sequence[float]], Any]] = {"mean": np.mean, "last": np.max}
PARTS = ("as_is", "set", "chains")
MEASURABLE_S = 0.001  # of waiting, for a chunk: an event loop's turn beside engines that compute takes as long


def kv_bytes_per_token(model: str) -> int:
    """Bytes of keys and values of a token in float32, by the model's configuration."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model_folder(model))
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * 4 * int(config.num_hidden_layers * config.num_key_value_heads * head_dim)


class Study:
    """Runs the parts and reports on them.

    Args:
        timer: Runs systems.
        setting: Of all systems.
        turns: Pool of each turn.
        report: Gets the figures.
    """

    def __init__(self, timer: Timer, setting: Setting, turns: list[list[float]], report: Report) -> None:
        self.timer, self.setting, self.turns, self.report, self.rng = timer, setting, turns, report, report.rng
        self.bytes_per_token = 0  # of the target's keys and values

    def systems(self, draft: Worker, target: Worker) -> dict[str, System]:
        """All systems on two workers."""
        conformal = controller(self.setting, ALPHA, self.turns)
        rules = {
            "conformal": None,
            "conformal in step": InStep(conformal.rule),
            "ranking": Ranking(ALPHA),
            "coin": Coin(ALPHA, scores=True),
        }
        made = {name: controller(self.setting, ALPHA, self.turns, rule) for name, rule in rules.items()}
        systems = {name: System(one, draft, target) for name, one in made.items()}
        return systems | {"target only": System(controller(self.setting, rule=Coin(0.0)), target, target)}

    def completions(self, part: str, prompts: list[str]) -> None:
        """Completion of chains of all systems, as the engines are or with latencies set."""
        workers: dict[str, Worker] = dict(self.timer.lab.workers)
        if part == "set":
            workers = {tag: SetLatency(engine, LATENCIES[tag]) for tag, engine in self.timer.lab.workers.items()}
        at_once = AT_ONCE if part == "set" else 1
        systems = self.systems(workers["draft"], workers["target"])
        if part == "set":  # all chains on one engine take longer than what is set; the schedule has it
            del systems["target only"]
        found = self._measured(part, systems, prompts, at_once)
        for name, timed in found.items():
            chunks = [chunk for one in timed for chunk in one.chunks]
            if name != "target only":
                self.report.figure(f"{part}: {name}, rate", float(np.mean([bool(c.target_tokens) for c in chunks])))
            for what, take in COMPLETIONS.items():
                values = [float(take(one.ends)) for one in timed]
                self.report.difference(f"{part}: {name}, {what} completion (s)", values)
        for name in found:
            if name != "ranking":
                self._compare(part, found, name, "ranking")
        self._compare(part, found, "conformal", "conformal in step")
        if part == "as_is":
            self._compare(part, found, "conformal", "target only")
        if part == "as_is":
            self._scheduled(found)

    def _compare(self, part: str, found: dict[str, list[Timed]], ours: str, theirs: str) -> None:
        """Ratios of completions by question, and for the bar how many questions would show it."""
        for what, take in COMPLETIONS.items():
            a, b = (np.array([float(take(one.ends)) for one in found[name]]) for name in (ours, theirs))
            name = f"{part}: {ours} over {theirs}, {what} completion"
            ratio = self.report.ratio(name, a, b)
            if (ours, theirs) == ("conformal", "ranking"):
                self.report.bar(name, ratio.value, "<=", BAR)
                needed = required_num_questions(BAR * b - a, bar=0.0, rng=self.rng, num_simulations=1_000)
                if needed is not None:
                    self.report.figure(f"{name}: questions for power 0.9 to be under {BAR}", needed)

    def _scheduled(self, found: dict[str, list[Timed]]) -> None:
        """The ratio if nothing but the models' latencies took time, by the target's speed."""
        draft, target = LATENCIES["draft"], LATENCIES["target"]
        for speed in SPEED_RATIOS:
            slower = Latency(draft.pass_s * speed, target.token_s * speed * draft.pass_s / target.pass_s)
            alone = (slower, Latency(0.0, 0.0), False)  # the target drafts, and nobody scores
            schedules = {"conformal": (draft, slower, False), "target only": alone}
            for theirs in ("ranking", "conformal in step", "target only"):
                for what, take in COMPLETIONS.items():
                    a, b = (
                        [float(take(scheduled_ends(one.chunks, *models, in_step=in_step))) for one in found[name]]
                        for name, (*models, in_step) in (
                            ("conformal", schedules["conformal"]),
                            (theirs, schedules.get(theirs, (draft, slower, True))),
                        )
                    )
                    name = f"schedule: conformal over {theirs}, target {speed} times slower, {what} completion"
                    self.report.ratio(name, a, b)

    def by_chains(self, prompts: list[str], chain_counts: tuple[int, ...], lines: Mapping[str, Roofline]) -> None:
        """Asynchronous arithmetic intensity and the target's memory against the number of chains."""
        draft, target = (self.timer.lab.workers[tag] for tag in MODELS)
        for chains in chain_counts:
            setting = self.setting._replace(num_chains=chains)
            conformal = controller(setting, ALPHA, self.turns)
            systems = {
                "conformal": System(conformal, draft, target),
                "ranking": System(controller(setting, rule=Ranking(ALPHA)), draft, target),
                f"budget of {MAX_CALLS}": System(conformal, draft, target, MAX_CALLS),
                "SpecReason": System(controller(setting, rule=SpecReasonScores()), draft, target),
                "SpecThink": System(controller(setting, rule=ReflectionWords()), draft, target),
                "target only": System(controller(setting, rule=Coin(0.0)), target, target),
            }
            found = self._measured(f"chains_{chains}", systems, prompts)
            for name, timed in found.items():
                self._intensity(f"{name}, {chains} chains", timed, lines)
                self._memory(f"{name}, {chains} chains", timed)
                self._throughput(f"{name}, {chains} chains", timed)
                if chains == chain_counts[-1]:
                    self._by_turn(f"{name}, {chains} chains", timed)

    def _intensity(self, title: str, timed: list[Timed], lines: Mapping[str, Roofline]) -> None:
        compute, other = np.zeros(len(timed)), np.zeros(len(timed))
        waiting = np.array([sum(c.seconds_waited for c in one.chunks) + sum(one.waited) for one in timed])
        for tag, line in lines.items():
            busy = np.array([one.busy[tag].seconds for one in timed])
            if not any(one.busy[tag].num_steps for one in timed):  # the target alone has no draft
                continue
            shares = np.array([line.compute_share(*one.busy[tag][1:]) for one in timed])
            idle = np.array([one.seconds for one in timed]) - busy
            expected = np.array([line.seconds(*one.busy[tag][1:]) for one in timed])
            compute += busy * shares
            other += busy * (1 - shares)
            parts = {"T_c": busy * shares, "T_m": busy * (1 - shares), "idle": idle}
            for what, seconds in parts.items():
                self.report.figure(f"{title}: {tag}, {what} (s)", float(seconds.mean()))
            self.report.figure(
                f"{title}: {tag}, busy over what the roofline expects", float(busy.sum() / expected.sum())
            )
        self.report.figure(f"{title}: T_s (s, summed over chains)", float(waiting.mean()))
        chunks_waited = sum(len(one.chunks) + len(one.waited) for one in timed)
        if waiting.sum() >= MEASURABLE_S * chunks_waited:
            self.report.ratio(f"{title}: r", compute, other + waiting)

    def _memory(self, title: str, timed: list[Timed]) -> None:
        measured = {
            "most calls": [float(one.most_calls) for one in timed],
            "most tokens": [float(one.most_tokens) for one in timed],
            "seconds waited by a call": [float(np.mean(one.waited)) for one in timed],
            "last completion (s)": [max(one.ends) for one in timed],
        }
        for what, values in measured.items():
            self.report.difference(f"{title}: {what}", values)

    def _throughput(self, title: str, timed: list[Timed]) -> None:
        """Decoded tokens a second of both engines, time to the answer, and bytes of the target's KV."""
        decoded = [float(sum(busy.num_decoded for busy in one.busy.values())) for one in timed]
        seconds = [one.seconds for one in timed]
        self.report.ratio(f"{title}: decoded tokens a second", decoded, seconds)
        self.report.difference(f"{title}: seconds to the answer", seconds)
        self.report.difference(f"{title}: mean completion (s)", [float(np.mean(one.ends)) for one in timed])
        most = [one.most_tokens * self.bytes_per_token for one in timed]
        self.report.figure(f"{title}: most bytes of the target's KV", float(np.mean(most)))

    def _by_turn(self, title: str, timed: list[Timed]) -> None:
        """Chains that reach a turn, and the share of them that the target takes over there."""
        for turn in range(self.setting.max_turns):
            fired = [bool(chunk.target_tokens) for one in timed for chunk in one.chunks if chunk.turn == turn]
            self.report.figure(f"{title}: chains at turn {turn}", float(len(fired)))
            if fired:
                self.report.figure(f"{title}: taken over at turn {turn}", float(np.mean(fired)))

    def _measured(
        self, name: str, systems: Mapping[str, System], prompts: list[str], at_once: int = 1
    ) -> dict[str, list[Timed]]:
        measured = self.timer.measured(name, systems, prompts, at_once)
        load = measured.load
        self.report.figure(f"{name}: load average (mean, least, most)", float(np.mean(load)), min(load), max(load))
        for tag, (late_s, set_s) in measured.late.items():
            self.report.figure(f"{name}: {tag}, seconds late over seconds set", late_s / set_s)
        return measured.timed


@benchmark("studies.conformal_timing --num_problems 24 --store runs/timing --plot_path timing.png")
@click.option("--part", "parts", type=click.Choice(PARTS), multiple=True, default=PARTS, help="Repeatable; all parts.")
@draft_and_target
@size("--num_problems", 24, quick=2, help="Questions whose chains are timed.")
@size("--num_set", 24, quick=2, help="Of them, those that run with latencies set, too.")
@size("--num_counted", 6, quick=2, help="Of them, those at every number of chains.")
@size("--num_chains", 16, quick=3, help="Chains a question.")
@size("--max_tokens", 720, quick=96, help="Tokens of a chain.")
@size("--num_counts", len(CHAIN_COUNTS), quick=2, help="Numbers of chains, and batch sizes of the roofline beyond two.")
@stored
@plotted
def main(
    report: Report,
    parts: tuple[str, ...],
    model: str,
    draft: str,
    base_url: str | None,
    dataset: str,
    num_problems: int,
    num_set: int,
    num_counted: int,
    num_chains: int,
    max_tokens: int,
    num_counts: int,
    store: Path | None,
    plot_path: Path | None,
) -> None:
    """Wall-clock of asynchronous chains against synchronous ones, arithmetic intensity, and the target's memory."""
    seed, chain_counts = report.seed, CHAIN_COUNTS[:num_counts]
    folder = store and store / f"timing_seed{seed}_problems{num_problems}_chains{num_chains}_tokens{max_tokens}"
    folder = folder and folder.with_name(folder.name + told_apart(model, draft, dataset))
    if base_url is not None and "chains" in parts:
        raise click.UsageError("--part chains measures the engine itself: leave it out where a server has the models.")
    setting = Setting(num_chains, 48, max_tokens, 15, "resample")
    latencies = {f"{tag}_set_{key}": value for tag, one in LATENCIES.items() for key, value in one._asdict().items()}
    report.setting |= setting._asdict() | latencies
    report.setting |= {"alpha": ALPHA, "at_once_where_set": AT_ONCE}
    models = {"draft": draft, "target": model}
    samples = questions_of(dataset, num_problems + 1, seed)
    warm_up, prompts = samples[-1].prompt, [sample.prompt for sample in samples[:-1]]
    num_groups = {"as_is": 5 * num_problems, "set": 4 * -(-num_set // AT_ONCE)}
    num_groups["chains"] = 6 * num_counted * len(chain_counts)
    with Lab(models, seed=seed, store=folder, base_url=base_url, max_batch_size=128) as lab, progress() as bars:
        bar = bars.add_task("questions of systems", total=sum(num_groups[part] for part in parts))
        timer = Timer(lab, np.random.default_rng(seed + 1), warm_up, lambda: bars.advance(bar))
        fewer = setting._replace(num_chains=CALIBRATION_CHAINS)
        turns = calibrated(lab, "calibration", controller(fewer, ALPHA), samples[:-1]).turns
        study = Study(timer, setting, turns, report)
        study.bytes_per_token = kv_bytes_per_token(model) if base_url is None else 0
        if "chains" in parts:
            rng = np.random.default_rng(seed + 2)
            lines = {tag: measured(lab, tag, rng, BATCH_SIZES[: num_counts + 2]) for tag in MODELS}
            for tag, line in lines.items():
                for what, value in line._asdict().items():
                    report.figure(f"roofline: {tag}, {what}", value)
            study.by_chains(prompts[:num_counted], chain_counts, lines)
        if "as_is" in parts:
            study.completions("as_is", prompts)
        if "set" in parts:
            study.completions("set", prompts[:num_set])
    if plot_path is not None:
        plot(report.figures, plot_path, f"{num_problems} questions, {num_chains} chains, alpha {ALPHA:g}")


if __name__ == "__main__":
    main()
