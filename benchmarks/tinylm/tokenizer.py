"""The byte-level BPE tokenizer that both embedded models share."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from benchmarks.tinylm.chains import sample_chain, written_check
from scaffolding_ext.tinylm.grammar import CHECK, CLOSE, HEDGE, PROBE, VERDICT, YES, sample_problem

PAD, END, USER, ASSISTANT = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CONTEXT_LEN = 2048
CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{% if m['role'] == 'assistant' %}<|assistant|>{{ m['content'] }}<|end|>"
    "{% else %}<|user|>{{ m['content'] }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)


def build_tokenizer(seed: int = 1, vocab_size: int = 512, num_texts: int = 6000) -> PreTrainedTokenizerFast:
    """Train the tokenizer on text of the grammar; digits, marks and names of methods are single tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split(Regex(r"[=+*,<>)-]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, USER, ASSISTANT, END, THINK_OPEN, THINK_CLOSE],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed, num_texts), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=_with_visible_thinking(tokenizer),
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        padding_side="left",
        model_max_length=CONTEXT_LEN,
        chat_template=CHAT_TEMPLATE,
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the tokenizer so that transformers 4.57 and 5 both load it (5 writes names that 4 does not know)."""
    tokenizer.save_pretrained(folder)
    config_file = folder / "tokenizer_config.json"
    config = json.loads(config_file.read_text())
    config.pop("backend", None)
    special = config.pop("extra_special_tokens", None) or config.get("additional_special_tokens")
    config |= {"additional_special_tokens": special, "tokenizer_class": "PreTrainedTokenizerFast"}
    config_file.write_text(json.dumps(config, indent=2) + "\n")


def _with_visible_thinking(tokenizer: Tokenizer) -> Tokenizer:
    """Keep the end of thinking in decoded text, as with R1's tokenizers; the trainer marks all as special."""
    description = json.loads(tokenizer.to_str())
    for token in description["added_tokens"]:
        token["special"] = token["content"] not in (THINK_OPEN, THINK_CLOSE)
    return type(tokenizer).from_str(json.dumps(description))


def _texts(seed: int, num_texts: int) -> Iterator[str]:
    rng = random.Random(seed)
    for _ in range(num_texts):
        problem = sample_problem(rng, "train")
        yield problem.question
        yield "".join(segment.text for segment in sample_chain(problem, rng))
        yield CLOSE.removeprefix(THINK_CLOSE) + problem.answer + "}."
        yield PROBE + problem.answer + "}" + HEDGE
        yield CHECK + written_check(problem, problem.answer, rng)
        yield VERDICT + YES
