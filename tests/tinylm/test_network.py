"""The embedded models without transformers: the numbers, the token ids and the prompts that transformers gives."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from scaffolding_ext.tinylm.embedded import EmbeddedTokenizer, model_folder  # noqa: E402
from scaffolding_ext.tinylm.network import Network  # noqa: E402

MODELS = ("tinylm/draft", "tinylm/target")
TURNS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Start with 5. Apply a+3,b-2. Find the total."},
    {"role": "assistant", "content": "\\boxed{6}"},
    {"role": "user", "content": "Why?"},
]


def causal(module: Any, query: Any, key: Any, value: Any, mask: Any, scaling: float) -> tuple[torch.Tensor, None]:
    """What transformers' attention `sdpa` computes for one text."""
    seen = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling)
    return seen.transpose(1, 2).contiguous(), None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model", MODELS)
def test_the_network_computes_what_transformers_computes(model: str, dtype: torch.dtype) -> None:
    from transformers import AutoModelForCausalLM

    folder = model_folder(model)
    ids = torch.tensor([EmbeddedTokenizer(folder).backend_tokenizer.encode("".join(str(turn) for turn in TURNS)).ids])
    with torch.inference_mode():
        expected = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")(ids).logits
        network = Network(folder, dtype, "cpu", causal, "sdpa")
        decoder = network.base_model
        hidden = decoder.embed_tokens(ids)
        rotations = decoder.rotary_emb(hidden, torch.arange(ids.shape[1])[None])
        for layer in decoder.layers:
            hidden = layer(hidden, None, rotations)
        logits = network.get_output_embeddings()(decoder.norm(hidden))
    assert torch.equal(logits, expected)
    assert (network.dtype, network.device.type, network.generation_config.eos_token_id) == (dtype, "cpu", 3)


def test_a_network_of_another_architecture_is_refused(tmp_path: Path) -> None:
    config = Path(model_folder("tinylm/draft"), "config.json").read_text(encoding="utf-8")
    (tmp_path / "config.json").write_text(config.replace('"silu"', '"gelu"'), encoding="utf-8")
    (tmp_path / "generation_config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"an unsupported architecture: config\.json has .*gelu"):
        Network(str(tmp_path), torch.float32, "cpu", causal, "sdpa")


@pytest.mark.parametrize("model", MODELS)
def test_the_tokenizer_is_that_of_transformers(model: str) -> None:
    from transformers import AutoTokenizer

    folder = model_folder(model)
    own, theirs = EmbeddedTokenizer(folder), AutoTokenizer.from_pretrained(folder)
    for asked in ({"add_generation_prompt": True}, {"tokenize": False}, {"tokenize": False, "tools": []}):
        assert own.apply_chat_template(TURNS, **asked) == theirs.apply_chat_template(TURNS, **asked)
    goes_on = {"tokenize": False, "continue_final_message": True}
    assert own.apply_chat_template(TURNS[:3], **goes_on) == theirs.apply_chat_template(TURNS[:3], **goes_on)
    text = own.apply_chat_template(TURNS, tokenize=False, add_generation_prompt=True)
    assert text == theirs.apply_chat_template(TURNS, tokenize=False, add_generation_prompt=True)
    for special in (True, False):
        ids = own.backend_tokenizer.encode(text, add_special_tokens=special).ids
        assert ids == theirs.backend_tokenizer.encode(text, add_special_tokens=special).ids
        assert own.backend_tokenizer.decode(ids, skip_special_tokens=special) == theirs.decode(
            ids, skip_special_tokens=special
        )
    assert (own.chat_template, own.eos_token_id) == (theirs.chat_template, theirs.eos_token_id)
    assert own.get_vocab() == theirs.get_vocab()
    assert len(own) == len(theirs)
    twin = copy.deepcopy(own)
    twin.chat_template = theirs.chat_template = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
    assert twin.apply_chat_template(TURNS, tokenize=False) == theirs.apply_chat_template(TURNS, tokenize=False)
    assert copy.deepcopy(twin).chat_template == twin.chat_template != own.chat_template
    assert own.pad_token_id == theirs.pad_token_id  # what it has not itself, transformers answers
