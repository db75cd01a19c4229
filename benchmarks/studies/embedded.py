"""What `tune` finds on the embedded model. How much is saved was decided by how the model was taught.

    python -m benchmarks.studies.embedded --store FOLDER --json

*Stops*: chains of `configs:dynasor_cot`, drawn and greedy, are recorded with the stack's own probes. Every rule is set
on some problems and judged on others, beside the cut that decodes and the cut that computes as much, of drawn and of
greedy chains. *Votes*: 16 samples a problem of `configs:majority_vote`, with the rows of `studies.real`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from benchmarks._lib.command import benchmark, size, stored
from benchmarks._lib.report import Report
from benchmarks._lib.stops import ANY_RULE, add_stops, cut_of_as_many, fixed_cuts, judge, rules_of
from benchmarks.studies.real import add_votes
from scaffolding_ext.evaluation.recordings.draw import draw, recording_stack
from scaffolding_ext.evaluation.recordings.read import read_recording
from scaffolding_ext.evaluation.recordings.recording import Recording
from scaffolding_ext.stack.load import load_config

DRAWN, GREEDY = "drawn", "greedy"
NUM_SAMPLES = 16


def recorded(
    folder: Path, stack: str, overrides: Sequence[str], num_samples: int, look_every: int | None = None
) -> Recording:
    """Samples of a stack; what the folder has of them is not drawn again."""
    config = load_config(stack, list(overrides)).for_run()
    drawn = draw(recording_stack(config, num_samples, look_every), folder, lambda words: click.echo(words, err=True))
    if drawn.first_error is not None:
        raise click.ClickException(f"a sample failed: {drawn.first_error}")
    return read_recording([folder], num_samples=num_samples)


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
@size("--num_voted", 100, quick=8, help="Problems of votes.", least=5)
@size("--max_tokens", 1200, quick=200, help="Of a chain.")
@stored
def main(report: Report, model: str, num_problems: int, num_voted: int, max_tokens: int, store: Path | None) -> None:
    """What `tune` finds on the embedded model."""
    shared = (f"workers.generation.args.model={model}", f"seed={report.seed}", f"dataset.seed={report.seed}")
    chains = (*shared, f"dataset.num_samples={num_problems}", f"controller.args.max_tokens={max_tokens}")
    sampling = "controller.args.generation_controller.args.sampling_params.max_tokens"
    votes = (*shared, f"dataset.num_samples={num_voted}", f"{sampling}={max_tokens}")
    with tempfile.TemporaryDirectory() as folder:
        root = store or Path(folder)
        looks = {
            way: recorded(
                root / way,
                "configs:dynasor_cot",
                (*chains, *(["controller.args.sampling_params.temperature=0"] if way == GREEDY else [])),
                1,
            )
            for way in (DRAWN, GREEDY)
        }
        voted = recorded(root / "votes", "configs:majority_vote", votes, NUM_SAMPLES)
    for way, recording in looks.items():
        add_stops(report, way, recording)
    add_greedy(report, looks[DRAWN], looks[GREEDY])
    add_votes(report, "votes", voted)


if __name__ == "__main__":
    main()
