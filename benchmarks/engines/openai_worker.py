"""What a probed chain costs over HTTP: bytes sent and received, as the server counts them, beside the text of it.

    python -m benchmarks.engines.openai_worker
    python -m benchmarks.engines.openai_worker --tokenizer models/SmolLM2-135M-Instruct --runs FILE.jsonl.gz

DynasorCoT on a recorded chain of 300, 2,000 and 8,000 tokens, which the server plays back. The probes never agree, so
that each chain runs to its budget, where its answer is asked for, or to an end of its own, where it is not. Streams
have no seams (`seams="none"`), but in the modes that say so (`fixed`, for texts that repeat at any load). Prompts go
as token ids (`ids`), or with `compact_prompts` as text where that is shorter and gives the same ids. Bytes are those of
the bodies; the headers are told beside.

The chain is of held-out problems of the embedded models, whose tokens are short, or with `--runs` of other models: a
row a chain with its `question` and `turns` of `draft` and `target`. Letters beyond ASCII are left out of those, since
the pieces that are played back must not end inside one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import click

from benchmarks._lib.command import benchmark, size
from benchmarks._lib.provenance import DATA
from benchmarks._lib.report import Report
from benchmarks._lib.rows import read_rows, text_of
from scaffolding_ext import DynasorCoTController, OpenAIWorker, ScaffoldingLlm
from scaffolding_ext.controllers.chain.looking import ProbeSchedule
from scaffolding_ext.controllers.chain.probe import AnswerProbe
from scaffolding_ext.evaluation.run.datasets import load_dataset
from scaffolding_ext.prompts.prompting import load_tokenizer
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, TaskStatus, Worker
from scaffolding_ext.protocol.notes import TokenCounts, set_token_counts
from scaffolding_ext.workers.shared.streaming import Seams
from tests.servers.openai_server import OpenAIServer

EMBEDDED = "tinylm/draft"
LENGTHS = (300, 2_000, 8_000)
PROBE_TOKENS = 7  # no chunk has as few
MODES: dict[str, dict[str, Any]] = {
    "stream, geometric 3": {"schedule": ProbeSchedule(growth=3.0)},
    "stream, geometric 3, own end": {"schedule": ProbeSchedule(growth=3.0), "insist_on_answer": False},
    "stream, geometric 2": {"schedule": ProbeSchedule(growth=2.0)},
    "stream, geometric 2, own end": {"schedule": ProbeSchedule(growth=2.0), "insist_on_answer": False},
    "stream, geometric 1.5": {"schedule": ProbeSchedule(growth=1.5)},
    "fixed seams, geometric 3": {"schedule": ProbeSchedule(growth=3.0)},
    "fixed seams, geometric 2": {"schedule": ProbeSchedule(growth=2.0)},
    "stream, fixed 64": {},
    "chunk, geometric 2": {"mode": "chunk", "schedule": ProbeSchedule(growth=2.0)},
    "chunk, fixed 64": {"mode": "chunk"},
}
BARRED = ("stream, geometric 3", "stream, geometric 2")  # and with an own end
BAR = 4.0  # bytes sent over bytes of the final text, in stream mode with geometric spacing


class Recording(NamedTuple):
    """A chain to play back.

    Attributes:
        tokenizer: Name or folder of the tokenizer.
        question: What it answers.
        token_ids: The chain, as long as any that is asked for.
    """

    tokenizer: str
    question: str
    token_ids: list[int]

    @property
    def model(self) -> str:
        """What the server calls its model."""
        return self.tokenizer if self.tokenizer == EMBEDDED else Path(self.tokenizer).name


class RecordedWorker(Worker):
    """Plays one chain back, piece by piece, and answers each probe differently.

    Args:
        recording: Has the chain.
        end: Where it ends by itself, in tokens.
    """

    model = None

    def __init__(self, recording: Recording, end: int) -> None:
        self._token_ids = recording.token_ids[:end]
        self._tokenizer = load_tokenizer(recording.tokenizer).backend_tokenizer
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
        if task.request_handle is None:
            task.request_handle = self._token_ids[self._num_played :]
        left, known, text = task.request_handle, len(task.output_tokens or ()), task.output_str or ""
        most = min(task.max_tokens or 0, len(left))
        num_tokens = min(known + (task.streaming_step or 1), most)
        task.end_flag = bool(task.cancel_flag) or num_tokens == most
        reason = "length" if num_tokens == task.max_tokens else "stop"
        self._write(task, left[known:num_tokens], reason if task.end_flag else None)
        task.output_tokens, task.output_str = left[:num_tokens], text + (task.output_str or "")
        self._num_played += num_tokens if task.end_flag else 0
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


def embedded_texts() -> Iterator[tuple[str, str]]:
    """A question, with texts to answer it, without an end."""
    for sample in itertools.cycle(load_dataset("tinylm:held_out", num_samples=100)):
        yield "Start with 5. Apply a+3,b-2. Find the total.", sample.prompt + "\n"


def recorded_texts(path: Path) -> Iterator[tuple[str, str]]:
    """Each chain of a file, with its question, as far as it thinks: behind that nothing is probed."""
    for chain in read_rows(path):
        thinking = text_of(chain).partition("</think>")[0]
        yield chain["question"], thinking.encode("ascii", "ignore").decode()


def record_chain(tokenizer: str, texts: Iterator[tuple[str, str]], num_tokens: int) -> Recording:
    """The first question, and as many tokens of the texts, one behind the other."""
    encode = load_tokenizer(tokenizer).backend_tokenizer.encode
    question, text = next(texts)
    ids: list[int] = []
    for following in itertools.chain([text], (text for _, text in texts)):
        ids += encode(following, add_special_tokens=False).ids
        if len(ids) >= num_tokens:
            return Recording(tokenizer, question, ids[:num_tokens])
    raise click.UsageError(f"the texts have {len(ids)} tokens; {num_tokens} are needed")


def traffic(
    recording: Recording, num_tokens: int, mode: dict[str, Any], seams: Seams, as_ids: bool, seed: int
) -> Traffic:
    """Run one chain and count."""
    budget = num_tokens if mode.get("insist_on_answer", True) else 2 * num_tokens
    controller = DynasorCoTController(
        budget, rule="consecutive", probe=AnswerProbe(PROBE_TOKENS), overlap=False, **mode
    )
    model = recording.model
    with (
        OpenAIServer(RecordedWorker(recording, num_tokens), model) as server,
        OpenAIWorker(
            server.url, model, flavor="vllm", tokenizer=recording.tokenizer, compact_prompts=not as_ids, seams=seams
        ) as worker,
        ScaffoldingLlm(controller, {"generation": worker}, seed=seed) as llm,
    ):
        text = llm.generate(recording.question).outputs[0].text
    chain = [request for request in server.requests if request.body["max_tokens"] != PROBE_TOKENS]
    return Traffic(
        len(server.requests),
        sum(request.num_bytes for request in server.requests),
        sum(len(f"{name}: {value}\r\n") for request in server.requests for name, value in request.headers.items()),
        server.num_bytes_sent,
        len(text.encode()),
        len(chain) - 1,
    )


@benchmark("engines.openai_worker --tokenizer models/SmolLM2-135M-Instruct --runs FILE.jsonl.gz")
@click.option("--tokenizer", default=EMBEDDED, show_default=True, help="Folder of another tokenizer.")
@click.option("--runs", type=DATA, help="File of recorded chains.")
@size("--num_lengths", len(LENGTHS), quick=1, help="Lengths of the chain: 300, 2,000 and 8,000 tokens.")
def main(report: Report, tokenizer: str, runs: Path | None, num_lengths: int) -> None:
    """Bytes sent and received for a probed chain, by how it is probed."""
    seed, lengths = report.seed, LENGTHS[:num_lengths]
    recording = record_chain(tokenizer, embedded_texts() if runs is None else recorded_texts(runs), max(lengths))
    report.setting |= {"tokenizer": recording.model, "lengths": list(lengths), "flavor": "vllm"}
    decode = load_tokenizer(tokenizer).backend_tokenizer.decode
    for num_tokens in lengths:
        num_bytes = len(decode(recording.token_ids[:num_tokens]).encode())
        report.figure(f"{num_tokens} tokens: bytes of text a token", num_bytes / num_tokens)
    for num_tokens, (name, mode), as_ids in itertools.product(lengths, MODES.items(), (False, True)):
        seams: Seams = "fixed" if name.startswith("fixed") else "none"
        found = traffic(recording, num_tokens, mode, seams, as_ids, seed)
        label = f"{num_tokens} tokens, {name}, {'ids' if as_ids else 'text'}"
        report.figure(f"{label}: sent / text", found.sent / found.text)
        report.figure(f"{label}: headers / text", found.headers / found.text)
        report.figure(f"{label}: received / text", found.received / found.text)
        report.figure(f"{label}: requests", found.num_requests)
        if name.startswith(BARRED):
            report.bar(f"{label}: sent / text", found.sent / found.text, "<=", BAR)
        if name.startswith("stream"):
            report.bar(f"{label}: uploads of the chain but in probes", found.num_chain_uploads, "<=", 0)


if __name__ == "__main__":
    main()
