"""Train the embedded models from scratch on CPU: `python -m benchmarks.tinylm.train --output_path DIR`.

A run is a pure function of its options: batches are drawn from (seed, round).
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.tinylm.data import IGNORED, Batch, ExampleStream
from benchmarks.tinylm.tokenizer import CONTEXT_LEN, build_tokenizer, save_tokenizer
from scaffolding_ext.tinylm.grammar import GRAMMAR_VERSION, MAX_NUM_STEPS

EXAMPLES_PER_ROUND = 3000
BATCH_TOKENS = 3072  # padding included
REPORT_EVERY = 250  # steps
WARMUP_STEPS = 60
DECAY_SHARE = 0.32  # the learning rate falls linearly over the last part of the run
# Longest problem from each step on. Copying an operation by its label is learnt within minutes on short problems, and
# hardly at all when all lengths come at once.
CURRICULUM = ((0, 5), (200, 9), (350, 15), (500, MAX_NUM_STEPS))
# How the models are to be sampled, where nobody says otherwise; `generation_config.json` holds it.
RECOMMENDED = {"do_sample": True, "temperature": 0.7, "top_p": 1.0, "top_k": 0}


class Shape(NamedTuple):
    """The size of a Llama model, and the optimisation steps of its training."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_steps: int


SHAPES = {"target": Shape(128, 384, 4, 4, 4400), "draft": Shape(96, 288, 3, 3, 2000)}


def build_model(shape: Shape, tokenizer: PreTrainedTokenizerFast, seed: int) -> LlamaForCausalLM:
    """A randomly initialised Llama of the given shape for the tokenizer's vocabulary."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=-(-len(tokenizer) // 8) * 8,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_attention_heads,
        max_position_embeddings=CONTEXT_LEN,
        tie_word_embeddings=True,
        initializer_range=0.03,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


def build_optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings and norms."""
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in model.named_parameters() if p.ndim != 2 or "embed" in name]
    return [
        torch.optim.Muon(matrices, lr=0.006, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def learning_rate_scale(step: int, num_steps: int) -> float:
    """Linear warm-up, a plateau, and a linear fall to two percent."""
    remaining = (num_steps - step) / (DECAY_SHARE * num_steps)
    return min(1.0, (step + 1) / WARMUP_STEPS) * max(0.02, min(1.0, remaining))


def batches_of(stream: ExampleStream, seed: int) -> Iterator[Batch]:
    """The batches of a run, endlessly; each round of them depends on (seed, round) alone."""
    first_step = 0
    for round_index in itertools.count():
        longest = max(most for step, most in CURRICULUM if first_step >= step)
        rng = random.Random(f"{seed}/{round_index}")
        batches = list(stream.batches(rng, BATCH_TOKENS, EXAMPLES_PER_ROUND, longest))
        yield from batches
        first_step += len(batches)


def train_step(model: LlamaForCausalLM, optimizers: list[torch.optim.Optimizer], batch: Batch, scale: float) -> float:
    """One optimisation step; returns the mean loss of the learnt tokens in nats."""
    ids, labels, positions = map(torch.from_numpy, batch[:3])
    mask = torch.from_numpy(batch.mask())
    logits = model(input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED
    )
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("peak_lr", group["lr"]) * scale
        optimizer.step()
        optimizer.zero_grad()
    return float(loss.item())


def train(
    name: str, model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, num_steps: int, seed: int
) -> dict[str, Any]:
    """Train a model, with a line of progress now and then; returns the record of the run for `training.json`."""
    optimizers, losses = build_optimizers(model), list[float]()
    num_tokens, started = 0, time.process_time()
    batches = batches_of(ExampleStream(tokenizer), seed)
    for step, batch in enumerate(itertools.islice(batches, num_steps), 1):
        losses.append(train_step(model, optimizers, batch, learning_rate_scale(step - 1, num_steps)))
        num_tokens += int((batch.ids != tokenizer.pad_token_id).sum())
        if step % REPORT_EVERY == 0 or step == num_steps:
            mean_loss, seconds = sum(losses) / len(losses), time.process_time() - started
            losses.clear()
            click.echo(f"{name} step {step}/{num_steps} loss {mean_loss:.4f} tokens {num_tokens:,} cpu {seconds:.0f} s")
    return {
        "model": name,
        "num_steps": num_steps,
        "batch_tokens": BATCH_TOKENS,
        "seed": seed,
        "grammar_version": GRAMMAR_VERSION,
        "num_tokens": num_tokens,
        "cpu_seconds": round(seconds),
        "final_loss": round(mean_loss, 4),
    }


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path, log: dict[str, Any]) -> None:
    """Write half-precision safetensors that load as float32, the tokenizer and the training log."""
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
    "--num_steps", type=click.IntRange(min=1), help="Optimisation steps, for a trial; by default those of MODEL."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the weights and of the data.")
def main(model_name: str | None, output_path: Path, num_steps: int | None, seed: int) -> None:
    """Train the tokenizer and MODEL (target or draft; both where none is named) into a folder of its name."""
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    for name in [model_name] if model_name else SHAPES:
        folder = output_path / name
        folder.mkdir(parents=True, exist_ok=True)
        model = build_model(SHAPES[name], tokenizer, seed)
        save(model, tokenizer, folder, train(name, model, tokenizer, num_steps or SHAPES[name].num_steps, seed))
        click.echo(f"saved {folder}")


if __name__ == "__main__":
    main()
