"""Other clients of OpenAI's interface, unchanged, against a front: litellm, and lm-evaluation-harness.

    pip install litellm 'lm-eval[api]'
    pytest -m integration tests/integration/test_openai_clients.py

Not the release 1.107.0 of litellm, which was tampered with.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scaffolding_ext import DynasorCoTController, MajorityVoteController, NativeGenerationController, ScaffoldingLlm
from scaffolding_ext.protocol import Controller
from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.server import FrontThread
from scaffolding_ext.serving.settings import Limits
from scaffolding_ext.testing import ScriptedWorker

pytestmark = pytest.mark.integration
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it asks the web for prices when it is imported
CONTROLLERS: dict[str, Controller] = {
    "plain": NativeGenerationController(),
    "dynasor": DynasorCoTController(400, 2, 16),
    "vote": MajorityVoteController(NativeGenerationController({"temperature": 1.0}), 4, allocation=None),
}
SAID = "It is \\boxed{4}."
TASK = """
task: two_and_two
dataset_path: json
dataset_kwargs: {data_files: {test: FOLDER/questions.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{answer}}"
generation_kwargs: {until: ["Question:", "</s>"], do_sample: true, temperature: 0.7, max_gen_toks: 64}
filter_list:
  - name: boxed
    filter:
      - {function: regex, regex_pattern: "boxed{([0-9]+)}"}
      - {function: take_first}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    limits = Limits()
    stacks = [
        ServedStack(name, ScaffoldingLlm(controller, {"generation": ScriptedWorker(SAID)}), limits)
        for name, controller in CONTROLLERS.items()
    ]
    with FrontThread(Front(stacks, limits)) as running:
        yield running.url


@pytest.mark.parametrize("name", sorted(CONTROLLERS))
def test_lm_evaluation_harness(url: str, name: str, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval")
    rows = [json.dumps({"question": f"{a}+{4 - a}?", "answer": "4"}) for a in range(4)]
    (tmp_path / "questions.jsonl").write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "two_and_two.yaml").write_text(TASK.replace("FOLDER", str(tmp_path)), encoding="utf-8")
    model = f"model={name},base_url={url}/v1/chat/completions,num_concurrent=4,max_retries=1,tokenized_requests=False"
    command = [
        *(sys.executable, "-m", "lm_eval", "--model", "local-chat-completions", "--model_args", model),
        *("--tasks", "two_and_two", "--include_path", str(tmp_path), "--apply_chat_template"),
        *("--output_path", str(tmp_path / "out")),
    ]
    environment = os.environ | {"OPENAI_API_KEY": "none", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    (results,) = (tmp_path / "out").rglob("results_*.json")
    assert json.loads(results.read_text(encoding="utf-8"))["results"]["two_and_two"]["exact_match,boxed"] == 1.0
