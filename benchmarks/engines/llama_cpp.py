"""The transformers engine beside llama.cpp's own server: same weights, same prompts, prompt and decode apart.

    python -m benchmarks.engines.llama_cpp --llama_python ../llama/bin/python --quick

`--llama_python` is a Python in which `xllamacpp` is installed (CONTRIBUTING.md, "OpenAIWorker on llama.cpp's servers").
The weights are an embedded model, which is written as a GGUF file, or a folder (`--model`) and GGUF files of the same
model (`--gguf`, several times). All sides get the same token ids, decode greedily and ignore the end. They take turns,
in an order that changes from round to round. A round reads the prompts and draws one token each; then it reads them
again and draws `num_tokens` more: the difference is what decoding takes. Figures are geometric means over the rounds
with 95 % intervals (Student's t of the logarithms). Those of one thread are in CPU seconds of the process that
computes, since the machine may be shared; ratios of a whole run by the clock are beside them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.pairs import Prompts, Samples
from benchmarks._lib.provenance import DATA
from benchmarks._lib.report import Report
from scaffolding_ext.evaluation.run.datasets import EMBEDDED, load_dataset
from scaffolding_ext.prompts.prompting import load_tokenizer
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker

SERVER = Path(__file__).resolve().parents[2] / "tests" / "integration" / "xllamacpp_server.py"
MOST_START_S = 120.0
CPU, WALL = "of the CPU", "of the clock"
GOALS = {1: 0.5, 8: 1.0, 32: 1.0, 64: 1.0}  # tokens a second to theirs


class Took(NamedTuple):
    """What a run took: seconds of the clock, and of the process that computes."""

    wall_s: float
    cpu_s: float


class Ours:
    """A worker of this process.

    Args:
        model: Its model.
        threads: Of torch.
        options: Further arguments.
    """

    def __init__(self, model: str, threads: int, options: dict[str, Any]) -> None:
        self._worker = HuggingFaceWorker(model, threads=threads, enable_block_reuse=False, **options)

    def run(self, prompts: Prompts, num_tokens: int) -> Took:
        """All prompts at once."""
        tasks = [
            GenerationTask(input_tokens=ids, max_tokens=num_tokens, temperature=0.0, ignore_eos=True) for ids in prompts
        ]

        async def serve() -> None:
            await asyncio.gather(*[self._worker.run_task(task) for task in tasks])

        wall, cpu = time.perf_counter(), time.process_time()
        asyncio.run(serve())
        took = Took(time.perf_counter() - wall, time.process_time() - cpu)
        assert all(len(task.output_tokens or ()) == num_tokens for task in tasks)
        return took

    def close(self) -> None:
        """Stop it."""
        self._worker.shutdown()


class Theirs:
    """llama.cpp's server in a process of its own.

    Args:
        python: Has xllamacpp.
        gguf: The model file.
        context_len: Tokens of a slot.
        num_slots: Requests at once.
        threads: That compute.
    """

    def __init__(self, python: str, gguf: Path, context_len: int, num_slots: int, threads: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        sizes = [str(port), str(context_len), str(num_slots), str(threads)]
        command = [python, str(SERVER), str(gguf), "model", *sizes]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._address = f"http://127.0.0.1:{port}"
        self._pool = ThreadPoolExecutor(num_slots)
        end = time.monotonic() + MOST_START_S
        while True:
            with contextlib.suppress(OSError):
                self._ask("/health")
                break
            if self._process.poll() is not None or time.monotonic() > end:
                self.close()
                raise click.ClickException(f"{python} does not serve {gguf}: is xllamacpp installed there?")
            time.sleep(0.1)

    def run(self, prompts: Prompts, num_tokens: int) -> Took:
        """All prompts at once."""
        fields = {"n_predict": num_tokens, "ignore_eos": True, "cache_prompt": False, "samplers": ["top_k"], "top_k": 1}
        wall, cpu = time.perf_counter(), self._cpu_s()
        replies = list(self._pool.map(lambda ids: self._ask("/completion", {"prompt": ids, **fields}), prompts))
        took = Took(time.perf_counter() - wall, self._cpu_s() - cpu)
        assert all(reply["tokens_predicted"] == num_tokens for reply in replies)
        return took

    def close(self) -> None:
        """Stop it."""
        self._pool.shutdown()
        self._process.terminate()
        self._process.wait(30)

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self._address}{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as reply:
            return json.load(reply)

    def _cpu_s(self) -> float:
        return time.clock_gettime(
            (~self._process.pid << 3) | 2
        )  # what clock_getcpuclockid gives for a process on Linux


def as_float16(source: Path, target: Path) -> Path:
    """Write a model file with its matrices in float16."""
    import gguf
    import numpy as np

    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    left_out = {"general.architecture", "general.file_type", "general.quantization_version"}
    for field in reader.fields.values():
        if field.name not in left_out and not field.name.startswith("GGUF."):
            kind = field.types[0]
            inner = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, inner)
    writer.add_file_type(1)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, values.astype(np.float16) if values.ndim > 1 else values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@contextlib.contextmanager
def started(sides: dict[str, Callable[[], Ours | Theirs]]) -> Iterator[dict[str, Ours | Theirs]]:
    """All sides, which are stopped behind the block."""
    with contextlib.ExitStack() as stack:
        found = {}
        for name, make in sides.items():
            found[name] = make()
            stack.callback(found[name].close)
        yield found


@benchmark("engines.llama_cpp --llama_python ../llama/bin/python --quick")
@click.option("--llama_python", required=True, envvar="SCAFFOLDING_XLLAMACPP", help="A Python that has xllamacpp.")
@click.option("--model", default="tinylm/target", show_default=True, help="The model, for this package's engine.")
@click.option("--gguf", type=DATA, multiple=True, help="Files of it for llama.cpp; left out, an embedded model's own.")
@click.option("--float16", is_flag=True, help="Serve the first file in float16, too.")
@click.option("--dataset", default=EMBEDDED, show_default=True, help="Where the prompts come from.")
@click.option("--requests", default=None, help="How many at once, with commas.  [default: 1,8,32,64; quick: 1,8]")
@click.option("--threads", default=1, show_default=True, help="Of each side.")
@size("--prompt_len", 64, quick=32, help="Tokens of a prompt, the last of its text.")
@size("--num_tokens", 48, quick=32, help="Tokens that each request decodes behind its first.")
@size("--repetitions", 4, quick=2, help="Rounds.", least=2)
def main(
    report: Report,
    llama_python: str,
    model: str,
    gguf: tuple[Path, ...],
    float16: bool,
    dataset: str,
    requests: str | None,
    threads: int,
    prompt_len: int,
    num_tokens: int,
    repetitions: int,
) -> None:
    """Tokens a second of this package's engine in ratio to llama.cpp's server, prompt and decode apart."""
    clock = CPU if threads == 1 else WALL
    at_once = [int(part) for part in (requests or ("1,8" if report.setting["quick"] else "1,8,32,64")).split(",")]
    report.setting |= {
        "llama_python": Path(llama_python).name,
        "requests": at_once,
        "load_at_start": os.getloadavg()[0],
    }
    tokenizer = load_tokenizer(model)
    most = max(at_once)
    drawn = {"num_samples": most, "seed": report.seed} if dataset == EMBEDDED else {"limit": str(most)}
    prompts: Prompts = [
        (tokenizer.encode(sample.prompt, add_special_tokens=False) * prompt_len)[-prompt_len:]
        for sample in load_dataset(dataset, **drawn)
    ]
    context_len = prompt_len + num_tokens + 8
    with tempfile.TemporaryDirectory() as folder:
        files = {path.stem.rpartition(".")[2].lower(): path for path in gguf}
        if not files:
            from benchmarks.tinylm.to_gguf import write_gguf

            files = {"float32": Path(folder) / "model.float32.gguf"}
            write_gguf(model, files["float32"])
        if float16:
            files["float16"] = as_float16(next(iter(files.values())), Path(folder) / "model.float16.gguf")
        ours: dict[str, dict[str, Any]] = {"float32": {}}
        if not model.startswith("tinylm/"):  # of an embedded one they stay as they are
            ours["int8"] = {"weight_dtype": "int8", "kv_cache_dtype": "float16"}
        makers: dict[str, Callable[[], Ours | Theirs]] = {}
        for name, options in ours.items():
            makers[f"ours {name}"] = partial(Ours, model, threads, {"max_batch_size": most, **options})
        for name, path in files.items():
            makers[f"llama.cpp {name}"] = partial(Theirs, llama_python, path, context_len, most, threads)
        samples = Samples()
        with started(makers) as sides:
            for side in sides.values():
                side.run(prompts[: min(most, 8)], 4)
            for turn in track(range(repetitions), "rounds"):
                for number in at_once:
                    measure(sides, list(makers), samples, turn, prompts[:number], num_tokens, clock)
    report.setting["load_at_end"] = os.getloadavg()[0]
    samples.report(report)
    for number in at_once:
        for name in files:
            figures = [f"decode at {number}: ours {mine} / llama.cpp {name}" for mine in ours]
            best = max(figures, key=samples.mean)
            report.bar(best, samples.mean(best), ">=", GOALS.get(number, 1.0))


def measure(
    sides: dict[str, Ours | Theirs],
    names: list[str],
    samples: Samples,
    turn: int,
    prompts: Prompts,
    num_tokens: int,
    clock: str,
) -> None:
    """One round with so many prompts: each side reads them, and reads them again and decodes."""
    took: dict[str, dict[str, float]] = {}
    first = turn % len(names)
    for name in (*names[first:], *names[:first])[:: 1 if turn % 2 else -1]:
        read, whole = sides[name].run(prompts, 1), sides[name].run(prompts, 1 + num_tokens)
        both = (read.cpu_s, whole.cpu_s) if clock == CPU else (read.wall_s, whole.wall_s)
        if both[0] >= both[1]:
            raise click.ClickException(f"{name} took longer to read than to read and decode: raise --num_tokens")
        took[name] = {"prompt": both[0], "decode": both[1] - both[0], "wall of all": whole.wall_s}
    number = len(prompts)
    for name in names:
        for part, num in (("prompt", number * len(prompts[0])), ("decode", number * num_tokens)):
            samples.add(**{f"{part} at {number}: {name}, tokens a second": num / took[name][part]})
    for mine in [name for name in names if name.startswith("ours")]:
        for other in [name for name in names if not name.startswith("ours")]:
            for part in took[mine]:
                samples.add(**{f"{part} at {number}: {mine} / {other}": took[other][part] / took[mine][part]})


if __name__ == "__main__":
    main()
