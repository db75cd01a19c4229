"""`scaffolding-ext calibrate chain`: when a chain of thought may stop, chosen on recorded chains."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scaffolding_ext.cli.options import (
    SIGNAL_EXIT,
    Command,
    Finite,
    OutputPath,
    config_option,
    config_with_dataset,
    dataset_option,
    given,
    json_option,
    limit_option,
    set_option,
)

if TYPE_CHECKING:
    from scaffolding_ext.controllers.chain.policy_file import ChainPolicy

_COSTS = ("decoded", "kept", "blocks", "nothing")


@click.command("chain", cls=Command, short_help="Choose when a chain of thought may stop.")
@config_option
@set_option
@dataset_option
@limit_option
@click.option(
    "--store",
    type=OutputPath(is_folder=True),
    required=True,
    help="Folder of the recorded chains; what it has of them is not recorded again.",
)
@click.option(
    "--output_path", type=OutputPath(), required=True, help="YAML file for the policy, its origin and its figures."
)
@click.option("--plot_path", type=OutputPath(), help="Picture of accuracy and costs.")
@click.option(
    "--max_loss", type=Finite(0, 1), default=0.02, show_default=True, help="Mean loss that is allowed, as a share."
)
@click.option(
    "--confidence",
    type=Finite(0, 1, min_open=True, max_open=True),
    help="Confidence that the loss keeps to --max_loss on other such questions, such as 0.9; at least 0.5.  "
    "[default: nothing is promised]",
)
@click.option(
    "--testing",
    type=click.Choice(["fixed_sequence", "bonferroni"]),
    default="fixed_sequence",
    show_default=True,
    help="How settings are tested, with --confidence.",
)
@click.option(
    "--loss",
    type=click.Choice(["lost", "differs"]),
    default="lost",
    show_default=True,
    help="What is a loss: that a right answer of the whole chain is lost, or that the answer is another.",
)
@click.option(
    "--cost",
    type=click.Choice(_COSTS),
    default="decoded",
    show_default=True,
    help="Tokens that are to be few: decoded ones, or computed ones where the chain's KV is kept, where prefixes are "
    "cached in blocks, or where nothing is kept.",
)
@click.option(
    "--spacing",
    type=click.IntRange(min=1),
    help="Tokens between recorded looks.  [default: half of the controller's]",
)
@click.option(
    "--num_logprobs",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    help="Log-probabilities a token that the worker is asked for; 0 where it tells none.",
)
@click.option("--model", help="Name of the model, for the file.  [default: that of the generation worker]")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of the chains, and of the halves.")
@click.option("--force", is_flag=True, help="Write a policy that breaks --max_loss, marked so.")
@json_option
@click.pass_context
def chain(
    ctx: click.Context,
    source: str,
    overrides: tuple[str, ...],
    dataset: str | None,
    limit: str | None,
    store: Path,
    output_path: Path,
    plot_path: Path | None,
    max_loss: float,
    confidence: float | None,
    testing: str,
    loss: str,
    cost: str,
    spacing: int | None,
    num_logprobs: int,
    model: str | None,
    seed: int,
    force: bool,
    as_json: bool,
) -> None:
    """Record the chains of a stack, play every stopping rule and setting on them, and choose the cheapest.

    It is chosen on one half of the questions, so that it loses at most --max_loss, and reported on the other. Where it
    loses more there, nothing is written and the exit code is 1.

    \b
    Example:
      scaffolding-ext calibrate chain --config configs:dynasor_cot --limit 300 --store runs/chains \\
        --max_loss 0.02 --confidence 0.9 --output_path stop.yaml --plot_path stop.png
      scaffolding-ext eval --config configs:dynasor_cot --set controller.args.chunk_size=null \\
        --set controller.args.certainty_threshold=null \\
        --set 'controller.args.rule={type: calibrated, args: {path: stop.yaml}}'
    """
    import numpy as np

    from scaffolding_ext.controllers.chain.policy_file import ChainPolicy
    from scaffolding_ext.errors import ConfigError
    from scaffolding_ext.evaluation.calibrate.chain_trial.drawing import plot_trial
    from scaffolding_ext.evaluation.calibrate.chain_trial.recorded import read_chains, recording_stack
    from scaffolding_ext.evaluation.calibrate.chain_trial.trial import choose, halves, settings_to_try, try_settings
    from scaffolding_ext.evaluation.calibrate.samples import fingerprint
    from scaffolding_ext.evaluation.run.datasets import load_dataset
    from scaffolding_ext.evaluation.run.run_folder import SAMPLES, claimed
    from scaffolding_ext.evaluation.run.session import Session

    if confidence is not None and confidence < 0.5:
        raise click.UsageError(
            f"--confidence is {confidence:g}; it is the probability that the loss stays within --max_loss, and must "
            f"be at least 0.5: for a risk of {confidence:g} that it does not, give {1 - confidence:g}",
            ctx,
        )
    if confidence is not None and not 0 < max_loss < 1:
        raise click.UsageError(
            f"--confidence is given and --max_loss is {max_loss:g}; with it --max_loss must be above 0 and below 1", ctx
        )
    config, data = config_with_dataset(source, dataset, [*overrides, *given(seed=seed)])
    config = recording_stack(config.for_run(), spacing, num_logprobs)
    model = model or config.workers["generation"].args.get("model")
    if model is None:
        raise ConfigError("names no model: give the name of the chains' model by --model", "workers.generation")
    samples = load_dataset(**data.model_dump(), limit=limit)
    with claimed(store, resume=True) as goes_on:
        run = Session(config, samples, store)
        if goes_on:
            run.take_up(is_mended=True)
        stopped_by = run.go(lambda message: click.echo(message, err=True))
    if stopped_by is not None:
        ctx.exit(SIGNAL_EXIT + stopped_by)
    chains = read_chains(store / SAMPLES)
    if len(chains) < len(samples):
        failed = f"{len(samples) - len(chains)} of {len(samples)} chains failed and are left out"
        click.echo(f"Warning: {failed}; the first failure: {run.tally.first_error}", err=True)
    if len(chains) < 4:
        raise ConfigError(
            f"leaves {len(chains)} chains; the calibration needs at least 4 (2 to choose a policy, 2 to report it): "
            "raise it",
            "limit",
        )
    settings = list(settings_to_try(chains, config.controller.args["spacing"]))
    with click.progressbar(length=len(settings), label="playing rules", file=sys.stderr) as bar:
        trial = try_settings(chains, settings, lambda setting: bar.update(1))
    rng = np.random.default_rng(seed)
    choosing, reporting = halves(len(chains), rng)
    index = choose(trial, choosing, max_loss, confidence, rng, loss=loss, cost=cost, testing=testing)
    setting = None if index is None else trial.settings[index]
    policy = ChainPolicy(
        model=model,
        date=datetime.date.today().isoformat(),
        data=store.name,
        fingerprint=fingerprint(store / SAMPLES),
        recorded=config.controller.args,
        loss=loss,
        max_loss=max_loss,
        confidence=confidence,
        testing=None if confidence is None else testing,
        cost=cost,
        policy=None if setting is None else setting.to_json(),
        chosen_on=trial.figures(index, loss, choosing),
        reported_on=trial.figures(index, loss, reporting),
        positions=trial.outcome_of(index).positions.astype(int).tolist(),
    )
    is_refused = policy.exceeds_limit and not force
    if not is_refused:
        policy.model_copy(update={"forced": policy.exceeds_limit}).save(output_path)
    if plot_path is not None:
        plot_trial(trial, index, reporting, f"{model}: means of {len(reporting)} questions", plot_path)
    if as_json:
        written = None if is_refused else str(output_path)
        click.echo(json.dumps({"policy": policy.policy, "figures": policy.reported_on, "output_path": written}))
    else:
        _tell(policy, str(setting or f"none of {len(trial.settings)} settings passes: nothing is stopped"))
        if not is_refused:
            click.echo(f"written   {output_path}")
    if is_refused:
        click.echo(f"Error: {_refusal(policy, len(chains), len(trial.settings))}", err=True)
        ctx.exit(1)


def _tell(policy: ChainPolicy, setting: str) -> None:
    figures = policy.reported_on
    click.echo(f"policy    {setting}")
    click.echo(f"loss      {figures['loss']:.1%} ({policy.loss}), {policy.chosen_on['loss']:.1%} where it was chosen")
    click.echo(f"accuracy  {figures['accuracy']:.1%} against {figures['full_accuracy']:.1%} of whole chains")
    for name in _COSTS:
        click.echo(f"{name:<9} {figures[name]:,.0f} against {figures[f'full_{name}']:,.0f} tokens a question")
    click.echo(f"probes    {figures['probes']:.1f} a question")


def _refusal(policy: ChainPolicy, num_chains: int, num_settings: int) -> str:
    """Why nothing is written, and how many questions would be enough."""
    from scaffolding_ext.stats.learn_then_test import questions_needed

    figures, confidence = policy.reported_on, policy.confidence or 0.9
    lost = (
        f"nothing is written: the policy loses {figures['loss']:.1%} of the {figures['num_questions']:.0f} questions "
        f"that are held out from the choice, and --max_loss allows {policy.max_loss:.1%}"
    )
    if policy.max_loss == 0:
        needed = "with --max_loss 0 no number of questions is enough: give a --max_loss above 0"
    else:
        num = 2 * questions_needed(policy.max_loss, 1 - confidence, policy.testing or "fixed_sequence", num_settings)
        needed = f"a test with --confidence {confidence:g} needs at least {num} questions, and these are {num_chains}"
    return f"{lost}; {needed}; --force writes the policy all the same, with a mark"
