"""The transformers engine against `generate` and `generate_batch`, on a randomly initialised model of a given shape.

    python -m benchmarks.engines.huggingface_random --device cuda --shape 7b

`--shape 7b` needs some 60 GB of GPU memory, and transformers 5 or later; FlashInfer is used where it is installed. Each
request generates a fixed number of tokens, so that it does not matter what a random model writes: requests in step,
requests of mixed length, and requests with one long prefix. `generate` pads to the longest; `generate_batch` is
transformers' own continuous batching. A figure is the geometric mean over rounds in which each side comes once, in
another order each time, with its 95 % confidence interval.

Exactness: log-probabilities of given tokens, ours and transformers', against those of the same weights in float32.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import click

from benchmarks._lib.command import benchmark, size, track
from benchmarks._lib.report import Report
from benchmarks.engines.huggingface_bandwidth import SHAPES, TOKENS_PER_BLOCK, random_model
from benchmarks.engines.huggingface_worker import Samples
from scaffolding_ext.workers.huggingface.engine_request import Ends, Wants

MOST_ERROR = 1.5  # ours to transformers' own, against float32
SCORED_LEN = 512
PAGE = 256  # tokens of a block of `generate_batch`


class Wanted(NamedTuple):
    """A prompt, and how many tokens are to be generated."""

    prompt: list[int]
    num_tokens: int


class Sides:
    """One random model behind our engine, `generate` and `generate_batch`."""

    def __init__(self, model: Any, places: int, num_blocks: int) -> None:
        self._model = model
        self._places, self._num_blocks = places, num_blocks

    def engine(self) -> Any:
        """Our engine."""
        from tokenizers import Tokenizer, models

        from scaffolding_ext.workers.huggingface.attention import ATTENTION
        from scaffolding_ext.workers.huggingface.generation_engine import GenerationEngine

        self._model.set_attn_implementation(ATTENTION)
        return GenerationEngine(
            self._model,
            Tokenizer(models.BPE()),
            frozenset(),
            num_blocks=self._num_blocks,
            tokens_per_block=TOKENS_PER_BLOCK,
            max_cached=self._num_blocks,
            max_batch_size=self._places,
            prefill_chunk=2048,
            enable_block_reuse=True,
            threads=1,
        )

    def ours(self, wanted: list[Wanted]) -> float:
        """All at once through an engine that has seen nothing; seconds without its start."""
        engine, started = self.engine(), time.perf_counter()
        serve(engine, [{"prompt": w.prompt, "ends": Ends(w.num_tokens, ignore_end=True)} for w in wanted])
        return time.perf_counter() - started

    def generate(self, wanted: list[Wanted]) -> float:
        """Padded batches, each as long as its longest; seconds."""
        import torch

        self._model.set_attn_implementation("sdpa")
        started, device = time.perf_counter(), self._model.device
        for first in range(0, len(wanted), self._places):
            batch = wanted[first : first + self._places]
            width = max(len(w.prompt) for w in batch)
            ids = torch.tensor([[0] * (width - len(w.prompt)) + w.prompt for w in batch], device=device)
            mask = torch.tensor([[0] * (width - len(w.prompt)) + [1] * len(w.prompt) for w in batch], device=device)
            length = max(w.num_tokens for w in batch)
            self._model.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=length, pad_token_id=0)
        return time.perf_counter() - started

    def generate_batch(self, wanted: list[Wanted]) -> float:
        """transformers' continuous batching, in as much memory; seconds without its start."""
        from transformers import ContinuousBatchingConfig, GenerationConfig

        longest = max(len(w.prompt) + w.num_tokens for w in wanted)
        memory = ContinuousBatchingConfig(num_blocks=self._places * (longest // PAGE + 1), max_batch_tokens=2048)
        with self._model.continuous_batching_context_manager(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=memory,
        ) as manager:
            started = time.perf_counter()
            for each in wanted:
                manager.add_request(each.prompt, max_new_tokens=each.num_tokens)
            left = len(wanted)
            while left:
                result = manager.get_result(timeout=1)
                left -= result is not None and result.is_finished()
                if result is None and not manager.is_running():
                    raise RuntimeError("generate_batch ended before its requests")
            return time.perf_counter() - started

    def logprobs(self, ids: list[int]) -> Any:
        """transformers' log-probabilities of a text's tokens but the first, in the model's number type."""
        import torch

        self._model.set_attn_implementation("sdpa")
        tokens = torch.tensor([ids], device=self._model.device)
        with torch.inference_mode():
            scores = self._model(tokens).logits[0, :-1].float().log_softmax(-1)
        return scores.gather(-1, tokens[0, 1:, None])[:, 0].double().cpu()

    def our_logprobs(self, texts: list[list[int]]) -> list[Any]:
        """The engine's, of several texts at once."""
        import torch

        wants = Wants(score_from=1)
        requests = serve(self.engine(), [{"prompt": ids, "ends": Ends(), "wants": wants} for ids in texts])
        return [torch.tensor(request.scores, dtype=torch.float64) for request in requests]


def serve(engine: Any, wanted: list[dict[str, Any]]) -> list[Any]:
    """Submit requests at once, wait until they have ended, and stop the engine."""
    from scaffolding_ext.workers.huggingface.engine_request import EngineRequest
    from scaffolding_ext.workers.huggingface.sampling import GREEDY

    ended = threading.Semaphore(0)

    def note(request: EngineRequest) -> None:
        if request.ended:
            ended.release()

    requests = [EngineRequest(notify=note, sampling=GREEDY, **each) for each in wanted]
    for request in requests:
        engine.submit(request)
    for _ in requests:
        ended.acquire()
    engine.shutdown()
    for request in requests:
        if request.error is not None:
            raise request.error
    return requests


def measure_exactness(report: Report, sides: Sides, model: Any, rng: random.Random) -> None:
    """Mean absolute errors of log-probabilities against float32, and the bar on their ratio."""
    texts = [[rng.randrange(1, 500) for _ in range(length)] for length in (SCORED_LEN, SCORED_LEN // 3, 40, 7)]
    ours, theirs = sides.our_logprobs(texts), [sides.logprobs(ids) for ids in texts]
    dtype = model.dtype
    model.float()
    exact = [sides.logprobs(ids) for ids in texts]
    model.to(dtype)
    errors = [
        float(sum((a - b).abs().sum() for a, b in zip(side, exact, strict=True)) / sum(map(len, exact)))
        for side in (ours, theirs)
    ]
    report.figure("logprob_error", errors[0])
    report.figure("logprob_error_of_transformers", errors[1])
    floor = 1e-6  # float32 against itself: sums in another order
    report.bar("error to transformers' own", errors[0] / max(errors[1], floor), "<=", MOST_ERROR)


def settings(rng: random.Random, batch: int, length: int, prefix_len: int) -> dict[str, list[Wanted]]:
    """What each setting asks for."""

    def draw(num_tokens: int) -> list[int]:
        return [rng.randrange(1, 500) for _ in range(num_tokens)]

    prefix = draw(prefix_len)
    return {
        "in_step": [Wanted(draw(128), length) for _ in range(batch)],
        "mixed": [Wanted(draw(128), rng.randint(length // 8, 4 * length)) for _ in range(2 * batch)],
        "prefix": [Wanted(prefix + draw(16), length) for _ in range(batch)],
    }


@benchmark("engines.huggingface_random --device cuda --shape 7b")
@click.option("--device", default="cpu", show_default=True, help="A torch device.")
@click.option("--shape", type=click.Choice(list(SHAPES)), default="tiny", show_default=True, help="Size of the model.")
@click.option("--dtype", default=None, help="bfloat16 or float32.  [default: bfloat16 on CUDA, else float32]")
@size("--repetitions", 5, quick=2, help="Rounds.", least=2)
@size("--batch", 64, quick=4, help="Requests at once.")
@size("--num_tokens", 128, quick=8, help="Tokens that each request in step generates.", least=8)
@size("--prefix_len", 1024, quick=64, help="Tokens of the common prefix.")
def main(
    report: Report,
    device: str,
    shape: str,
    dtype: str | None,
    repetitions: int,
    batch: int,
    num_tokens: int,
    prefix_len: int,
) -> None:
    """Tokens a second of the transformers engine, in ratio to transformers' own ways, on a random model."""
    import torch
    import transformers

    on_gpu = device.startswith("cuda")
    if on_gpu and not torch.cuda.is_available():
        raise click.BadParameter("torch sees no GPU; --device cpu --shape tiny runs anywhere", param_hint="--device")
    torch.set_num_threads(1)
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)  # it warns of what is not installed
    model = random_model(SHAPES[shape], device, dtype or ("bfloat16" if on_gpu else "float32"), report.seed)
    report.setting |= {"device": torch.cuda.get_device_name(device) if on_gpu else "cpu", "dtype": str(model.dtype)}
    model.generation_config.eos_token_id = None  # every text is as long as it is wanted
    report.setting |= {"torch": torch.__version__, "transformers": transformers.__version__, "batch": batch}
    longest = max(128 + 4 * num_tokens, prefix_len + 16 + num_tokens)
    sides, rng = Sides(model, batch, batch * -(-longest // TOKENS_PER_BLOCK)), random.Random(report.seed)
    measure_exactness(report, sides, model, rng)
    samples = Samples()
    for repetition in track(range(repetitions), "rounds"):
        actions: dict[str, Callable[[list[Wanted]], float]] = {
            "ours": sides.ours,
            "generate": sides.generate,
            "generate_batch": sides.generate_batch,
        }
        order = list(actions)[repetition % 3 :] + list(actions)[: repetition % 3]
        for name, wanted in settings(rng, batch, num_tokens, prefix_len).items():
            seconds = {side: actions[side](wanted) for side in order}
            total = sum(each.num_tokens for each in wanted)
            samples.add(**{f"{name}_tokens_per_s": total / seconds["ours"]})
            samples.add(**{f"{name}_to_{side}": seconds[side] / seconds["ours"] for side in order if side != "ours"})
    samples.report(report)


if __name__ == "__main__":
    main()
