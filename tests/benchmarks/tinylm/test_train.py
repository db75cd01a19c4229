"""Training: a run of a few steps through its command, interrupted and resumed, and the folder that it leaves."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from benchmarks.tinylm import chains, train
from benchmarks.tinylm.data import ExampleStream
from benchmarks.tinylm.tokenizer import build_tokenizer
from scaffolding_ext import HuggingFaceWorker, NativeGenerationController, Prompting, ScaffoldingLlm
from scaffolding_ext.tinylm.grammar import GRAMMAR_VERSION, MAX_NUM_STEPS

torch = pytest.importorskip("torch")

NUM_STEPS = 7
OPTIONS = {"--num_steps": NUM_STEPS, "--batch_tokens": 300, "--seed": 3, "--checkpoint_every": 2}
QUESTION = "Start with 5. Apply a+3,b-2. Find the total."


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return build_tokenizer(num_texts=300)


def make_small(tokenizer: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(train, "EXAMPLES_PER_ROUND", 6)
    patch.setattr(train, "build_tokenizer", lambda: tokenizer)


@pytest.fixture(autouse=True)
def small_runs(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of a few batches, so that a run spans some, and one tokenizer for all runs."""
    make_small(tokenizer, monkeypatch)


def call(folder: Path, **options: Any) -> Result:
    """Train the draft model into a folder, which must bear its name."""
    assert folder.name == "draft"
    given = OPTIONS | {f"--{name}": value for name, value in options.items()}
    arguments = ["draft", "--output_path", str(folder.parent), *map(str, itertools.chain(*given.items()))]
    return CliRunner().invoke(train.main, arguments)


def interrupt_after(num_steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run be stopped from the keyboard once it has taken some steps."""
    steps, step = itertools.count(), train.train_step

    def interrupted(*arguments: Any) -> float:
        if next(steps) == num_steps:
            raise KeyboardInterrupt
        return step(*arguments)

    monkeypatch.setattr(train, "train_step", interrupted)


def checkpoint(folder: Path) -> Any:
    return torch.load(folder / "checkpoint.pt", weights_only=True)


def assert_equal(one: Any, other: Any) -> None:
    """Equal to the last bit, all the way down."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        for item, other_item in zip(one, other, strict=True):
            assert_equal(item, other_item)
    else:
        assert one == other


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the draft model goes."""
    return tmp_path / "draft"


@pytest.fixture(scope="module")
def finished(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("finished") / "draft"
    with pytest.MonkeyPatch.context() as patch:
        make_small(tokenizer, patch)
        result = call(folder)
    assert result.exit_code == 0, result.output
    return folder


# ---- runs


def test_a_run_says_how_far_it_is_and_leaves_a_log(finished: Path) -> None:
    log = json.loads((finished / "training.json").read_text())
    state = checkpoint(finished)
    assert state["step"] == NUM_STEPS
    assert log["num_tokens"] == state["num_tokens"] > 0
    assert log["final_loss"] == round(state["mean_loss"], 4) > 0
    assert {key: log[key] for key in state["options"]} == state["options"]
    assert log["grammar_version"] == GRAMMAR_VERSION
    assert not list(finished.glob("*.tmp"))


@pytest.mark.parametrize("num_steps", [1, 2, 3, 5, 6])
def test_a_resumed_run_equals_an_uninterrupted_one(
    finished: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, num_steps: int
) -> None:
    with monkeypatch.context() as patch:
        interrupt_after(num_steps, patch)
        assert call(folder).exit_code == 1
    kept = num_steps - num_steps % 2  # checkpoints are two steps apart
    assert (folder / "checkpoint.pt").exists() == (kept > 0)
    result = call(folder)
    assert result.exit_code == 0, result.output
    resumed, uninterrupted = checkpoint(folder), checkpoint(finished)
    for state in (resumed, uninterrupted):
        del state["cpu_seconds"]
    assert_equal(resumed, uninterrupted)
    assert (folder / "model.safetensors").read_bytes() == (finished / "model.safetensors").read_bytes()


def test_a_run_that_was_interrupted_twice_equals_an_uninterrupted_one(
    finished: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        with monkeypatch.context() as patch:
            interrupt_after(3, patch)
            assert call(folder).exit_code == 1
    assert checkpoint(folder)["step"] == 4
    assert call(folder).exit_code == 0
    assert_equal(checkpoint(folder)["model"], checkpoint(finished)["model"])


def test_a_run_that_is_over_only_saves_its_model_again(tokenizer: Any, folder: Path) -> None:
    assert call(folder, num_steps=2).exit_code == 0
    files = {name: (folder / name).read_bytes() for name in ("checkpoint.pt", "model.safetensors", "training.json")}
    (folder / "model.safetensors").unlink()
    result = call(folder, num_steps=2)
    assert result.exit_code == 0, result.output
    assert {name: (folder / name).read_bytes() for name in files} == files


def test_a_run_is_made_longer_while_its_learning_rate_has_not_fallen(
    finished: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint of two steps, from a run of nine, in which the rate would fall after seven."""
    with monkeypatch.context() as patch:
        interrupt_after(3, patch)
        assert call(folder, num_steps=9).exit_code == 1
    assert checkpoint(folder)["step"] == 2
    result = call(folder)
    assert result.exit_code == 0, result.output
    assert_equal(checkpoint(folder)["model"], checkpoint(finished)["model"])
    assert json.loads((folder / "training.json").read_text())["num_steps"] == NUM_STEPS


@pytest.mark.parametrize("changed", [{"seed": 4}, {"num_steps": 8}, {"batch_tokens": 400}])
def test_other_options_on_the_same_folder_are_refused(finished: Path, changed: dict[str, int]) -> None:
    before = (finished / "checkpoint.pt").read_bytes()
    result = call(finished, **changed)
    assert result.exit_code == 1
    message = " ".join(result.output.split())
    assert "was written by a run with" in message
    assert "use the same options or another --output_path" in message
    assert (finished / "checkpoint.pt").read_bytes() == before


def test_a_checkpoint_of_other_data_is_refused(finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "SLIP_RATE", 0.5)
    result = call(finished)
    assert result.exit_code == 1
    assert "data_fingerprint" in result.output


def test_the_checkpoint_of_another_model_is_refused(finished: Path, tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    shutil.copy(finished / "checkpoint.pt", tmp_path / "target")
    arguments = ["target", "--output_path", str(tmp_path), *map(str, itertools.chain(*OPTIONS.items()))]
    result = CliRunner().invoke(train.main, arguments)
    assert result.exit_code == 1
    assert "'model': 'target'" in " ".join(result.output.split())


def test_without_a_name_both_models_are_trained_with_steps_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "NUM_STEPS", {"target": 2, "draft": 1})
    arguments = ["--output_path", str(tmp_path), "--batch_tokens", "300", "--json"]
    result = CliRunner().invoke(train.main, arguments)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["options"] == {"batch_tokens": 300, "seed": 0, "threads": 1, "checkpoint_every": 250}
    expected = [("target", 2, str(tmp_path / "target")), ("draft", 1, str(tmp_path / "draft"))]
    assert [(model["model"], model["num_steps"], model["path"]) for model in document["models"]] == expected
    for model in document["models"]:
        assert model["final_loss"] > 0
        assert model["num_tokens"] > 0
        assert {"model.safetensors", "tokenizer.json"} <= {path.name for path in Path(model["path"]).iterdir()}
    told = [line for line in result.stderr.splitlines() if line.startswith(("target step", "draft step", "saved"))]
    assert [line.split()[0] for line in told] == ["target", "saved", "draft", "saved"]  # beside transformers' own bars


def test_one_name_trains_that_model_alone_and_progress_is_on_standard_output(folder: Path) -> None:
    result = call(folder, num_steps=1)
    assert result.stdout.splitlines()[-1] == f"saved {folder}"
    assert "draft step 1/1 loss" in result.stdout
    assert [path.name for path in folder.parent.iterdir()] == ["draft"]


def test_the_steps_of_each_model_are_told_by_the_help() -> None:
    assert train.NUM_STEPS == {"target": 4400, "draft": 2000}
    text = " ".join(CliRunner().invoke(train.main, ["--help"]).stdout.split())
    assert "[default: (target 4400, draft 2000)" in text
    assert "runs/tinylm" in text


def test_another_seed_gives_other_weights(finished: Path, folder: Path) -> None:
    assert call(folder, seed=4, num_steps=1).exit_code == 0
    ours, theirs = checkpoint(folder)["model"], checkpoint(finished)["model"]
    assert not torch.equal(ours["model.embed_tokens.weight"], theirs["model.embed_tokens.weight"])


# ---- the folder that a run leaves


def test_the_folder_loads_with_transformers(finished: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model, tokenizer = AutoModelForCausalLM.from_pretrained(finished), AutoTokenizer.from_pretrained(finished)
    assert model.dtype == torch.float32
    advised = model.generation_config
    assert advised.eos_token_id == tokenizer.eos_token_id
    assert {name: getattr(advised, name) for name in train.RECOMMENDED} == train.RECOMMENDED
    for name, weights in checkpoint(finished)["model"].items():
        assert torch.equal(model.state_dict()[name], weights.half().float()), name  # what half precision keeps
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": QUESTION}], tokenize=False)
    assert prompt == f"<|user|>{QUESTION}"


def test_the_folder_runs_in_the_worker(finished: Path) -> None:
    controller = NativeGenerationController({"max_tokens": 5})
    controller.prompting = Prompting.for_model(str(finished), "tinylm")
    with ScaffoldingLlm(controller, {"generation": HuggingFaceWorker(str(finished))}, owns_workers=True) as llm:
        result = llm.generate(QUESTION)
    assert result.outputs[0].text is not None
    assert 0 < len(result.outputs[0].token_ids or []) <= 5


# ---- the loss


def test_the_loss_is_the_mean_over_the_learnt_tokens(tokenizer: Any) -> None:
    """By hand, on one batch; the step itself changes the weights only afterwards."""
    model = train.build_model(train.SHAPES["draft"], tokenizer, seed=0)
    (batch,) = ExampleStream(tokenizer).batches(random.Random(0), 1, 1, 3)
    ids, labels, positions = map(torch.from_numpy, batch[:3])
    with torch.inference_mode():
        logits = model(input_ids=ids, position_ids=positions, attention_mask=torch.from_numpy(batch.mask())).logits
    nll = -torch.log_softmax(logits[0, :-1], -1)
    learnt = [nll[i, label].item() for i, label in enumerate(labels[0, 1:]) if label >= 0]
    assert train.train_step(model, [], batch, 1.0) == pytest.approx(sum(learnt) / len(learnt), rel=1e-2)


# ---- schedules and batches


def test_bfloat16_is_used_where_the_processor_has_units_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for capabilities, expected in (({"avx2": True}, False), ({"avx512_bf16": True}, True), ({"amx_bf16": True}, True)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda found=capabilities: found, raising=False)
        assert train.has_bfloat16_units() is expected


def test_the_learning_rate_warms_up_stays_and_falls_to_two_percent() -> None:
    scales = [train.learning_rate_scale(step, 8_000) for step in range(8_000)]
    assert scales[: train.WARMUP_STEPS] == [(step + 1) / train.WARMUP_STEPS for step in range(train.WARMUP_STEPS)]
    fall = int((1 - train.DECAY_SHARE) * 8_000)
    assert set(scales[train.WARMUP_STEPS : fall + 1]) == {1.0}
    assert all(after <= before for before, after in itertools.pairwise(scales[fall:]))
    assert scales[-1] == 0.02


@pytest.mark.parametrize(("step", "falls"), [(0, False), (680, False), (682, True), (1_000, True)])
def test_the_fall_of_the_learning_rate_begins_after_two_thirds(step: int, falls: bool) -> None:
    """A checkpoint at a step has taken those before it."""
    assert train.learning_rate_falls(step, 1_000) is falls
    assert falls == any(train.learning_rate_scale(taken, 1_000) < 1 for taken in range(train.WARMUP_STEPS, step))


def test_the_curriculum_grows_to_the_longest_problems() -> None:
    longest = [train.curriculum_max_num_steps(step) for step in range(1_000)]
    assert longest[0] == 5
    assert longest == sorted(longest)
    assert longest[500:] == [MAX_NUM_STEPS] * 500


@pytest.mark.parametrize("first_step", [0, 1, 4, 9])
def test_a_resumed_runs_batches_are_the_rest_of_the_run(tokenizer: Any, first_step: int) -> None:
    def batches(start: int, stop: int) -> list[Any]:
        stream = ExampleStream(tokenizer)
        return list(itertools.islice(train.run_batches(stream, 3, 300, start), stop - start))

    for whole, resumed in zip(batches(0, 12)[first_step:], batches(first_step, 12), strict=True):
        assert (whole.ids == resumed.ids).all()
        assert (whole.labels == resumed.labels).all()


def test_matrices_are_muons_and_the_rest_is_adams(tokenizer: Any) -> None:
    model = train.build_model(train.SHAPES["draft"], tokenizer, seed=0)
    muon, adam = train.build_optimizers(model)
    owned = [
        parameter for optimizer in (muon, adam) for group in optimizer.param_groups for parameter in group["params"]
    ]
    assert sorted(map(id, owned)) == sorted(map(id, model.parameters()))
    assert all(parameter.ndim == 2 for group in muon.param_groups for parameter in group["params"])
    assert model.get_input_embeddings().weight.data_ptr() in {
        parameter.data_ptr() for group in adam.param_groups for parameter in group["params"]
    }
