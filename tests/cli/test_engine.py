"""`scaffolding-ext engine check`: no GPU, no TensorRT-LLM."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from scaffolding_ext.cli.main import main
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.load import load_config

STACK = """
controller:
  type: {controller}
  args: {args}
workers:
  draft: {{type: TRTLLMWorker, args: {{model: models/draft, kv_cache_fraction: 0.4}}}}
  generation: {{type: TRTLLMWorker, args: {{model: engines/target, tokenizer: models/target, kv_cache_fraction: 0.3}}}}
  target: {{type: TRTLLMWorker, args: {{model: models/target, kv_cache_fraction: 0.3, max_batch_size: 16}}}}
"""
BUILD = {
    "max_batch_size": 8,
    "max_seq_len": 4096,
    "max_num_tokens": 4096,
    "gather_context_logits": False,
    "kv_cache_type": "PAGED",
    "plugin_config": {"use_paged_context_fmha": True},
}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "config.json").write_text(json.dumps({"pretrained_config": {}, "build_config": BUILD}))
    plain = STACK.format(controller="NativeGenerationController", args="{sampling_params: {max_tokens: 2000}}")
    scoring = STACK.format(controller="ConformalDraftTargetController", args="{alpha: 0.25, coverage: conditional}")
    for name, text in (("plain", plain), ("scoring", scoring)):
        (tmp_path / f"{name}.yaml").write_text(text)
    return {"engine": str(tmp_path), **{name: str(tmp_path / f"{name}.yaml") for name in ("plain", "scoring")}}


def check(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["engine", "check", *arguments])


def test_an_engine_that_has_everything(files: dict[str, str]) -> None:
    result = check(files["engine"], "--config", files["plain"], "--worker", "generation")
    assert result.exit_code == 0
    assert result.output.startswith(f"{files['engine']} meets all needs of the worker 'generation'\n")
    assert "serve_logprobs: false" in result.output


def test_what_is_lacking_is_printed_with_the_flags_and_the_exit_code_says_so(files: dict[str, str]) -> None:
    result = check(files["engine"], "--config", files["scoring"], "--worker", "target")
    assert result.exit_code == 1
    assert "gather_context_logits is off" in result.output
    assert "max_batch_size is 8, but the stack needs 16" in result.output
    assert re.search(r"trtllm-build .*\n.*--max_batch_size 16 .*--gather_context_logits", result.output)
    document = json.loads(check(files["engine"], "--config", files["scoring"], "--worker", "target", "--json").output)
    assert "--gather_context_logits" in document["build_flags"]
    assert document["built"]["max_seq_len"] == 4096


def test_errors_say_what_is_wrong(files: dict[str, str]) -> None:
    result = check(files["engine"], "--config", files["plain"])
    assert (result.exit_code, "name it with --worker" in result.output) == (2, True)
    result = check(files["engine"], "--config", files["plain"], "--worker", "draught")
    assert (result.exit_code, "did you mean 'draft'" in result.output) == (2, True)
    result = check("nowhere", "--config", files["plain"], "--worker", "draft")
    assert (result.exit_code, "is not a TensorRT engine" in result.output) == (2, True)


def test_the_stack_files_of_the_documentation_are_fine(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "tensorrt_llm.md").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"```yaml[^\n]*\n(.*?)```", text, re.DOTALL) if "controller:" in block]
    assert len(blocks) == 3
    for number, block in enumerate(blocks):
        path = tmp_path / f"{number}.yaml"
        path.write_text(block)
        check_stack(load_config(path))
