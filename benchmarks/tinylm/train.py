"""Train the embedded models from scratch on CPU: `python -m benchmarks.tinylm.train --output_path DIR`.

A run is a pure function of its options: batches are drawn from (seed, round), and a checkpoint holds everything that a
resumed run needs to go on exactly where it stopped. Until the learning rate falls nothing depends on how long the run
is to be, so a run may be made longer or shorter up to then.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.tinylm.data import IGNORED, Batch, ExampleStream
from benchmarks.tinylm.model import SHAPES, build_model, build_optimizers
from benchmarks.tinylm.tokenizer import build_tokenizer, save_tokenizer
from scaffolding_ext.tinylm.grammar import GRAMMAR_VERSION, MAX_NUM_STEPS

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

EXAMPLES_PER_ROUND = 3000
WARMUP_STEPS = 60
DECAY_SHARE = 0.32  # the learning rate falls linearly over the last part of the run
# Longest problem from each step on. Copying an operation by its label is learnt within minutes on short problems, and
# hardly at all when all lengths come at once.
CURRICULUM = ((0, 5), (200, 9), (350, 15), (500, MAX_NUM_STEPS))
# How the models are to be sampled, where nobody says otherwise; `generation_config.json` holds it.
RECOMMENDED = {"do_sample": True, "temperature": 0.7, "top_p": 1.0, "top_k": 0}
NUM_STEPS = {"target": 4400, "draft": 2000}  # where the command names none


def learning_rate_scale(step: int, num_steps: int) -> float:
    """Linear warm-up, a plateau, and a linear fall to two percent."""
    remaining = (num_steps - step) / (DECAY_SHARE * num_steps)
    return min(1.0, (step + 1) / WARMUP_STEPS) * max(0.02, min(1.0, remaining))


def learning_rate_falls(step: int, num_steps: int) -> bool:
    """True if a run of that length has lowered its learning rate before a step."""
    return step > (1 - DECAY_SHARE) * num_steps + 1


def curriculum_max_num_steps(step: int) -> int:
    """The longest problem that a run is shown at a step."""
    return max(longest for first_step, longest in CURRICULUM if step >= first_step)


def has_bfloat16_units() -> bool:
    """True if bfloat16 is faster than float32 on this processor; without units for it, it is four times slower."""
    import torch

    # Where torch is too old to say, float32 is right everywhere.
    capabilities: dict[str, bool] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def train_step(model: LlamaForCausalLM, optimizers: list[torch.optim.Optimizer], batch: Batch, scale: float) -> float:
    """One optimisation step; returns the mean loss of the learnt tokens in nats."""
    import torch

    ids, labels, positions = map(torch.from_numpy, batch[:3])
    mask = torch.from_numpy(batch.mask())
    with torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16_units()):
        logits = model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(
        logits[:, :-1].float().flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED
    )
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("peak_lr", group["lr"]) * scale
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.item())


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path, log: dict[str, Any]) -> None:
    """Write half-precision safetensors that load as float32, the tokenizer and the training log."""
    import torch

    half = {name: tensor.to(torch.float16) for name, tensor in model.state_dict().items()}
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder, state_dict=half)
    for name, added in (("config.json", {"dtype": "float32"}), ("generation_config.json", RECOMMENDED)):
        config = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(config | added, indent=1) + "\n")
    save_tokenizer(tokenizer, folder)
    (folder / "model.safetensors").chmod(0o644)  # as the other files
    (folder / "training.json").write_text(json.dumps(log, indent=1) + "\n")


@dataclass
class Run:
    """A training run: its options, and everything of it that a checkpoint holds.

    Attributes:
        options: What the weights depend on; a checkpoint of other options is refused.
        mean_loss: Of the steps before the last checkpoint, in nats a learnt token; None before the first.
        cpu_seconds: Processor time up to the last checkpoint, resumed runs included.
    """

    options: dict[str, Any]
    model: LlamaForCausalLM
    optimizers: list[torch.optim.Optimizer]
    step: int = 0
    num_tokens: int = 0
    cpu_seconds: float = 0.0
    mean_loss: float | None = None

    def load(self, file: Path) -> None:
        """Go on from a checkpoint.

        Raises:
            click.ClickException: It was written by a run with other options, or by one of another length whose learning
                rate had begun to fall.
        """
        import torch

        checkpoint = torch.load(file, weights_only=True)
        lengths = {checkpoint["options"]["num_steps"], self.options["num_steps"]}
        falls = len(lengths) > 1 and any(learning_rate_falls(checkpoint["step"], num_steps) for num_steps in lengths)
        if falls or checkpoint["options"] | {"num_steps": self.options["num_steps"]} != self.options:
            raise click.ClickException(
                f"{file} was written by a run with {checkpoint['options']}, this one has {self.options}; "
                "use the same options or another --output_path"
            )
        self.model.load_state_dict(checkpoint["model"])
        for optimizer, state in zip(self.optimizers, checkpoint["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.step, self.num_tokens = checkpoint["step"], checkpoint["num_tokens"]
        self.cpu_seconds, self.mean_loss = checkpoint["cpu_seconds"], checkpoint.get("mean_loss")

    def save(self, file: Path) -> None:
        """Write a checkpoint; an interruption leaves the one before it whole."""
        import torch

        checkpoint = {
            "options": self.options,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "num_tokens": self.num_tokens,
            "cpu_seconds": self.cpu_seconds,
            "mean_loss": self.mean_loss,
        }
        temporary = file.with_suffix(".tmp")
        torch.save(checkpoint, temporary)
        temporary.replace(file)

    def log(self) -> dict[str, Any]:
        """The record of the run in `training.json`."""
        final_loss = None if self.mean_loss is None else round(self.mean_loss, 4)
        return self.options | {
            "num_tokens": self.num_tokens,
            "cpu_seconds": round(self.cpu_seconds),
            "final_loss": final_loss,
        }


def run_batches(stream: ExampleStream, seed: int, batch_tokens: int, first_step: int = 0) -> Iterator[Batch]:
    """The batches of a run from a step on, endlessly; each round of them depends on (seed, round) alone."""
    first_step_of_round = 0
    for round_index in itertools.count():
        longest = curriculum_max_num_steps(first_step_of_round)
        rng = random.Random(f"{seed}/{round_index}")
        batches = list(stream.batches(rng, batch_tokens, EXAMPLES_PER_ROUND, longest))
        yield from batches[max(0, first_step - first_step_of_round) :]
        first_step_of_round += len(batches)


def train(
    run: Run,
    batches: Iterator[Batch],
    tokenizer: PreTrainedTokenizerFast,
    checkpoint_file: Path,
    checkpoint_every: int,
    report: Callable[[str], None] = click.echo,
) -> None:
    """Take the steps that are left of a run, with a checkpoint and a line of progress now and then and at the end."""
    num_steps = run.options["num_steps"]
    started = time.process_time() - run.cpu_seconds
    losses: list[float] = []
    for batch in itertools.islice(batches, num_steps - run.step):
        scale = learning_rate_scale(run.step, num_steps)
        losses.append(train_step(run.model, run.optimizers, batch, scale))
        run.step += 1
        run.num_tokens += int((batch.ids != tokenizer.pad_token_id).sum())
        if run.step % checkpoint_every == 0 or run.step == num_steps:
            run.cpu_seconds, run.mean_loss = time.process_time() - started, sum(losses) / len(losses)
            losses.clear()
            run.save(checkpoint_file)
            report(
                f"{run.options['model']} step {run.step}/{num_steps} loss {run.mean_loss:.4f} "
                f"tokens {run.num_tokens:,} cpu {run.cpu_seconds:.0f} s"
            )


@click.command(epilog="Example: python -m benchmarks.tinylm.train --output_path runs/tinylm")
@click.argument("model_name", metavar="[MODEL]", type=click.Choice(list(SHAPES)), required=False)
@click.option(
    "--output_path",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/tinylm"),
    show_default=True,
    help="Folder in which each model gets a folder of its name.",
)
@click.option(
    "--num_steps",
    type=click.IntRange(min=1),
    show_default=", ".join(f"{name} {number}" for name, number in NUM_STEPS.items()),
    help="Optimisation steps of the whole run.",
)
@click.option("--batch_tokens", default=3072, show_default=True, help="Tokens in a batch, padding included.")
@click.option("--seed", default=0, show_default=True, help="Seed of the weights and of the data.")
@click.option("--threads", default=1, show_default=True, help="CPU threads.")
@click.option("--checkpoint_every", default=250, show_default=True, help="Steps between checkpoints.")
@click.option("--json", "as_json", is_flag=True, help="Write one JSON document to standard output, progress to error.")
def main(
    model_name: str | None,
    output_path: Path,
    num_steps: int | None,
    batch_tokens: int,
    seed: int,
    threads: int,
    checkpoint_every: int,
    as_json: bool,
) -> None:
    """Train the tokenizer and MODEL (target or draft; both where none is named) into a folder of its name.

    Started again with the same options, a run goes on from its last checkpoint.
    """
    import torch

    def report(line: str) -> None:
        click.echo(line, err=as_json)

    torch.set_num_threads(threads)
    tokenizer = build_tokenizer()
    models = []
    for name in [model_name] if model_name else SHAPES:
        folder = output_path / name
        folder.mkdir(parents=True, exist_ok=True)
        steps = num_steps or NUM_STEPS[name]
        model = build_model(SHAPES[name], tokenizer, seed)
        stream = ExampleStream(tokenizer)
        options = {"model": name, "num_steps": steps, "batch_tokens": batch_tokens, "seed": seed}
        data = {"grammar_version": GRAMMAR_VERSION, "data_fingerprint": stream.fingerprint()}
        run = Run(options | data, model, build_optimizers(model))
        checkpoint_file = folder / "checkpoint.pt"
        if checkpoint_file.exists():
            run.load(checkpoint_file)

        batches = run_batches(stream, seed, batch_tokens, run.step)
        train(run, batches, tokenizer, checkpoint_file, checkpoint_every, report)
        save(model, tokenizer, folder, run.log())
        report(f"saved {folder}")
        models.append(run.log() | {"path": str(folder)})
    if as_json:
        options = {"batch_tokens": batch_tokens, "seed": seed, "threads": threads, "checkpoint_every": checkpoint_every}
        click.echo(json.dumps({"options": options, "models": models}))


if __name__ == "__main__":
    main()
