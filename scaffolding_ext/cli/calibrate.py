"""Command `scaffolding-ext calibrate`: fit a controller's settings to a labelled run.

The modules that compute are imported when a command runs.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from scaffolding_ext.cli.options import (
    Finite,
    Group,
    OutputPath,
    config_option,
    config_with_dataset,
    dataset_option,
    json_option,
    limit_option,
    set_option,
)


@click.group(cls=Group, short_help="Fit a controller's settings to a labelled run.")
def calibrate() -> None:
    """Fit a controller's settings to the records of a labelled run and write them to a file."""


@calibrate.command("conformal", short_help="Score chains, so that a target takes over at a set rate.")
@config_option
@set_option
@dataset_option
@limit_option
@click.option(
    "--alpha",
    "alphas",
    type=Finite(0, 1, min_open=True, max_open=True),
    multiple=True,
    default=(0.1, 0.25, 0.4, 0.6),
    show_default=True,
    help="Level to calibrate; may be repeated.",
)
@click.option("--num_turns", type=click.IntRange(min=1), help="Turns to calibrate; the paper uses 1. Default: all.")
@click.option(
    "--online/--held_out",
    default=False,
    help="Calibrate on the questions to be answered, or on others.  [default: others]",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the chains.")
@click.option("--output_path", type=OutputPath(), required=True, help="File for the scores.")
@json_option
def conformal(
    source: str,
    overrides: tuple[str, ...],
    dataset: str | None,
    limit: str | None,
    alphas: tuple[float, ...],
    num_turns: int | None,
    online: bool,
    seed: int,
    output_path: Path,
    as_json: bool,
) -> None:
    """Run the chains of a draft/target stack turn by turn and keep the scores that decisions are ranked against.

    \b
    Example:
      scaffolding-ext calibrate conformal --config configs:conformal_draft_target --alpha 0.4 --limit 100 \\
        --output_path runs/conformal.yaml
      scaffolding-ext eval --config configs:conformal_draft_target \\
        --set controller.args.calibration=runs/conformal.yaml
    """
    from scaffolding_ext.evaluation.calibrate.conformal_run import calibrate as run_calibration
    from scaffolding_ext.evaluation.run.datasets import load_dataset

    config, data = config_with_dataset(source, dataset, overrides)
    prompts = [sample.prompt for sample in load_dataset(**data.model_dump(), limit=limit)]
    calibration = run_calibration(
        config, prompts, alphas, source="online" if online else "held_out", num_turns=num_turns, seed=seed
    )
    calibration.save(output_path)
    if as_json:
        click.echo(json.dumps({"output_path": str(output_path), **calibration.model_dump(exclude={"questions"})}))
        return
    click.echo("alpha  turn  scores  taken over (95 %, questions resampled)")
    for level in calibration.levels:
        for turn, scored in enumerate(level.turns):
            interval = "" if scored.low is None else f"  ({scored.low:.3f} to {scored.high:.3f})"
            click.echo(f"{level.alpha:<5}  {turn:>4}  {len(scored.scores):>6}  {scored.rate:.3f}{interval}")
        total = (level.ledger or {}).get("total", {})
        click.echo(f"{level.alpha:<5}  cost  {level.num_target_tokens} target tokens, {total.get('decoded')} in all")
    click.echo(f"written  {output_path}")


@calibrate.command("branching", short_help="Fit when branches need no verdict, and when one is read early.")
@config_option
@set_option
@dataset_option
@limit_option
@click.option(
    "--least_agreement",
    type=Finite(0, 1, min_open=True),
    default=0.99,
    show_default=True,
    help="Share of decisions that verdicts read early must leave unchanged.",
)
@click.option("--output_path", type=OutputPath(), required=True, help="File for the thresholds.")
@json_option
def branching(
    source: str,
    overrides: tuple[str, ...],
    dataset: str | None,
    limit: str | None,
    least_agreement: float,
    output_path: Path,
    as_json: bool,
) -> None:
    """Write and judge all branches of a KVShareBranchingController, and fit its thresholds to them.

    The skip gate takes the 75th percentile of the highest confidence and the 25th of the relative lead; the layer exit
    is the one that saves the most layers and leaves --least_agreement of the decisions unchanged.

    \b
    Example:
      scaffolding-ext calibrate branching --config configs:kv_share_branching --limit 100 \\
        --output_path runs/branching.yaml
      scaffolding-ext eval --config configs:kv_share_branching --set controller.args.calibration=runs/branching.yaml
    """
    from scaffolding_ext.evaluation.calibrate.branching_run import calibrate as choose
    from scaffolding_ext.evaluation.calibrate.branching_run import run_branches
    from scaffolding_ext.evaluation.run.datasets import load_dataset

    config, data = config_with_dataset(source, dataset, overrides)
    samples = load_dataset(**data.model_dump(), limit=limit)
    problems = run_branches(config, samples)
    model = str(config.workers["generation"].args["model"])
    calibration = choose(
        problems, model=model, dataset=str(data.source), seed=config.seed or 0, least_agreement=least_agreement
    )
    calibration.save(output_path)
    if as_json:
        click.echo(json.dumps({"output_path": str(output_path), **calibration.model_dump(mode="json")}))
        return
    gate, rule, figures = calibration.skip_gate, calibration.layer_exit, calibration.figures
    agreement = "" if figures.skip_agreement is None else f", {figures.skip_agreement:.1%} of those answers unchanged"
    click.echo(f"skip gate   confidence {gate.least:.4f}, lead {gate.gap:.4f}")
    click.echo(f"            saves {figures.skip_rate:.1%} of {figures.num_problems} problems{agreement}")
    if rule is None:
        click.echo(f"layer exit  none leaves {least_agreement:.1%} of the decisions unchanged")
    else:
        click.echo(
            f"layer exit  entropy {rule.max_entropy:.4f}, change {rule.max_change:.4f}, from layer {rule.min_layer} on"
        )
        click.echo(
            f"            {figures.exit_share:.1%} of the verdicts read early, {figures.depth:.1%} of the layers, "
            f"{figures.exit_agreement:.1%} of the decisions unchanged"
        )
    click.echo(
        f"            layer_exit: true, the median rule: entropy {calibration.median_exit.max_entropy:.4f}, "
        f"{figures.median_depth:.1%} of the layers, {figures.median_agreement:.1%} of the decisions unchanged"
    )
    click.echo(f"written     {output_path}")
