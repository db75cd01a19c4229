"""DeepConf: who votes, what a vote weighs, and where an unsure trace is stopped."""

import time

import pytest

from scaffolding_ext.controllers.vote.deepconf import DeepConfController
from scaffolding_ext.controllers.vote.trace_confidence import warm_up_threshold
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask, StreamGenerationTask, TaskStatus
from scaffolding_ext.protocol.meta import Purpose
from scaffolding_ext.protocol.task_results import TokenLogprob
from scaffolding_ext.request.program import current_program
from scaffolding_ext.testing import ScriptedWorker


class Confident(ScriptedWorker):
    """Writes each text with a confidence of its own at each character; `texts` are (text, confidences) in turn."""

    def __init__(self, *texts):
        self.confidences = {text: list(values) for text, values in texts}
        queue = iter(text for text, _ in texts)
        super().__init__(lambda task: next(queue))

    def _add_logprobs(self, task):
        text = next(text for text in self.confidences if text.startswith(task.output_str))
        chosen = self.confidences[text][: len(task.output_tokens)]
        task.logprobs = [
            {token: TokenLogprob(-value), -1: TokenLogprob(-value)}
            for token, value in zip(task.output_tokens, chosen, strict=True)
        ]

    async def _generate_too(self, task):
        await self._generate(task)
        self._add_logprobs(task)
        return TaskStatus.SUCCESS

    async def _stream_too(self, task):
        await self._stream(task)
        self._add_logprobs(task)
        return TaskStatus.SUCCESS

    task_handlers = ScriptedWorker.task_handlers | {
        GenerationTask: _generate_too,
        StreamGenerationTask: _stream_too,
    }


def trace(number, answer, *confidences):
    """The text of a trace that ends in an answer; its characters have these confidences, the last one to its end."""
    text = f"{number}. \\boxed{{{answer}}}"
    return text, [*confidences, *[confidences[-1]] * (len(text) - len(confidences))]


def vote(*texts, **arguments):
    arguments = {"default_sample_num": len(texts), "group_size": 4, "top_k": 2, "check_every": 3} | arguments
    with ScaffoldingLlm(DeepConfController(**arguments), {"generation": Confident(*texts)}, seed=0) as llm:
        result = llm.generate("Question")
    return result, next(event for event in result.program.trace if event["event"] == "vote")


def test_offline_the_least_sure_do_not_vote_and_the_others_weigh_their_confidence():
    texts = [trace(0, "1", 2.0), trace(1, "1", 9.0, 9.0, 1.0), trace(2, "3", 8.0), trace(3, "1", 2.0)]
    result, event = vote(*texts, keep_share=0.5)
    assert result.answer == "3"  # one sure trace against three that are not
    assert event["weights"] == pytest.approx([2.0, 0.0, 8.0, 0.0])
    plain, event = vote(*texts, keep_share=1.0)
    assert event["weights"] == pytest.approx([2.0, 1.0, 8.0, 2.0])
    assert plain.answer == "3"


def test_online_an_unsure_trace_is_stopped_where_its_group_falls_below_the_warm_up():
    texts = [trace(0, "1", 4.0), trace(1, "2", 6.0), trace(2, "1", *[9.0] * 6, 0.0), trace(3, "2", 6.5)]
    result, event = vote(*texts, mode="online", warm_up_sample_num=2, keep_share=0.5)
    threshold = warm_up_threshold([4.0, 6.0], 0.5)
    unsure = [entry for entry in result.program.trace if entry["event"] == "unsure"]
    position = next(n for n in range(4, 20) if sum(([9.0] * 6 + [0.0] * 20)[n - 4 : n]) / 4 < threshold)
    assert [entry["position"] for entry in unsure] == [position]
    assert event["stopped"] == [2]
    assert event["weights"] == pytest.approx([0.0, 6.0, 0.0, 6.5])  # the first is below the threshold itself
    assert result.answer == "2"
    assert result.program.ledger.by_purpose[Purpose.DISCARDED].decoded == event["num_decoded"][2]


@pytest.mark.parametrize("check_every", [1, 5, 64])
def test_where_a_trace_is_stopped_does_not_depend_on_how_often_it_is_looked_at(check_every):
    texts = [trace(0, "1", 4.0), trace(1, "2", 6.0), trace(2, "1", *[9.0] * 6, 0.0), trace(3, "2", 6.5)]
    result, _ = vote(*texts, mode="online", warm_up_sample_num=2, keep_share=0.5, check_every=check_every)
    assert [entry["position"] for entry in result.program.trace if entry["event"] == "unsure"] == [8]


def test_online_it_draws_no_more_once_the_votes_agree():
    result, event = vote(
        *[trace(n, "7", 5.0 + n) for n in range(6)], mode="online", warm_up_sample_num=2, keep_share=1.0
    )
    assert (result.answer, result.exit_reason, event["num_samples"]) == ("7", "certain", 2)


def test_online_it_draws_no_more_once_the_deadline_is_over():
    worker = Confident(*[trace(n, f"{n}", 5.0) for n in range(4)], ("9}", [5.0] * 2), ("8}", [5.0] * 2))
    respond, calls = worker._respond, []

    def counting(task):
        calls.append(task)
        if len(calls) == 3:
            current_program().lifetime.clock = lambda: time.monotonic() + 600
        return respond(task)

    worker._respond = counting
    arguments = {"mode": "online", "warm_up_sample_num": 2, "keep_share": 1.0, "group_size": 4, "top_k": 2}
    with ScaffoldingLlm(DeepConfController(8, **arguments), {"generation": worker}, seed=0) as llm:
        result = llm.generate("Question", deadline=600)
    (event,) = (each for each in result.program.trace if each["event"] == "vote")
    assert (result.exit_reason, event["num_samples"]) == ("deadline", 4)


def test_a_worker_that_gives_none_is_refused_by_the_name_of_the_controller():
    class Silent(ScriptedWorker):
        max_num_logprobs = 0

    with pytest.raises(ConfigError, match=r"read: use another worker, or another .* of DeepConfController"):
        ScaffoldingLlm(DeepConfController(2), {"generation": Silent("no")})


def test_a_worker_that_gives_too_few_is_refused_when_the_stack_is_built():
    class Few(ScriptedWorker):
        max_num_logprobs = 5

    with pytest.raises(ConfigError, match=r"Few reports .* at most 5 tokens .* top_k=5"):
        ScaffoldingLlm(DeepConfController(2), {"generation": Few("no")})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "later"}, "mode: is 'later'"),
        ({"keep_share": 0}, "keep_share: is 0"),
        ({"consensus_share": 2}, "consensus_share: is 2"),
        ({"group_size": 0}, "group_size: is 0"),
        ({"top_k": 0}, "top_k: is 0"),
        ({"default_sample_num": 0}, "default_sample_num: is 0"),
        ({"sampling_params": {"num_logprobs": 3}}, "num_logprobs"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        DeepConfController(**arguments)
