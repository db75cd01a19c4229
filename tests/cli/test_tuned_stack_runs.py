"""Log to `tune` to `eval`: the stack that is written runs on a server, whatever wrote the log."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from scaffolding_ext import load_config
from scaffolding_ext.cli.main import main
from scaffolding_ext.testing import ScriptedWorker
from tests.servers.openai_server import OpenAIServer

pytest.importorskip("openai")
SAMPLES = [["7", "7", "8", "7"], ["7"] * 4, ["7", "9", "7", "7"], ["8", "8", "7", "7"]]  # of four questions
RECORDED = {"temperature": 0.6, "top_p": 0.9, "stop": ["###"], "max_tokens": 300}
DATE = "2026-11-28T10-00-00.000000"


def run(*arguments: object) -> Any:
    return CliRunner().invoke(main, list(map(str, arguments)))


def text_of(answer: str) -> str:
    return f"It is \\boxed{{{answer}}}."


def of_inspect(folder: Path, model: str, patch: pytest.MonkeyPatch) -> Path:
    """A log, by a stand-in for inspect_ai's reader."""
    samples = [
        SimpleNamespace(
            id=number,
            target="7",
            epoch=epoch,
            error=None,
            total_time=1.0,
            model_usage={f"openai-api/local/{model}": SimpleNamespace(output_tokens=200)},
            scores={"match": SimpleNamespace(value="C" if answer == "7" else "I", answer=answer)},
            output=SimpleNamespace(completion=text_of(answer)),
        )
        for number, answers in enumerate(SAMPLES)
        for epoch, answer in enumerate(answers, 1)
    ]
    names = {"stop": "stop_seqs"}
    given = {names.get(name, name): value for name, value in RECORDED.items()} | {"max_retries": 3}
    own = SimpleNamespace(model_dump=lambda exclude_none: {"temperature": 1.0})
    of_task = SimpleNamespace(model_dump=lambda exclude_none: given)
    head = SimpleNamespace(model=f"openai-api/local/{model}", task="sums", model_generate_config=own)
    log = SimpleNamespace(samples=samples, eval=head, plan=SimpleNamespace(config=of_task))
    reader, scorer = ModuleType("inspect_ai.log"), ModuleType("inspect_ai.scorer")
    patch.setattr(reader, "read_eval_log", lambda path: log, raising=False)
    patch.setattr(scorer, "value_to_float", lambda: lambda value: float(value == "C"), raising=False)
    for module in (ModuleType("inspect_ai"), reader, scorer):
        patch.setitem(sys.modules, module.__name__, module)
    (folder / "log.eval").write_text("an archive")
    return folder / "log.eval"


def of_lm_eval(folder: Path, model: str, patch: pytest.MonkeyPatch) -> Path:
    given = {"until": RECORDED["stop"], "do_sample": True, "temperature": 0.6, "top_p": 0.9}
    rows = [
        {
            "doc_id": number,
            "target": "#### 7",
            "arguments": {"gen_args_0": {"arg_0": "the prompt", "arg_1": given}},
            "resps": [list(map(text_of, answers))],
            "filtered_resps": [text_of(answers[0])],
            "filter": "none",
        }
        for number, answers in enumerate(SAMPLES)
    ]
    path = folder / f"samples_sums_{DATE}.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    config = {"model": "local-completions", "model_args": f"model={model},max_gen_toks=300"}
    path.with_name(f"results_{DATE}.json").write_text(json.dumps({"model_name": model, "config": config}))
    return path


def of_lighteval(folder: Path, model: str, patch: pytest.MonkeyPatch) -> Path:
    """Details and results, by a stand-in for the reader of parquet."""
    rows = [
        {
            "doc": {
                "id": str(number),
                "task_name": "sums",
                "choices": ["7"],
                "gold_index": [0],
                "generation_size": 300,
                "stop_sequences": ["###"],
            },
            "model_response": {"text": list(map(text_of, answers)), "output_tokens": [[1] * 200] * 4},
        }
        for number, answers in enumerate(SAMPLES)
    ]
    table = SimpleNamespace(column_names=["doc", "model_response"])
    table.select = lambda names: SimpleNamespace(to_pylist=lambda: rows)
    arrow, parquet = ModuleType("pyarrow"), ModuleType("pyarrow.parquet")
    patch.setattr(arrow, "ArrowException", ValueError, raising=False)
    patch.setattr(parquet, "read_table", lambda path: table, raising=False)
    for module in (arrow, parquet):
        patch.setitem(sys.modules, module.__name__, module)
    path = folder / "details" / model / DATE / f"details_sums_{DATE}.parquet"
    path.parent.mkdir(parents=True)
    path.write_text("parquet")
    parameters = {"temperature": 0.6, "top_p": 0.9, "max_new_tokens": None, "seed": 3}
    config = {"model_name": f"hosted_vllm/{model}" if "/" in model else model, "generation_parameters": parameters}
    results = folder / "results" / model / f"results_{DATE}.json"
    results.parent.mkdir(parents=True)
    results.write_text(json.dumps({"config_general": {"model_config": config}}))
    return path


def of_eval(folder: Path, model: str, patch: pytest.MonkeyPatch) -> Path:
    """A run folder of the server that the stack runs on."""
    stack = {
        "controller": {"type": "NativeGenerationController", "args": {"sampling_params": RECORDED}},
        "workers": {"generation": {"type": "OpenAIWorker", "args": SERVED}},
        "evaluation": {"epochs": 4},
    }
    (folder / "native.yaml").write_text(json.dumps(stack))
    ran = run("eval", "--config", folder / "native.yaml", "--dataset", questions(folder), "--output_path", folder / "r")
    assert ran.exit_code == 0, ran.output
    return folder / "r"


def of_lines(folder: Path, model: str, patch: pytest.MonkeyPatch) -> Path:
    path = folder / "log.jsonl"
    rows = [
        {"id": number, "target": "7", "samples": [{"answer": each, "output_tokens": 200} for each in answers]}
        for number, answers in enumerate(SAMPLES)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def questions(folder: Path) -> Path:
    path = folder / "questions.jsonl"
    path.write_text("\n".join(json.dumps({"id": n, "question": f"{n} + 7?", "answer": "7"}) for n in range(4)))
    return path


SERVED: dict[str, Any] = {}  # arguments of the worker for the server of a test
Written = Callable[[Path, str, pytest.MonkeyPatch], Path]


@pytest.fixture(params=["completions", "chat"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[OpenAIServer, str]]:
    """A server with the tokenizer of its model at hand, and one of an unknown kind that has only chats."""
    model, flavor = ("tinylm/target", "vllm") if request.param == "completions" else ("toy", "openai")
    if flavor == "vllm":
        pytest.importorskip("transformers")
    worker = ScriptedWorker(text_of("7"), logprobs=lambda task, index: {task.output_tokens[index]: -0.1})
    with worker, OpenAIServer(worker, model, flavor=flavor) as found:
        for name, value in {"base_url": found.url, "model": model, "endpoint": "auto"}.items():
            monkeypatch.setitem(SERVED, name, value)
        yield found, request.param


@pytest.mark.parametrize("write", [of_inspect, of_lm_eval, of_lighteval, of_eval, of_lines])
def test_a_tuned_stack_runs_with_all_that_the_log_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: tuple[OpenAIServer, str], write: Written
) -> None:
    served, endpoint = server
    model, stack = SERVED["model"], tmp_path / "stack.yaml"
    log = write(tmp_path, model, monkeypatch)
    tuned = run("tune", log, "--output_path", stack)
    assert tuned.exit_code == 0, tuned.output
    edits = [f"--set=workers.generation.args.base_url={served.url}"] if write is not of_eval else []
    if write is of_lines:  # whose log names no model
        assert "set workers.generation.args: base_url and model" in " ".join(tuned.output.split())
        edits.append(f"--set=workers.generation.args.model={model}")
    served.requests.clear()
    ran = run("eval", "--config", stack, "--dataset", questions(tmp_path), *edits, "--json")
    assert ran.exit_code == 0, ran.output
    warned = [line for line in ran.stderr.splitlines() if "Warning" in line]
    assert all("all samples are the same text" in line for line in warned)  # the server's only text
    summary = json.loads(ran.stdout)["summary"]
    assert (summary["num_failed"], summary["accuracy"]) == (0, 1.0)
    asked = [each for each in served.requests if each.method == "POST" and each.body.get("max_tokens", 0) > 64]
    assert {each.path for each in asked} == {"/v1/chat/completions" if endpoint == "chat" else "/v1/completions"}
    wanted = {"max_tokens": 256} if write is of_lines else RECORDED
    assert load_config(stack).sampling_of_samples() == wanted
    sent = wanted.keys() - {"stop"}  # kept here: it must not end thinking
    for each in asked:
        assert {name: each.body[name] for name in sent} == {name: wanted[name] for name in sent}


def test_what_a_stack_cannot_hold_is_named_and_a_vote_is_not_greedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"temperature": 0.0, "min_p": 0.05, "top_p": 0.9}
    monkeypatch.setattr(sys.modules[__name__], "RECORDED", given)
    stack = tmp_path / "stack.yaml"
    told = " ".join(run("tune", of_inspect(tmp_path, "toy", monkeypatch), "--output_path", stack).output.split())
    assert "Not carried over: temperature 0.0, min_p 0.05." in told
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config = load_config(stack)
    assert config.sampling == {"top_p": 0.9}
    assert config.tuned.sampling == given
