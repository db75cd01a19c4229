"""The build of an engine against a stack's needs, and the flags that mend it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scaffolding_ext.errors import ConfigError
from scaffolding_ext.workers.trtllm.engine_config import EngineConfig, EngineNeeds, is_engine

BUILD = {
    "max_batch_size": 8,
    "max_input_len": 1024,  # the default of trtllm-build, whatever the sequence length
    "max_seq_len": 1024,
    "max_num_tokens": 1024,
    "kv_cache_type": "PAGED",
    "gather_context_logits": True,
    "gather_generation_logits": False,
    "plugin_config": {"use_paged_context_fmha": True, "paged_kv_cache": True},
}
MODEL = {"architecture": "LlamaForCausalLM", "vocab_size": 512, "max_position_embeddings": 2048}
EVERYTHING = EngineNeeds(True, True, 1024, 1024, 8)


def engine(folder: Path, plugins: dict[str, Any] | None = None, **changed: Any) -> EngineConfig:
    build = {**BUILD, **changed, "plugin_config": {**BUILD["plugin_config"], **(plugins or {})}}  # type: ignore[dict-item]
    document = {"version": "1.2.1", "pretrained_config": MODEL, "build_config": build}
    (folder / "config.json").write_text(json.dumps(document))
    return EngineConfig.read(folder)


def test_an_engine_that_has_everything_is_taken(tmp_path: Path) -> None:
    built = engine(tmp_path)
    built.check(EVERYTHING)
    built.check(EngineNeeds())
    assert (built.vocab_size, built.context_len) == (512, 2048)
    assert is_engine(tmp_path)


@pytest.mark.parametrize(
    ("plugins", "changed", "lacking", "flag"),
    [
        ({}, {"gather_context_logits": False}, "gather_context_logits is off", "--gather_context_logits"),
        ({"use_paged_context_fmha": False}, {}, "paged_context_fmha is off", "--use_paged_context_fmha enable"),
        ({}, {"kv_cache_type": "CONTINUOUS"}, "kv_cache_type is not paged", "--kv_cache_type paged"),
        ({"paged_kv_cache": False}, {"kv_cache_type": None}, "kv_cache_type is not paged", "--kv_cache_type paged"),
        ({}, {"max_seq_len": 512}, "max_seq_len is 512, but the stack needs 1024", "--max_seq_len 1024"),
        ({}, {"max_batch_size": 4}, "max_batch_size is 4, but the stack needs 8", "--max_batch_size 8"),
        ({}, {"max_num_tokens": 512}, "max_num_tokens is 512, but the stack needs 1024", "--max_num_tokens 1024"),
    ],
)
def test_each_thing_that_is_lacking_is_named_with_its_flag(
    tmp_path: Path, plugins: dict[str, Any], changed: dict[str, Any], lacking: str, flag: str
) -> None:
    built = engine(tmp_path, plugins, **changed)
    with pytest.raises(ConfigError) as caught:
        built.check(EVERYTHING)
    assert lacking in str(caught.value)
    assert len(built.shortfalls(EVERYTHING)) == 1
    _, _, flags = str(caught.value).partition("trtllm-build --checkpoint_dir CHECKPOINT --output_dir ")
    assert flag in flags


def test_the_flags_keep_what_the_engine_has_and_build_one_that_is_taken(tmp_path: Path) -> None:
    built = engine(tmp_path, {"use_paged_context_fmha": False}, max_seq_len=512, gather_generation_logits=True)
    flags = built.build_flags(EngineNeeds(prefix_sharing=True, max_seq_len=2048))
    assert flags == [
        *("--max_batch_size 8", "--max_seq_len 2048", "--max_num_tokens 1024"),
        *("--gather_context_logits", "--gather_generation_logits", "--kv_cache_type paged"),
        "--use_paged_context_fmha enable",
    ]


@pytest.mark.parametrize("needs", [EngineNeeds(scores=True), EngineNeeds(max_seq_len=1024)])
def test_a_prompt_longer_than_a_step_needs_chunked_prefill_and_paged_attention(
    tmp_path: Path, needs: EngineNeeds
) -> None:
    built = engine(tmp_path, max_num_tokens=256)
    assert not built.shortfalls(needs)
    assert not built.shortfalls(needs._replace(chunked_prefill=True))
    assert "a prompt may have 1023 tokens" in built.shortfalls(needs._replace(chunked_prefill=False))[0]
    unpaged = engine(tmp_path, {"use_paged_context_fmha": False}, max_num_tokens=256)
    assert "max_num_tokens is 256, but a prompt may have 1023 tokens" in unpaged.shortfalls(needs)[0]
    assert "--max_num_tokens 1023" in unpaged.build_flags(needs)


def test_no_flag_makes_a_context_longer_than_the_model_has(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="model's context is 2048 tokens: no flag makes it longer"):
        engine(tmp_path).check(EngineNeeds(max_seq_len=4096))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (None, "cannot be read"),
        ("{", "cannot be read"),
        ('{"architectures": ["LlamaForCausalLM"]}', "no build_config. A model folder is a checkpoint"),
        ('{"build_config": {"max_seq_len": 5}}', "no number under max_batch_size, max_num_tokens"),
    ],
)
def test_what_is_no_engine_is_told(tmp_path: Path, document: str | None, message: str) -> None:
    if document is not None:
        (tmp_path / "config.json").write_text(document)
    with pytest.raises(ConfigError, match=message):
        EngineConfig.read(tmp_path)
