"""Fixtures of several folders: a host and a worker, folders of runs, and Pythons that start at once."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import selectors
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.evaluation.run.records import Record, prompt_hash, record_writer
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import Controller, Worker
from scaffolding_ext.protocol.meta import Purpose
from scaffolding_ext.request.ledger import Ledger
from scaffolding_ext.request.program import current_program, leave_program
from scaffolding_ext.testing import ScriptedWorker

# How long an example takes says how busy the machine is.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def leaves_no_program() -> Iterator[None]:
    """A test that leaves its program to those that come after it fails; they would work on its behalf."""
    yield
    left = current_program()
    leave_program()
    assert left is None, "run what enters a program in contextvars.copy_context()"


@pytest.fixture
def echo() -> Callable[..., ScriptedWorker]:
    """Makes a worker that answers with the prompt in capitals."""
    return lambda before=None: ScriptedWorker(lambda task: task.input_str.upper(), before=before)


@pytest.fixture
def failing_on() -> Callable[..., ScriptedWorker]:
    """Makes a worker that fails at one prompt, with an error of that type."""

    def make(text: str, error: type[Exception] = RuntimeError) -> ScriptedWorker:
        return ScriptedWorker(lambda task: error("out of luck") if task.input_str == text else task.input_str.upper())

    return make


@pytest.fixture
def host(echo: Callable[..., ScriptedWorker]) -> Callable[..., ScaffoldingLlm]:
    """Makes a host of one controller and one worker, plain generation on the echo by default."""

    def make(controller: Controller | None = None, worker: Worker | None = None, **options: Any) -> ScaffoldingLlm:
        return ScaffoldingLlm(controller or NativeGenerationController(), {"generation": worker or echo()}, **options)

    return make


@pytest.fixture
def write_run(tmp_path: Path) -> Callable[..., Path]:
    """Writes the folder of a run, as `eval` does: a row is (id, correct, decoded) and what its record has otherwise."""

    def make(row: tuple[Any, ...]) -> Record:
        identity, correct, decoded, *rest = row
        changes = dict(*rest)
        ledger = Ledger()
        ledger.add(Purpose.PROMPT, prefilled=10)
        ledger.add(Purpose.CHAIN, decoded)
        if probes := changes.pop("probes", 0):
            ledger.add(Purpose.PROBE, probes)
        fields: dict[str, Any] = {
            "id": identity,
            "epoch": 0,
            "prompt_hash": prompt_hash(identity),
            "target": "1",
            "output": "1" if correct else "2",
            "answer": "1" if correct else "2",
            "correct": bool(correct),
            "verdict": "equal" if correct else "different",
            "exit_reason": "end",
            "ledger": ledger.to_json(),
            "seconds": {"total": decoded / 100},
            "seed": None,
            "trace": [],
            "error": None,
        }
        return Record.from_json(fields | changes)

    def write(name: str, rows: list[tuple[Any, ...]], config: str | None = None) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        with record_writer(folder / "samples.jsonl") as append:
            for row in rows:
                append(make(row))
        if config is not None:
            (folder / "config.yaml").write_text(config, encoding="utf-8")
        return folder

    return write


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are drawn, instead of their files."""
    figures: list[Any] = []
    module = pytest.importorskip("matplotlib.figure")
    monkeypatch.setattr(module.Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    return figures


@pytest.fixture
def style_faults() -> Callable[[Any], list[str]]:
    """Says what a picture lacks of the style of `scaffolding_ext.evaluation.drawing`."""
    ticker = pytest.importorskip("matplotlib.ticker")

    def faults(figure: Any) -> list[str]:
        figure.draw_without_rendering()
        seen = [axes for axes in figure.axes if axes.get_visible()]
        found = []
        for axes in seen:
            if not axes.get_title(loc="left"):
                found.append("no title")
            broken = {str(line.get_gid()) for line in axes.lines}
            for axis, end in ((axes.xaxis, "x"), (axes.yaxis, "y")):
                is_numbers = axis.get_scale() == "linear" and not isinstance(
                    axis.get_major_locator(), ticker.FixedLocator
                )
                low, high = sorted(axis.get_view_interval())
                if is_numbers and not low <= 0 <= high and f"break {end}" not in broken:
                    found.append(f"{end} begins at {low:g}")
        legends = [legend for axes in seen if (legend := axes.get_legend()) is not None]
        for legend in (*figure.legends, *legends):
            place = legend.get_window_extent()
            if any(place.overlaps(axes.patch.get_window_extent()) for axes in seen):
                found.append("legend on the data")
        return found

    return faults


# Templates written for these tests, which behave as those of the models for conversations of texts; they were held
# against the models' own where these could be had (docs/models.md says which).
TEMPLATES = Path(__file__).parent / "prompts" / "chat_templates"
MODEL_TYPES = {
    **dict.fromkeys(("deepseek_r1_distill", "qwq"), "qwen2"),
    **dict.fromkeys(("qwen3", "qwen3_instruct_2507"), "qwen3"),
    **dict.fromkeys(("llama3_instruct", "smollm2"), "llama"),
    **dict.fromkeys(("mistral_instruct", "magistral"), "mistral3"),
    "gpt_oss": "gpt_oss",
    "nemotron_super_v1_5": "nemotron-nas",
    "nemotron3_nano": "nemotron_h",
    "phi4_reasoning": "phi3",
}
FIRST_TOKENS = {
    "deepseek_r1_distill": "<\uff5cbegin\u2581of\u2581sentence\uff5c>",
    **dict.fromkeys(("nemotron_super_v1_5", "llama3_instruct"), "<|begin_of_text|>"),
}
SPECIAL_TOKENS = ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>", "<|im_start|>", "<|im_end|>")


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Saves a tokenizer with the chat template of a well-known model, and a config.json; gives the folder."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    from scaffolding_ext.prompts.tokenizers import model_folder

    @functools.cache
    def save(name: str, special: tuple[str, ...] = (), **config: Any) -> str:
        backend = Tokenizer.from_file(str(Path(model_folder("tinylm/draft")) / "tokenizer.json"))
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
        tokenizer.add_special_tokens({"additional_special_tokens": [*SPECIAL_TOKENS, *special]})
        tokenizer.chat_template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8").rstrip("\n")
        tokenizer.bos_token = FIRST_TOKENS.get(name, "<s>")
        folder = tmp_path_factory.mktemp(name) / "model"
        tokenizer.save_pretrained(folder)
        (folder / "config.json").write_text(json.dumps({"model_type": MODEL_TYPES[name]} | config))
        return str(folder)

    return save


LOOP_FILES = {
    asyncio.base_events.__file__,
    asyncio.events.__file__,
    asyncio.selector_events.__file__,
    selectors.__file__,
}


class CallCount:
    """Counts the functions, of Python and of C, that one thread calls, but for those of the event loop itself.

    How often a loop wakes depends on what else the machine does; the rest of the figure does not.

    Attributes:
        num: Calls so far.
    """

    def __init__(self) -> None:
        self.num = 0

    def start(self) -> None:
        """Count from here on, on the calling thread."""
        sys.setprofile(self._count)

    def stop(self) -> None:
        """Count no longer, on the calling thread."""
        sys.setprofile(None)

    def _count(self, frame: Any, event: str, argument: object) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename not in LOOP_FILES:
            self.num += 1

    @contextmanager
    def on_loop(self, loop: asyncio.AbstractEventLoop) -> Iterator[CallCount]:
        """Count what the thread of a running loop calls while the block runs."""
        for action, then in ((self.start, True), (self.stop, False)):
            done = threading.Event()
            loop.call_soon_threadsafe(lambda run=action, told=done: (run(), told.set()))
            done.wait()
            if then:
                yield self


@pytest.fixture
def call_count() -> CallCount:
    """Counts function calls; see `CallCount`."""
    return CallCount()


# What is slow to import: of the package's own dependencies, and of those that run a model.
CORE = ("asyncio", "click", "numpy", "pydantic", "rich.progress", "scipy.optimize", "scipy.stats", "yaml")
MODELS = (
    "torch",
    "transformers.generation.utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.modeling_llama",
)


@contextmanager
def warm(folder: Path, *modules: str) -> Iterator[Path]:
    """A folder with a `python` and a `scaffolding-ext`, each a process of its own that has imported the modules."""
    tests, address = Path(__file__).parent, folder / "socket"
    for name, arguments in (("python", ()), ("scaffolding-ext", ("-m", "scaffolding_ext"))):
        command = shlex.join([sys.executable, "-IS", str(tests / "warm_python.py"), str(address), *arguments])
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (folder / name).chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(tests / "warm_interpreter.py"), str(address), *modules]
    with subprocess.Popen(
        command, env=environment | {"OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n"
        yield folder
        server.terminate()


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A `python`, and a `scaffolding-ext`, that need not import what the package stands on."""
    with warm(tmp_path_factory.mktemp("warm"), *CORE) as folder:
        yield folder


@pytest.fixture(scope="session")
def warm_torch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same, that need not import torch and transformers either."""
    with warm(tmp_path_factory.mktemp("warm"), *CORE, *MODELS) as folder:
        yield folder
