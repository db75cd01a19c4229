"""HuggingFaceWorker against transformers, token for token and log-probability for log-probability.

Every run batches, reads prompts in chunks and reuses prefixes, and each test makes sure that this really happened.
"""

import asyncio
import random
import shutil
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GPTJConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
)

from scaffolding_ext.evaluation.datasets import embedded_problems
from scaffolding_ext.prompting import load_tokenizer, model_folder
from scaffolding_ext.protocol import GenerationTask, TaskStatus
from scaffolding_ext.tasks import ScoreTask, token_counts_of
from scaffolding_ext.workers.huggingface import HuggingFaceWorker

TRAINED = "tinylm/target"
VOCABULARY, CONTEXT, WINDOW = 512, 256, 24
TOLERANCE = 1e-4  # of log-probabilities; logits closer than this may be ordered either way
WAIT = 60  # seconds until a test gives up

_SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": CONTEXT}
_COMMON = {"vocab_size": VOCABULARY, "initializer_range": 0.2, "tie_word_embeddings": False}
_GROUPED = {**_SIZES, **_COMMON, "intermediate_size": 96, "num_key_value_heads": 2}
CONFIGS = {
    "llama": lambda: LlamaConfig(**_GROUPED),
    "qwen2": lambda: Qwen2Config(**_GROUPED),
    "neox": lambda: GPTNeoXConfig(**_SIZES, **_COMMON, intermediate_size=96, rotary_pct=0.25),
    "mistral": lambda: MistralConfig(**_GROUPED, sliding_window=WINDOW),
    "gptj": lambda: GPTJConfig(**_COMMON, n_embd=64, n_layer=2, n_head=4, n_positions=CONTEXT, rotary_dim=8),
}
SERVED = [  # a model, the attention that is asked for, and whether a step is one flat pass
    ("llama", None, True),
    ("qwen2", None, True),
    ("neox", None, True),
    ("mistral", None, True),
    ("gptj", None, False),
    ("llama", "sdpa", False),
    ("llama", "eager", False),
]
