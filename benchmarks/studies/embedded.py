"""Stops and cuts on the embedded model. How much is saved was decided by how the model was taught.

    python -m benchmarks.studies.embedded --store FOLDER --json

Chains of `configs:dynasor_cot`, drawn and greedy, are recorded with the stack's own probes. Every rule is set on some
problems and judged on others, beside the cut that decodes and the cut that computes as much, of drawn and of greedy
chains.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from benchmarks._lib.command import benchmark, size, stored
from benchmarks._lib.report import Report
from benchmarks._lib.runs import recorded_samples
from benchmarks._lib.stops import ANY_RULE, add_stops, cut_of_as_many, fixed_cuts, judge, rules_of
from scaffolding_ext.evaluation.logs.samples import Recording
from scaffolding_ext.stack.load import load_config

DRAWN, GREEDY = "drawn", "greedy"
LOOK_EVERY = 16  # tokens, half of those between the probes of the stack


def add_greedy(report: Report, drawn: Recording, greedy: Recording) -> None:
    """The best rule on drawn chains beside greedy chains of the same problems, whole and cut at as many tokens."""
    place = {each.id: index for index, each in enumerate(greedy.questions)}
    cuts = fixed_cuts(greedy.taking([place[each.id] for each in drawn.questions]))
    endings = [ending for own in rules_of(drawn).values() for ending in own]
    best = judge(drawn, endings, fixed_cuts(drawn), report.rng).ended
    name = f"{ANY_RULE} on drawn chains: points over"
    report.difference(f"{name} whole greedy chains", best.right, cuts[-1].right, scale=100)
    for cost, verb in (("decoded", "decodes"), ("computed", "computes")):
        cut = cut_of_as_many(cuts, cost, float(best.cost(cost).mean()))
        report.difference(f"{name} the cut of greedy chains that {verb} as much", best.right, cut, scale=100)


@benchmark("studies.embedded --store FOLDER")
@click.option("--model", default="tinylm/target", show_default=True, help="Embedded model.")
@size("--num_problems", 300, quick=8, help="Problems whose chains are looked at.", least=5)
@size("--max_tokens", 1200, quick=200, help="Of a chain.")
@stored
def main(report: Report, model: str, num_problems: int, max_tokens: int, store: Path | None) -> None:
    """Stops and cuts on the embedded model."""
    shared = [
        f"workers.generation.args.model={model}",
        f"seed={report.seed}",
        f"dataset.seed={report.seed}",
        f"dataset.num_samples={num_problems}",
        f"controller.args.max_tokens={max_tokens}",
    ]
    ways = {DRAWN: shared, GREEDY: [*shared, "controller.args.sampling_params.temperature=0"]}
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for way, overrides in ways.items():
            config = load_config("configs:dynasor_cot", overrides)
            found[way] = recorded_samples(config, (store or Path(folder)) / way, look_every=LOOK_EVERY)
    for way, recording in found.items():
        add_stops(report, way, recording)
    add_greedy(report, found[DRAWN], found[GREEDY])


if __name__ == "__main__":
    main()
