"""HuggingFaceWorker writes what transformers' `generate` writes, for 54 architectures and settings of random weights.

Prompts are read in chunks, side by side, and a second round reuses the prefixes of the first.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.prompts.tokenizers import model_folder
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::scaffolding_ext.workers.shared.sampling_defaults.GreedyThinkingWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]
NUM_TOKENS, CHUNK = 24, 16
PROMPTS = [[5 + 37 * place % 400 for place in range(length)] for length in (40, 23, 7)]
SHAPE: dict[str, Any] = {
    "vocab_size": 512,
    "initializer_range": 0.2,
    "eos_token_id": 3,
    "pad_token_id": 0,
    "bos_token_id": None,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "tie_word_embeddings": False,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LATENT = {  # multi-head latent attention
    "num_key_value_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1}
PLAIN = (
    *("llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "gemma", "gemma3_text"),
    *("gemma4_text", "phi", "phi3", "phimoe", "olmo", "olmo2", "olmo3", "olmoe", "cohere", "cohere2", "exaone4"),
    *("glm", "glm4", "glm4_moe", "gpt2", "gpt_neox", "gpt_bigcode", "starcoder2", "granite", "granitemoe"),
    *("smollm3", "ernie4_5", "ernie4_5_moe", "seed_oss", "arcee", "apertus", "opt", "persimmon", "nemotron"),
    *("bitnet", "minimax_m2", "jetmoe", "flex_olmo"),
)
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v2": ("deepseek_v2", {**LATENT, **EXPERTS}),
    "deepseek_v3": ("deepseek_v3", {**LATENT, **EXPERTS}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, one key head": ("llama", {"num_key_value_heads": 1}),
    "llama, own head size": ("llama", {"head_dim": 24, "attention_bias": True}),
    "llama, linear": ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0}}),
    "llama, YaRN": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 10_000.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "llama 3": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "factor": 8.0,
                "rope_theta": 10_000.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "llama, dynamic NTK": (
        "llama",
        {
            "rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0},
            "max_position_embeddings": 128,
        },
    ),
    "mistral, window": ("mistral", {"sliding_window": 12}),
    "gemma 3, windows": (
        "gemma3_text",
        {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gpt_neox, quarter of the rotation": ("gpt_neox", {"rotary_pct": 0.25}),
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in PLAIN} | SETTINGS
REFUSED = ("gemma2", "vaultgemma", "diffllama", "doge", "falcon", "stablelm", "biogpt", "xglm")


def network(kind: str, options: dict[str, Any]) -> Any:
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind](**(SHAPE | options))
    made = AutoModelForCausalLM.from_config(config).eval().float()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.dim() == 1:  # so that it would show if a bias or norm were lost
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    made.generation_config.eos_token_id, made.generation_config.pad_token_id = 3, 0
    return made


def generated(model: Any, prompt: list[int]) -> list[int]:
    """The text that transformers writes."""
    ids = torch.tensor([prompt])
    text = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NUM_TOKENS, do_sample=False)
    found: list[int] = text[0, len(prompt) :].tolist()
    return found


def written(worker: HuggingFaceWorker) -> list[list[int] | None]:
    tasks = [GenerationTask(input_tokens=prompt, max_tokens=NUM_TOKENS, temperature=0.0) for prompt in PROMPTS]

    async def run() -> None:
        await asyncio.gather(*map(worker.run_task, tasks))

    asyncio.run(run())
    return [task.output_tokens for task in tasks]


def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(model_folder("tinylm/draft"))


@pytest.mark.parametrize("name", CASES)
def test_the_texts_are_those_of_generate(name: str) -> None:
    model = network(*CASES[name])
    expected = [generated(model, prompt) for prompt in PROMPTS]
    with HuggingFaceWorker(
        model, tokenizer=tokenizer(), prefill_chunk=CHUNK, tokens_per_block=16, max_seq_len=128
    ) as worker:
        assert written(worker) == expected
        assert written(worker) == expected  # behind prefixes of the first round
        assert worker.metrics.num_reused > 0


@pytest.mark.parametrize("kind", REFUSED)
def test_an_attention_that_the_worker_lacks_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"^model: is .*choose another model"):
        HuggingFaceWorker(network(kind, {}), tokenizer=tokenizer(), max_seq_len=128)
