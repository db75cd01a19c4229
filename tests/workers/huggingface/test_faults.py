"""Faults that the transformers engine once had, or would have without a guard."""

import asyncio
import gc
import weakref

import pytest
import torch
from tokenizers import Tokenizer, decoders, models
from transformers import BertConfig, BertLMHeadModel, DiffLlamaConfig, DiffLlamaForCausalLM

from scaffolding_ext.errors import ConfigError, EngineError
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, TaskStatus
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.protocol.meta import TokenCounts, token_counts_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.workers.huggingface.attention import ATTENTION
from scaffolding_ext.workers.huggingface.continuous_batch import ContinuousBatch
from scaffolding_ext.workers.huggingface.engine_request import GREEDY, Ends, EngineRequest
from scaffolding_ext.workers.huggingface.kv_blocks import KVLimits
from scaffolding_ext.workers.huggingface.model_loading import check_attention
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker
from tests.workers.huggingface.tolerance import float32_tolerance

MODEL = "tinylm/draft"
TOLERANCE = float32_tolerance(longest_sum=1024, num_sums=24, magnitude=32.0)  # of log-probabilities
WAIT = 60  # seconds until a test gives up


def make(**options):
    return HuggingFaceWorker(MODEL, **{"max_batch_size": 8, "max_seq_len": 512, "seed": 0, **options})


async def gathered(worker, tasks):
    return await asyncio.wait_for(asyncio.gather(*map(worker.run_task, tasks), return_exceptions=True), WAIT)


def run(worker, tasks):
    return asyncio.run(gathered(worker, tasks))


# ---- prefixes


@pytest.mark.parametrize("num_passes", [1, 2, 9, 24])
def test_a_request_cancelled_while_it_reads_leaves_its_prefix_to_others(num_passes, monkeypatch):
    worker = make(prefill_chunk=16)
    prompt = list(range(5, 405))
    runner = worker._engine._batch._runner
    forward = runner.forward

    async def cancel_and_ask_again():
        loop, enough, passes = asyncio.get_running_loop(), asyncio.Event(), []

        def counting(*args):
            passes.append(None)
            if len(passes) == num_passes:
                loop.call_soon_threadsafe(enough.set)
            return forward(*args)

        monkeypatch.setattr(runner, "forward", counting)
        first = asyncio.ensure_future(worker.run_task(GenerationTask(input_tokens=prompt, max_tokens=4)))
        await asyncio.wait_for(enough.wait(), WAIT)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        return await gathered(worker, [GenerationTask(input_tokens=prompt, max_tokens=4)])

    assert asyncio.run(cancel_and_ask_again()) == [TaskStatus.SUCCESS]
    assert worker._engine._batch.pool.num_held == 0
    worker.shutdown()


# ---- text


def test_bytes_that_are_no_text_do_not_end_the_decoding():
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"a": 256}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    request = EngineRequest([256], Ends(10), GREEDY)
    for token in (0xC3, 0xA9, 0xFF, 256, 256):
        request.accept(token, None, tokenizer, frozenset())
    text = request.answer().text
    assert text.startswith("é")
    assert text.endswith("a")


# ---- models


def engine_of(model):
    model.eval().set_attn_implementation(ATTENTION)
    return ContinuousBatch(
        model,
        Tokenizer(models.BPE()),
        frozenset(),
        KVLimits(num_blocks=4, tokens_per_block=32, max_cached=0),
        max_batch_size=2,
        prefill_chunk=32,
    )


SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (DiffLlamaForCausalLM, "uses two passes"),
        (BertLMHeadModel, "uses attention that is not causal"),
    ],
)
def test_attention_that_would_be_computed_wrongly_is_refused(model, message):
    if not model._supports_attention_backend:
        pytest.skip("in this version of transformers its attention cannot be replaced")
    config = DiffLlamaConfig(**SIZES) if model is DiffLlamaForCausalLM else BertConfig(**SIZES)
    with pytest.raises(ConfigError, match=message) as caught:
        engine_of(model(config))
    assert caught.value.key == "model"


class Config:
    def __init__(self, **fields):
        self.__dict__.update(fields)


@pytest.mark.parametrize("name", ["rope_parameters", "rope_scaling"])
def test_positions_that_depend_on_other_requests_are_refused(name):
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 64}
    check_attention(Config(**{name: rope}), 64)
    with pytest.raises(ConfigError, match=r"\(longrope\) numbers the positions .*: set max_seq_len to at most 64"):
        check_attention(Config(**{name: rope}), 65)
    check_attention(Config(**{name: {"rope_type": "yarn"}}), 65)


# ---- failures


def test_a_request_that_fails_tells_what_it_has_cost(monkeypatch):
    worker = make(enable_block_reuse=False)
    runner = worker._engine._batch._runner
    forward, passes = runner.forward, []

    def failing(*args):
        passes.append(None)
        return forward(*args) if len(passes) <= 5 else torch.zeros(1)[5]

    for task, decoded in (
        (GenerationTask(input_tokens=list(range(5, 25)), max_tokens=9, ignore_eos=True), 5),
        (StreamGenerationTask(input_tokens=list(range(5, 25)), max_tokens=9, ignore_eos=True, streaming_step=9), 5),
    ):
        passes.clear()
        monkeypatch.setattr(runner, "forward", failing)
        (error,) = run(worker, [task])
        assert isinstance(error, EngineError)
        assert token_counts_of(task) == TokenCounts(decoded, 20, 0)
    monkeypatch.setattr(runner, "forward", lambda *args: torch.zeros(1)[5])
    score = ScoreTask(input_tokens=[5, 6], continuation_tokens=[7])
    verify = VerifyTask(branches=[[5], [6]], yes_token=70, no_token=71)
    assert [type(error) for error in run(worker, [score, verify])] == [EngineError, EngineError]
    assert token_counts_of(score) == token_counts_of(verify) == TokenCounts(0, 0, 0)
    worker.shutdown()


def test_numbers_that_are_none_fail_their_request_and_do_not_stay_in_its_blocks(monkeypatch):
    worker = make(max_batch_size=2, enable_block_reuse=False)
    score = ScoreTask(input_tokens=list(range(5, 25)), continuation_tokens=[7, 8, 9])
    assert run(worker, [score]) == [TaskStatus.SUCCESS]
    expected, runner = score.logprobs, worker._engine._batch._runner
    embeddings = runner._model.get_input_embeddings()
    with monkeypatch.context() as patch:
        patch.setattr(embeddings, "forward", lambda ids: embeddings.weight[ids] * torch.nan)
        results = run(worker, [GenerationTask(input_tokens=list(range(5, 35)), max_tokens=4) for _ in range(2)])
    assert [str(error) for error in results] == [
        "the model computed logits that are no numbers (NaN): set another dtype"
    ] * 2
    again = ScoreTask(input_tokens=score.input_tokens, continuation_tokens=[7, 8, 9])
    assert run(worker, [again]) == [TaskStatus.SUCCESS]
    assert again.logprobs == pytest.approx(expected, abs=TOLERANCE)
    worker.shutdown()


def test_an_error_that_is_kept_does_not_keep_the_model(monkeypatch):
    worker = make()
    monkeypatch.setattr(worker._engine._batch._runner, "forward", lambda *args: torch.zeros(1)[5])
    (error,) = run(worker, [GenerationTask(input_tokens=[5], max_tokens=4)])
    assert isinstance(error, EngineError)
    assert str(error).startswith("IndexError")
    monkeypatch.undo()
    model = weakref.ref(worker._engine._batch._runner._model)
    worker.shutdown()
    del worker
    error.__traceback__ = None  # of this test's own call
    gc.collect()
    assert model() is None


def test_log_probabilities_do_not_mind_the_fewest_tokens():
    worker = make()
    free, bound = (
        GenerationTask(input_tokens=[5, 6, 7], max_tokens=1, num_logprobs=512, min_tokens=fewest) for fewest in (0, 1)
    )
    assert set(run(worker, [free, bound])) == {TaskStatus.SUCCESS}
    ours, theirs = ({token: entry.logprob for token, entry in task.logprobs[0].items()} for task in (free, bound))
    assert theirs == pytest.approx(ours, abs=TOLERANCE)
    worker.shutdown()


# ---- the process
