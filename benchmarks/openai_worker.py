"""What a probed chain costs over HTTP: bytes sent and received, as the server counts them, beside the text of it.

    python benchmarks/openai_worker.py

DynasorCoT on a recorded chain of 300, 2,000 and 8,000 tokens of the embedded tokenizer, which the server plays back:
the probes never agree, so that each chain runs to its end. Prompts go as token ids (`ids`), or
with `compact_prompts` as text where that gives the same ids. Bytes are those of the bodies; what the headers add is
told beside.
"""

from __future__ import annotations

import itertools
from typing import Any, ClassVar, NamedTuple

import click
from common import Bar, Report, report_options

from scaffolding_ext import DynasorCoTController, OpenAIWorker, ScaffoldingLlm
from scaffolding_ext.evaluation.datasets import load_dataset
from scaffolding_ext.prompting import load_tokenizer
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, TaskStatus, Worker
from scaffolding_ext.tasks import TokenCounts, set_token_counts
from scaffolding_ext.testing_server import OpenAIServer

MODEL = "tinylm/draft"
LENGTHS = (300, 2_000, 8_000)
PROBE_TOKENS = 7  # no chunk has as few
MODES: dict[str, dict[str, Any]] = {
    "stream, geometric 2": {"probe_spacing": "geometric", "spacing_growth": 2.0},
    "stream, geometric 1.5": {"probe_spacing": "geometric", "spacing_growth": 1.5},
    "stream, fixed 64": {},
    "chunk, geometric 2": {"mode": "chunk", "probe_spacing": "geometric", "spacing_growth": 2.0},
    "chunk, fixed 64": {"mode": "chunk"},
}
BAR = 4.0  # bytes sent over bytes of the final text, in stream mode with geometric spacing


class RecordedWorker(Worker):
    """Plays one chain back, piece by piece, and answers each probe differently.

    Args:
        token_ids: The chain.
    """

    model = MODEL

    def __init__(self, token_ids: list[int]) -> None:
        self._token_ids = token_ids
        self._tokenizer = load_tokenizer(MODEL).backend_tokenizer
        self._answers = itertools.count()
        self._num_played = 0

    async def _generate(self, task: GenerationTask) -> TaskStatus:
        if task.max_tokens == PROBE_TOKENS:
            text = f"{next(self._answers)}}}"
            self._write(task, self._tokenizer.encode(text, add_special_tokens=False).ids, "stop")
            return TaskStatus.SUCCESS
        start = self._num_played
        self._num_played += task.max_tokens or 0
        self._write(task, self._token_ids[start : self._num_played], "length")
        return TaskStatus.SUCCESS

    async def _stream(self, task: StreamGenerationTask) -> TaskStatus:
        known, text = len(task.output_tokens or ()), task.output_str or ""
        num_tokens = min(known + (task.streaming_step or 1), task.max_tokens or 0)
        task.end_flag = bool(task.cancel_flag) or num_tokens == task.max_tokens
        self._write(task, self._token_ids[known:num_tokens], "length" if task.end_flag else None)
        task.output_tokens, task.output_str = self._token_ids[:num_tokens], text + (task.output_str or "")
        return TaskStatus.SUCCESS

    def _write(self, task: GenerationTask, token_ids: list[int], reason: str | None) -> None:
        task.output_tokens, task.output_str = token_ids, self._tokenizer.decode(token_ids)
        task.finish_reason = reason
        set_token_counts(task, TokenCounts(len(token_ids), 1))

    task_handlers: ClassVar[dict[Any, Any]] = {GenerationTask: _generate, StreamGenerationTask: _stream}


class Traffic(NamedTuple):
    """Bytes of one chain.

    Attributes:
        num_requests: Requests that it took.
        sent: Bytes of their bodies.
        headers: Bytes of their headers.
        received: Bytes of the answers.
        text: Bytes of the text that came of it.
        num_chain_uploads: Requests beside the probes and the first.
    """

    num_requests: int
    sent: int
    headers: int
    received: int
    text: int
    num_chain_uploads: int


def recorded_chain(num_tokens: int) -> list[int]:
    """Tokens of held-out problems, one behind the other."""
    encode = load_tokenizer(MODEL).backend_tokenizer.encode
    texts = itertools.cycle(sample.prompt + "\n" for sample in load_dataset("tinylm:held_out", num_samples=100))
    ids: list[int] = []
    while len(ids) < num_tokens:
        ids += encode(next(texts), add_special_tokens=False).ids
    return ids[:num_tokens]


def traffic(num_tokens: int, mode: dict[str, Any], as_ids: bool, seed: int) -> Traffic:
    """Run one chain and count."""
    controller = DynasorCoTController(
        max_tokens=num_tokens, probe_tokens=PROBE_TOKENS, family="tinylm", overlap=False, **mode
    )
    with (
        OpenAIServer(RecordedWorker(recorded_chain(num_tokens)), MODEL) as server,
        OpenAIWorker(server.url, MODEL, flavor="vllm", compact_prompts=not as_ids) as worker,
        ScaffoldingLlm(controller, {"generation": worker}, seed=seed) as llm,
    ):
        text = llm.generate("Start with 5. Apply a+3,b-2. Find the total.").outputs[0].text
    chain = [request for request in server.requests if request.body["max_tokens"] != PROBE_TOKENS]
    return Traffic(
        len(server.requests),
        sum(request.num_bytes for request in server.requests),
        sum(len(f"{name}: {value}\r\n") for request in server.requests for name, value in request.headers.items()),
        server.num_bytes_sent,
        len(text.encode()),
        len(chain) - 1,
    )


@click.command(epilog="Example: python benchmarks/openai_worker.py --json")
@report_options
def main(seed: int, quick: bool, as_json: bool) -> None:
    """Bytes sent and received for a probed chain, by how it is probed."""
    lengths = LENGTHS[:1] if quick else LENGTHS
    report = Report("openai_worker", {"seed": seed, "lengths": list(lengths), "tokenizer": MODEL, "flavor": "vllm"})
    for num_tokens, (name, mode), as_ids in itertools.product(lengths, MODES.items(), (False, True)):
        found = traffic(num_tokens, mode, as_ids, seed)
        label = f"{num_tokens} tokens, {name}, {'ids' if as_ids else 'text'}"
        report.figure(f"{label}: sent / text", found.sent / found.text)
        report.figure(f"{label}: headers / text", found.headers / found.text)
        report.figure(f"{label}: received / text", found.received / found.text)
        report.figure(f"{label}: requests", found.num_requests)
        if name == "stream, geometric 2":
            report.bar(Bar.at_most(f"{label}: sent / text", found.sent / found.text, BAR))
        if name.startswith("stream"):
            report.bar(Bar.at_most(f"{label}: uploads of the chain but in probes", found.num_chain_uploads, 0))
    report.show(as_json)


if __name__ == "__main__":
    main()
