"""Chains that repeat themselves: how seldom a chain is stopped that would have answered, and what a stop saves.

    python -m benchmarks.studies.loops --samples a1_runs.jsonl.gz --samples samples.jsonl --shows_stops
    python -m benchmarks.studies.loops --model FOLDER --dataset math500.jsonl --num_problems 24 --max_tokens 500

On recorded chains (rows of `turns` or of `samples`) the watch is played: every stop is counted as false where the chain
wrote a box behind it, and as left again where most of what follows is new. Two other ways to cut are held against it:
as many chains at random places, and all chains at the length that saves as much.

Live, a model answers with the watch and without, greedily by default; beside it stand a fixed cut and a random one, and
chains that are asked at the end of their budget. Last, what a look costs a token (CPU time, the least of five).
"""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from benchmarks._lib.command import benchmark, size
from benchmarks._lib.lab import Lab
from benchmarks._lib.provenance import DATA
from benchmarks._lib.report import Report
from scaffolding_ext import NativeGenerationController, ScaffoldingLlm
from scaffolding_ext.answers import extract
from scaffolding_ext.controllers.chain.chain import LOOP_STEP
from scaffolding_ext.controllers.chain.probe import asked_answer
from scaffolding_ext.controllers.repetition import CHARACTERS, Loop, Loops
from scaffolding_ext.evaluation.run.datasets import Example, load_dataset
from scaffolding_ext.evaluation.run.scoring import score
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.task_results import output_of
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.request.results import ScaffoldingResult

ANSWER_TOKENS = 64
LEAST_NEW = 0.5  # of what follows a stop, where the chain has left its loop
NUM_DRAWS = 200
REPEATS = (2, 3, 4, 6, 8)
LINE_REPEATS = (8, 12, 16, 24, 32)
_BOX = re.compile(r"\\boxed")


class Chain(NamedTuple):
    """A recorded chain: where it stands in its file, its text, and the right answer."""

    place: str
    text: str
    target: str


class Stop(NamedTuple):
    """Where a chain is cut, and since what repeats; of a cut without a loop, nothing."""

    chain: Chain
    end: int
    loop: Loop | None = None

    @property
    def rest(self) -> str:
        return self.chain.text[self.end :]

    @property
    def loses_box(self) -> bool:
        """Whether the chain wrote a box behind it."""
        return _BOX.search(self.rest) is not None

    @property
    def loses_answer(self) -> bool:
        """Whether it ended with the right answer."""
        return self.loses_box and is_right(extract(self.chain.text), self.chain.target)

    @property
    def is_left_again(self) -> bool:
        """Whether most of what follows had not been written before."""
        seen, size = self.chain.text[: self.end], 40
        parts = [self.rest[at : at + size] for at in range(0, max(1, len(self.rest) - size), size)]
        return sum(part not in seen for part in parts) > LEAST_NEW * len(parts)


def is_right(answer: str | None, target: str) -> bool:
    """Whether an answer is the target's."""
    return score(answer, target).correct


def read_chains(path: Path) -> Iterator[Chain]:
    """The chains of a file: of each row its turns as one chain, or each of its samples."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    for number, line in enumerate(content.splitlines()):
        row = json.loads(line)
        if "turns" in row:
            text = "".join((turn["draft"] or "") + (turn["target"] or "") for turn in row["turns"])
            yield Chain(f"{path.name}:{number}", text, row["answer"])
        for index, sample in enumerate(row.get("samples", ())):
            yield Chain(f"{path.name}:{number}.{index}", sample["text"], row["answer"])


def stop_of(chain: Chain, loops: Loops) -> Stop | None:
    """Where the watch stops a recorded chain, whose tokens are not known: it looks every 64 times four characters."""
    step, reach = LOOP_STEP * CHARACTERS, loops.reach * CHARACTERS
    for end in range(step, len(chain.text) + 1, step):
        found = loops.find(chain.text[max(0, end - reach) : end])
        if found is not None:
            return Stop(chain, end, found)
    return None


def stops_of(chains: Sequence[Chain], loops: Loops) -> list[Stop]:
    """Where the watch stops recorded chains."""
    return [stop for chain in chains if (stop := stop_of(chain, loops)) is not None]


def tell(report: Report, name: str, stops: Sequence[Stop], chains: Sequence[Chain]) -> None:
    """What a way to cut does."""
    report.share(f"{name}: chains cut", len(stops), len(chains))
    report.share(f"{name}: boxes lost, of all chains", sum(stop.loses_box for stop in stops), len(chains))
    report.figure(f"{name}: right answers lost", sum(stop.loses_answer for stop in stops))
    report.figure(f"{name}: text saved, share", saved_by(stops) / total(chains))


def saved_by(stops: Iterable[Stop]) -> int:
    return sum(len(stop.rest) for stop in stops)


def total(chains: Iterable[Chain]) -> int:
    return sum(len(chain.text) for chain in chains)


def fixed_cut(lengths: Sequence[int], wanted: float) -> int:
    """The length at which all are cut so that `wanted` is saved in all, at least."""
    low, high = 0, max(lengths)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(max(0, length - middle) for length in lengths) >= wanted:
            low = middle
        else:
            high = middle - 1
    return low


def recorded(report: Report, chains: Sequence[Chain], shows: bool) -> None:
    """The watch on recorded chains."""
    stops = stops_of(chains, Loops())
    report.figure("chains", len(chains))
    tell(report, "loops", stops, chains)
    report.share("loops: left again, of the stops", sum(stop.is_left_again for stop in stops), max(1, len(stops)))
    report.bar("stops in front of a box", sum(stop.loses_box for stop in stops), "<=", 0)
    place = fixed_cut([len(chain.text) for chain in chains], saved_by(stops))
    tell(report, "fixed cut", [Stop(chain, place) for chain in chains if len(chain.text) > place], chains)
    lost = []
    for _ in range(NUM_DRAWS):
        drawn = report.rng.choice(len(chains), len(stops), replace=False)
        cuts = [Stop(chains[at], int(report.rng.random() * len(chains[at].text))) for at in drawn]
        lost.append(sum(cut.loses_box for cut in cuts))
    report.figure(f"random cut: boxes lost, mean of {NUM_DRAWS} draws", float(np.mean(lost)))
    for repeats in REPEATS:
        tell(report, f"cycles, {repeats} times", stops_of(chains, Loops(repeats, line_repeats=0)), chains)
    for repeats in LINE_REPEATS:
        found = [s for s in stops_of(chains, _lines_alone(repeats)) if s.loop]
        tell(report, f"lines, {repeats} times", found, chains)
    for stop in stops if shows else ():
        before, behind = stop.chain.text[max(0, stop.end - 300) : stop.end], stop.rest[:200]
        facts = f"at {stop.end} of {len(stop.chain.text)}, {stop.loop}, left again: {stop.is_left_again}"
        click.echo(f"{stop.chain.place} {facts}\n  {before!r}\n  then {behind!r}", err=True)


def _lines_alone(repeats: int) -> Loops:
    loops = Loops(line_repeats=repeats)
    loops._cycle = lambda symbols, scale: None  # type: ignore[method-assign]
    return loops


class Answered(NamedTuple):
    """What a way to cut came to on one problem."""

    num_tokens: int
    answer: str | None


class Live:
    """A model, the plain chains that it wrote, and what it answers where they are cut.

    A chain that is cut is the beginning of the chain that is not: the same tokens, whatever its temperature. So each
    chain is decoded once, and every way to cut it asks the model behind that beginning.
    """

    def __init__(self, lab: Lab, samples: Sequence[Example], max_tokens: int, temperature: float) -> None:
        self.lab, self.samples = lab, samples
        self.sampling = {"temperature": temperature, "max_tokens": max_tokens}
        self.off = self.plain(range(len(samples)))

    def plain(self, numbers: Sequence[int], loops: Loops | None = None) -> list[ScaffoldingResult]:
        """Plain chains on problems, of all with one seed each."""
        controller = NativeGenerationController(self.sampling)
        controller.loops = loops
        controller.prompting = self.lab.prompting
        with ScaffoldingLlm(controller, dict(self.lab.workers), 64, seed=self.lab.seed) as llm:
            asked = [llm.generate_async(self.samples[n].prompt, sample_id=str(n)) for n in numbers]
            return [result.result() for result in asked]

    def loop_of(self, number: int) -> tuple[int, Loop] | None:
        """Where the watch stops a chain, and why; None where it does not."""
        output, loops = self.off[number].outputs[0], Loops()
        ids, prompting = list(output.token_ids or ()), self.lab.prompting
        for end in range(LOOP_STEP, len(ids) + 1, LOOP_STEP):
            text = prompting.decode(ids[max(0, end - loops.reach) : end])
            if prompting.family.think_close in prompting.decode(ids[:end]):
                return None
            if (found := loops.find(text, ids[max(0, end - loops.reach) : end])) is not None:
                return end, found
        return None

    def cut(self, places: Mapping[int, int]) -> list[Answered]:
        """All problems, with the chains of some cut and asked for their answers; the others end as they do."""
        prompting, tasks = self.lab.prompting, dict[int, GenerationTask]()
        for number, place in places.items():
            prompt = GenerationTask(input_str=self.samples[number].prompt)
            prompting.apply(prompt)
            ids = without_end_of(self.lab, list(self.off[number].outputs[0].token_ids or ()))[:place]
            text = prompting.decode(ids)
            family = prompting.family
            close = family.close_closed if family.think_close in text else family.close
            task = GenerationTask(worker_tag=WorkerTag.GENERATION, max_tokens=ANSWER_TOKENS, temperature=0.0)
            task.input_tokens = [*(prompt.input_tokens or ()), *ids, *prompting.encode(close)]
            tasks[number] = task
        self.lab.ask("generation", list(tasks.values()))
        found = []
        for number, result in enumerate(self.off):
            if number in tasks:
                written = tasks[number]
                answer = asked_answer(written) or output_of(written).strip(" }\n").partition("\n")[0] or None
                found.append(Answered(places[number] + len(written.output_tokens or ()), answer))
            else:
                found.append(Answered(result.program.ledger.num_decoded, result.answer))
        return found

    def tell(self, report: Report, name: str, answered: Sequence[Answered]) -> None:
        """Tokens, answers, and how many of them are right."""
        base = [float(result.program.ledger.num_decoded) for result in self.off]
        report.saved(f"{name}: tokens saved", [float(each.num_tokens) for each in answered], base)
        report.share(f"{name}: answered", sum(each.answer is not None for each in answered), len(answered))
        pairs = zip(answered, self.samples, strict=True)
        report.share(
            f"{name}: right", sum(is_right(each.answer, sample.target) for each, sample in pairs), len(answered)
        )


def without_end_of(lab: Lab, ids: list[int]) -> list[int]:
    """The ids of an ended text, without its end token."""
    return ids[:-1] if ids and not lab.prompting.decode(ids[-1:]) else ids


def live(report: Report, at_work: Live) -> list[tuple[str, list[int]]]:
    """The watch on running chains; returns the texts without it, and their tokens."""
    off = at_work.off
    num = len(off)
    loops = {number: found for number in range(num) if (found := at_work.loop_of(number)) is not None}
    places = {number: place for number, (place, _) in loops.items()}
    lengths = [len(result.outputs[0].token_ids or ()) for result in off]
    report.share("live: chains that loop", len(loops), num)
    report.share("live: chains that end at their budget", sum(r.exit_reason == "length" for r in off), num)
    report.figure("live: share of all tokens behind a stop", sum(lengths[n] - places[n] for n in places) / sum(lengths))
    watched = at_work.plain(list(loops), Loops())
    differ = sum(
        result.exit_reason != "loop" or event_of(result)["position"] != place
        for result, place in zip(watched, places.values(), strict=True)
    )
    report.bar("live: running chains that stop elsewhere than the replayed ones", differ, "<=", 0)
    on = at_work.cut(places)
    own = [number for number in loops if off[number].answer is not None]
    report.figure("live: chains that loop, and answer by themselves without the watch", len(own))
    changed = [number for number in own if not is_right(on[number].answer, str(off[number].answer))]
    report.bar("live: own answers that the watch changed", len(changed), "<=", 0)
    for number, (place, loop) in loops.items():
        facts = f"{loop.unit}, period {loop.period}, at {place} of {lengths[number]}"
        click.echo(f"loop {number}: {facts}; {off[number].answer!r}, with {on[number].answer!r}", err=True)
    at_work.tell(report, "live, off", at_work.cut({}))
    at_work.tell(report, "live, on", on)
    at_end = {number: lengths[number] for number in range(num) if off[number].exit_reason == "length"}
    at_work.tell(report, "live, off and asked at the budget's end", at_work.cut(at_end))
    if loops:
        asked_too = at_end | places
        at_work.tell(report, "live, on and asked at the budget's end", at_work.cut(asked_too))
        place = fixed_cut(lengths, sum(lengths[number] - places[number] for number in places))
        longer = {number: place for number in range(num) if lengths[number] > place}
        report.figure("live, fixed cut: tokens of a chain", place)
        at_work.tell(report, "live, fixed cut", at_work.cut(longer))
        drawn = report.rng.choice(num, len(loops), replace=False)
        random = {int(number): max(1, int(report.rng.random() * lengths[number])) for number in drawn}
        at_work.tell(report, "live, random cut", at_work.cut(random))
    return [(result.outputs[0].text or "", list(result.outputs[0].token_ids or ())) for result in off]


def event_of(result: ScaffoldingResult) -> dict[str, Any]:
    """What the trace says of a loop."""
    return next((event for event in result.program.trace if event["event"] == "loop"), {"position": None})


def cost(report: Report, texts: Sequence[tuple[str, list[int]]], num_tokens: int) -> None:
    """CPU time of all looks at one long chain, made of many texts, a token."""
    text, ids = "", list[int]()
    while len(ids) < num_tokens:
        for own_text, own_ids in texts:
            text, ids = f"{text}\n{own_text}", ids + own_ids
            if len(ids) >= num_tokens:
                break
    loops, ratio = Loops(), len(text) / len(ids)
    for name, is_known in (("token ids", True), ("text alone", False)):
        looks = [
            (
                text[max(0, int(end * ratio) - loops.reach * CHARACTERS) : int(end * ratio)],
                ids[max(0, end - loops.reach) : end] if is_known else None,
            )
            for end in range(LOOP_STEP, len(ids) + 1, LOOP_STEP)
        ]
        spent = []
        for _ in range(5):
            began = time.process_time()
            for look in looks:
                loops.find(*look)
            spent.append(time.process_time() - began)
        report.figure(f"cost, {name}: microseconds a token", min(spent) / len(ids) * 1e6)
        report.bar(f"cost, {name}: microseconds a token", min(spent) / len(ids) * 1e6, "<=", 1.0)


@benchmark("studies.loops --samples runs/samples.jsonl")
@click.option("--samples", type=DATA, multiple=True, help="Recorded chains; may be repeated.")
@click.option("--shows_stops", is_flag=True, help="Print every stop on recorded chains, to be looked at.")
@click.option("--model", default="tinylm/target", show_default=True, help="Embedded model, or a folder.")
@click.option("--dataset", type=DATA, help="Problems of `math500`; without it, embedded ones.")
@size("--num_problems", 100, quick=6, help="Problems answered live.")
@size("--max_tokens", 1200, quick=300, help="Of a chain.")
@click.option("--temperature", default=0.0, show_default=True, help="Of a chain.")
def main(
    report: Report,
    samples: tuple[Path, ...],
    shows_stops: bool,
    model: str,
    dataset: Path | None,
    num_problems: int,
    max_tokens: int,
    temperature: float,
) -> None:
    """Chains that repeat themselves: false stops on recorded chains, loops caught live, and what a look costs."""
    if samples:
        recorded(report, [chain for path in samples for chain in read_chains(path)], shows_stops)
    if dataset is None:
        problems = load_dataset("tinylm:held_out", num_samples=num_problems, seed=report.seed)
    else:
        problems = load_dataset(str(dataset), format="math500", limit=str(num_problems))
    with Lab({"generation": model}, seed=report.seed) as lab:
        texts = live(report, Live(lab, problems, max_tokens, temperature))
    cost(report, texts, 4 * 4096)


if __name__ == "__main__":
    main()
