"""A model that is broken, foreign or not there is refused by name before it is served, and never asked about twice."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save_file  # noqa: E402

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController  # noqa: E402
from scaffolding_ext.errors import ConfigError  # noqa: E402
from scaffolding_ext.host.llm import ScaffoldingLlm  # noqa: E402
from scaffolding_ext.prompts.prompting import Prompting  # noqa: E402
from scaffolding_ext.prompts.tokenizers import load_tokenizer, model_folder  # noqa: E402
from scaffolding_ext.stack.build import check_stack  # noqa: E402
from scaffolding_ext.stack.load import load_config  # noqa: E402
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker  # noqa: E402

MODEL = "tinylm/draft"
LAYER = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded model."""
    return Path(shutil.copytree(model_folder(MODEL), tmp_path / "model"))


def refusal(model: object, **options: object) -> str:
    with pytest.raises(ConfigError) as caught:
        HuggingFaceWorker(str(model), **options)  # type: ignore[arg-type]
    assert caught.value.key == "model"
    return caught.value.message


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def edit_weights(folder: Path, name: str, weights: torch.Tensor | None, beside: str | None = None) -> None:
    """Replace or drop weights; or put some under a new name beside them."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    if beside is None:
        del tensors[name]
    if weights is not None:
        tensors[beside or name] = weights
    save_file(tensors, path, metadata={"format": "pt"})


def test_weights_that_are_missing_are_not_made_up(folder: Path) -> None:
    edit_weights(folder, LAYER, None)
    assert f"lacks the weights {LAYER}, and transformers would set them at random" in refusal(folder)


def test_a_config_of_fewer_layers_than_the_file_has(folder: Path) -> None:
    edit(folder / "config.json", num_hidden_layers=1)
    assert "has no place for the weights model.layers.1." in refusal(folder)


def test_a_layer_that_the_config_does_not_count(folder: Path) -> None:
    name = "model.layers.9.mlp.down_proj.weight"
    edit_weights(folder, LAYER, torch.ones(2, 2), name)
    assert f"has no place for the weights {name}" in refusal(folder)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint8])
def test_weights_in_a_packed_type(folder: Path, dtype: torch.dtype) -> None:
    weights = load_file(folder / "model.safetensors")[LAYER]
    edit_weights(folder, LAYER, weights.to(dtype))
    name = {torch.float8_e4m3fn: "F8_E4M3", torch.uint8: "U8"}[dtype]
    assert f"whose weights {LAYER} are stored as {name}, and config.json names no quantization" in refusal(folder)


def test_weights_of_another_part_are_left_out_with_a_warning(folder: Path) -> None:
    edit_weights(folder, LAYER, torch.ones(1), "vision.layers.7.proj.weight")
    with pytest.warns(UserWarning, match=r"the weights vision\.layers\.7\.proj\.weight of the checkpoint are left out"):
        HuggingFaceWorker(str(folder)).shutdown()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.uint8])
@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("config.json", {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}}),
        ("hf_quant_config.json", {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8"}}),
    ],
)
def test_a_quantisation_that_transformers_does_not_know(
    folder: Path, file: str, said: dict[str, object], dtype: torch.dtype
) -> None:
    path = folder / file
    if not path.exists():
        path.write_text("{}")
    edit(path, **said)
    weights = load_file(folder / "model.safetensors")[LAYER]
    edit_weights(folder, LAYER, torch.ones(1), LAYER + "_scale")
    edit_weights(folder, LAYER, weights.to(dtype))
    assert "config.json names no quantization that transformers knows: choose the checkpoint" in refusal(folder)


def test_weights_packed_in_half_the_size(folder: Path) -> None:
    edit_weights(folder, LAYER, torch.zeros(96, 144, dtype=torch.uint8))
    assert "if quantised, choose the checkpoint in bfloat16, or serve it" in refusal(folder)


@pytest.mark.parametrize("config", [{"peft_type": "LORA", "r": 2}])
def test_an_adapter_that_would_be_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, object]
) -> None:
    (folder / "adapter_config.json").write_text(json.dumps(config))
    monkeypatch.setattr("scaffolding_ext.workers.huggingface.model_loading.find_spec", lambda name: None)
    assert "an adapter (adapter_config.json) that needs peft" in refusal(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers(folder: Path, value: float) -> None:
    weights = load_file(folder / "model.safetensors")[LAYER]
    weights[0, 0] = value
    edit_weights(folder, LAYER, weights)
    assert f"whose weights {LAYER} hold NaN or infinite numbers" in refusal(folder)


def test_weights_of_another_size(folder: Path) -> None:
    edit_weights(folder, LAYER, torch.zeros(5, 288))
    assert "its weights have other sizes than its config.json says" in refusal(folder)


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_a_file_of_weights_that_was_cut_off(folder: Path, share: float) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    assert "its weights cannot be read, and the download may have been cut off (SafetensorError: " in refusal(folder)


@pytest.mark.parametrize(
    ("file", "text"), [("config.json", "{"), ("config.json", "[" * 100_000), ("tokenizer.json", "{}")]
)
def test_files_that_say_nothing(folder: Path, file: str, text: str) -> None:
    (folder / file).write_text(text)
    assert f"is {str(folder)!r}, which cannot be loaded: " in refusal(folder)


CODE = "Path = __import__('pathlib').Path\nPath(__file__ + '.ran').touch()\n"


def test_a_model_with_code_of_its_own_is_refused_and_nothing_asks(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    edit(folder / "config.json", model_type="own", auto_map={"AutoConfig": "own.Config"})
    (folder / "own.py").write_text(CODE)
    assert "needs Python code from its repository: read it, and set trust_remote_code" in refusal(folder)
    edit(folder / "tokenizer_config.json", tokenizer_class="Own", auto_map={"AutoTokenizer": ["own.Own", None]})
    load_tokenizer.cache_clear()  # the folder's first one was sound
    with pytest.raises(ConfigError, match="trust_remote_code"):
        Prompting.for_model(str(folder))
    assert "y/N" not in capfd.readouterr().out
    assert not list(folder.glob("*.ran"))


def test_a_model_with_code_of_its_own_is_served_to_who_trusts_it(folder: Path) -> None:
    edit(
        folder / "config.json",
        model_type="own_llama",
        auto_map={"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"},
    )
    (folder / "own.py").write_text(
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "class OwnConfig(LlamaConfig):\n    model_type = 'own_llama'\n"
        "class OwnModel(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    )
    (folder / "own_tokenizer.py").write_text(
        "from transformers import PreTrainedTokenizerFast\nclass OwnTokenizer(PreTrainedTokenizerFast):\n    pass\n"
    )
    names = [None, "own_tokenizer.OwnTokenizer"]
    edit(folder / "tokenizer_config.json", tokenizer_class="OwnTokenizer", auto_map={"AutoTokenizer": names})
    assert Prompting.for_model(str(folder), trust_remote_code=True).encode("5")
    with HuggingFaceWorker(str(folder), trust_remote_code=True) as worker:
        assert type(worker.chat_tokenizer()).__name__ == "OwnTokenizer"
        with ScaffoldingLlm(NativeGenerationController({"max_tokens": 1}), {"generation": worker}) as llm:
            assert llm.prototype_controller.prompting.encode("5")


@pytest.mark.parametrize("model", ["", "a\0b", "tinylm/" + "n" * 300, "../none", "a/b/c"])
def test_a_name_that_no_model_can_have(model: str) -> None:
    assert "tinylm/" in refusal(model)


def test_a_file_is_no_model(folder: Path) -> None:
    assert "there is no such folder" in refusal(folder / "config.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("device=quantum", "workers.generation.args.device: is 'quantum', which torch "),
        ("dtype=int4", "workers.generation.args.dtype: is 'int4'; choose one of float32"),
        ("threads=0", "workers.generation.args.threads: is 0; it must be at least 1"),
        ("threads=100000", "workers.generation.args.threads: is 100000; it must be at least 1 and at most"),
        (
            "max_batch_size=1000000000",
            "workers.generation.args.max_batch_size: is 1000000000; it must be at least 1 and at most 65536",
        ),
        ("model=./none", "workers.generation.args.model: is './none', neither a folder here"),
        ("model=tinylm/none", "workers.generation.args.model: unknown"),
    ],
)
def test_a_stack_is_checked_without_loading_its_model(change: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_stack(load_config("configs:native", [f"workers.generation.args.{change}"]))
    assert str(caught.value).startswith(message)


# ---- the hub


class Hub(http.server.BaseHTTPRequestHandler):
    """Is out of order, and counts who asks."""

    def do_HEAD(self) -> None:
        """Answer."""
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        self.send_response(503)
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[http.server.ThreadingHTTPServer]:
    """A hub that cannot answer."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.asked = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def load(hub: http.server.ThreadingHTTPServer, home: Path) -> tuple[str, list[str]]:
    """Return the output of a process that loads a model of the hub, and the requests to the hub."""
    code = (
        "from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker\n"
        "from scaffolding_ext.errors import ConfigError\n"
        "try:\n    HuggingFaceWorker('org/name').shutdown()\n    print('served')\n"
        "except ConfigError as error:\n    print(error)\n"
    )
    environment = {
        key: value for key, value in os.environ.items() if key not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    }
    environment |= {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    asked = [path for path in hub.asked if "org/name" in path]  # type: ignore[attr-defined]
    return done.stdout, asked


def test_a_hub_that_does_not_answer_is_asked_once(hub: http.server.ThreadingHTTPServer, tmp_path: Path) -> None:
    said, asked = load(hub, tmp_path)
    assert said.startswith(
        "model: is 'org/name', neither a folder here nor a model of the hub that was downloaded before"
    )
    assert "503" in said
    assert asked == ["/api/models/org/name"]


def test_a_model_that_was_downloaded_is_served_without_the_hub(
    hub: http.server.ThreadingHTTPServer, tmp_path: Path
) -> None:
    place = tmp_path / "hub" / "models--org--name"
    shutil.copytree(model_folder(MODEL), place / "snapshots" / ("0" * 40))
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text("0" * 40)
    said, asked = load(hub, tmp_path)
    assert said == "served\n"
    assert set(asked) == {"/api/models/org/name"}
