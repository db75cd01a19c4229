"""The byte-level BPE tokenizer that both embedded models share."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

from scaffolding_ext.tinylm.grammar import CLOSE, PROBE, sample_chain, sample_problem

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

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
    """Train the tokenizer on text of the grammar; digits and operators stay single tokens."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split(Regex(r"[=+*,<>)-]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    # Not special: where thinking ends must stay visible in decoded text, as in the R1 models' tokenizers.
    thinking = [AddedToken(token, special=False, normalized=False) for token in (THINK_OPEN, THINK_CLOSE)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, USER, ASSISTANT, END, *thinking],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(seed, num_texts), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT],
        padding_side="left",
        model_max_length=CONTEXT_LEN,
        chat_template=CHAT_TEMPLATE,
    )


def _texts(seed: int, num_texts: int) -> Iterator[str]:
    rng = random.Random(seed)
    for _ in range(num_texts):
        problem = sample_problem(rng, "train")
        yield problem.question
        yield "".join(segment.text for segment in sample_chain(problem, rng))
        yield CLOSE.removeprefix(THINK_CLOSE) + problem.answer + "}."
        yield PROBE + problem.answer + "}"
