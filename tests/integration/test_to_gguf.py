"""The GGUF file of an embedded model, read back by transformers: its weights, its shape and its tokenizer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from scaffolding_ext.errors import ConfigError  # noqa: E402  # needs gguf
from scaffolding_ext.tinylm.embedded import model_folder  # noqa: E402
from scaffolding_ext.tinylm.grammar import sample_problem  # noqa: E402
from tests.integration import to_gguf  # noqa: E402


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("gguf") / "draft.gguf"
    to_gguf.write_gguf("tinylm/draft", found)
    return found


def metadata(path: Path) -> dict[str, Any]:
    return {name: field.contents() for name, field in gguf.GGUFReader(path).fields.items()}


def test_transformers_reads_the_weights_back(path: Path) -> None:
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    model = transformers.AutoModelForCausalLM.from_pretrained(model_folder("draft"), dtype=torch.float32)
    found = load_gguf_checkpoint(str(path), return_tensors=True, model_to_load=model)
    expected = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    assert found["tensors"].keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(torch.as_tensor(found["tensors"][name]), value, rtol=0, atol=0, msg=name)
    config = model.config
    for name in ("hidden_size", "num_hidden_layers", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps"):
        assert found["config"][name] == pytest.approx(getattr(config, name)), name


def texts() -> Iterator[str]:
    rng = random.Random(3)
    for _ in range(20):
        yield f"<|user|>{sample_problem(rng, 'held_out').question}<|assistant|><think>\n"
    yield "So 12 + 5  =  17.\n\nThen (17)*3=51, which\tis<3> or -4.)\n\n</think>\n**Final Answer**\n\\[ \\boxed{51}."
    yield "naïve 学 \U0001f600 don't  \r\n"


def test_its_tokenizer_gives_the_same_ids(path: Path) -> None:
    ours = transformers.AutoTokenizer.from_pretrained(model_folder("draft"))
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in texts():
        assert theirs.encode(text) == ours.encode(text), text
    assert theirs.chat_template == ours.chat_template


def test_what_servers_read_of_its_tokens(path: Path) -> None:
    found = metadata(path)
    tokens, types = found["tokenizer.ggml.tokens"], found["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == gguf.TokenType.CONTROL]
    assert control == ["<|pad|>", "<|user|>", "<|assistant|>", "<|end|>"]  # not seen in decoded text; <think> is
    assert tokens[found["tokenizer.ggml.eos_token_id"]] == "<|end|>"
    assert found["tokenizer.ggml.add_bos_token"] is False


def test_a_file_that_makes_servers_begin_with_a_token(tmp_path: Path) -> None:
    to_gguf.write_gguf("draft", tmp_path / "bos.gguf", bos="<|user|>")
    found = metadata(tmp_path / "bos.gguf")
    assert (found["tokenizer.ggml.add_bos_token"], found["tokenizer.ggml.bos_token_id"]) == (True, 1)
    with pytest.raises(ConfigError, match="bos: is '<s>', which is no token of draft"):
        to_gguf.write_gguf("draft", tmp_path / "bos.gguf", bos="<s>")


@pytest.mark.parametrize("merge", [("Ġ", "+"), ("Ċ", "Ċ")])
def test_a_tokenizer_that_llama_cpp_would_read_otherwise_is_refused(merge: tuple[str, str]) -> None:
    assert to_gguf.crosses(merge)
    assert not to_gguf.crosses(("Ġ", "th"))


def test_the_command(tmp_path: Path) -> None:
    run = CliRunner().invoke(to_gguf.main, ["draft", str(tmp_path / "draft.gguf")])
    assert run.exit_code == 0, run.output
    assert metadata(tmp_path / "draft.gguf")["llama.block_count"] == 3
    run = CliRunner().invoke(to_gguf.main, ["drft", str(tmp_path / "draft.gguf")])
    assert (run.exit_code, "unknown embedded model 'drft'" in run.output) == (1, True)
