"""Chains that a model in training writes itself, about questions of the training split: its own mistakes, labelled."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import TYPE_CHECKING

from scaffolding_ext.tinylm.chains import read_chain
from scaffolding_ext.tinylm.data import OwnChain
from scaffolding_ext.tinylm.grammar import ALL_KINDS, Problem, sample_problem
from scaffolding_ext.tinylm.tokenizer import THINK_CLOSE

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

NUM_CHAINS = 600
MAX_CHAIN_LEN = 700  # tokens; a chain that is not closed by then is left out
TEMPERATURE = 0.7  # that the models are sampled at
_BATCH_SIZE = 100


def own_chains(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int, file: Path) -> list[OwnChain]:
    """`NUM_CHAINS` chains of the model, sampled and written to a file once and read from it from then on.

    Args:
        model: As it is; its weights are not touched.
        tokenizer: The model's.
        seed: Of the problems and of the chains.
        file: JSON: the text of each chain, or null where one was left out.
    """
    rng = random.Random(f"{seed}/own chains")
    problems = [sample_problem(rng, "train", rng.choice(ALL_KINDS)) for _ in range(NUM_CHAINS)]
    if not file.exists():
        temporary = file.with_suffix(".tmp")
        temporary.write_text(json.dumps(sample_thinking(model, tokenizer, problems, seed)))
        temporary.replace(file)
    texts = json.loads(file.read_text())
    read = [OwnChain(p, read_chain(p, text)) for p, text in zip(problems, texts, strict=True) if text is not None]
    return [chain for chain in read if chain.segments and chain.segments[-1].belief is not None]


def sample_thinking(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, problems: list[Problem], seed: int
) -> list[str | None]:
    """What the model thinks about each problem, up to where it closes its thinking; None where it does not."""
    import torch

    close = tokenizer.convert_tokens_to_ids(THINK_CLOSE)
    texts: list[str | None] = []
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(seed)
        for start in range(0, len(problems), _BATCH_SIZE):
            prompts = [f"<|user|>{p.question}<|assistant|><think>\n" for p in problems[start : start + _BATCH_SIZE]]
            given = tokenizer(prompts, return_tensors="pt", padding=True, add_special_tokens=False)
            rows = model.generate(
                input_ids=given["input_ids"],
                attention_mask=given["attention_mask"],
                do_sample=True,
                temperature=TEMPERATURE,
                top_k=0,
                max_new_tokens=MAX_CHAIN_LEN,
                eos_token_id=close,
            )[:, given["input_ids"].shape[1] :].tolist()
            for row in rows:
                thinking = tokenizer.backend_tokenizer.decode(row[: row.index(close)]) if close in row else None
                texts.append(thinking)
    return texts
