"""Majority vote: who wins, when it ends, what it costs."""

import asyncio
import sys

import pytest

from scaffolding_ext import load_stack
from scaffolding_ext.controllers.basic.best_of_n import BestOfNController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.basic.process_reward import ProcessRewardController
from scaffolding_ext.controllers.vote.allocation.adaptive_consistency import BetaConsistency
from scaffolding_ext.controllers.vote.allocation.agreement import AgreementDoubling
from scaffolding_ext.controllers.vote.allocation.base import AllocationRule
from scaffolding_ext.controllers.vote.allocation.leader_change import Curtailment, LeaderChange
from scaffolding_ext.controllers.vote.allocation.threshold import StaticThreshold
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.controllers.vote.weights import Weight
from scaffolding_ext.errors import ConfigError, EngineError, NoOutputError, RequestError, TaskError
from scaffolding_ext.evaluation.run.vote_budget import SampleOfVote
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.task_results import TokenLogprob
from scaffolding_ext.testing import ScriptedWorker

NATIVE = NativeGenerationController()


def boxed(*answers):
    """A worker that writes these answers in turn, each in a box; None stands for a text without one."""
    texts = iter(["no idea" if answer is None else rf"so \boxed{{{answer}}}." for answer in answers])
    return ScriptedWorker(lambda task: next(texts), before=take_turns)


async def take_turns(task):
    """Lets the other samples go on, as a worker that takes its time does."""
    await asyncio.sleep(0)


def voted(worker, **arguments):
    arguments = {"generation_controller": NATIVE, "default_sample_num": 4, "allocation": None} | arguments
    with ScaffoldingLlm(MajorityVoteController(**arguments), {"generation": worker}, seed=0) as llm:
        return llm.generate("Question")


def failing(*numbers, answers=("4", "4", "5", "4", "5", "4", "4", "4")):
    """A worker whose tasks of these numbers fail."""
    count = iter(range(100))

    def reply(task):
        number = next(count)
        return EngineError(f"{number} broke") if number in numbers else rf"so \boxed{{{answers[number]}}}."

    return ScriptedWorker(reply, before=take_turns)


def vote_event(result):
    return next(event for event in result.program.trace if event["event"] == "vote")


@pytest.mark.parametrize(
    ("answers", "winner"),
    [
        (("3", "4", "4", "5"), "4"),
        (("3", "4", "4", "3"), "3"),  # of equals the one that appeared first
        ((None, None, "7", None), "7"),  # no answer is no vote
        (("1/2", "3", "0.5", r"\frac{2}{4}"), "1/2"),  # votes for one value are one answer's, as the first wrote it
        (("-3", "-3", "3", "x"), "-3"),
    ],
)
def test_the_answer_with_most_votes_wins(answers, winner):
    result = voted(boxed(*answers))
    assert (result.answer, result.exit_reason) == (winner, "vote")
    assert result.outputs[0].text == rf"so \boxed{{{winner}}}."
    assert vote_event(result)["answers"] == list(answers)


def test_where_nothing_was_answered_it_says_so():
    result = voted(boxed(None, None, None, None))
    assert (result.answer, result.exit_reason, result.outputs[0].text) == (None, "no_answer", "no idea")
    assert vote_event(result)["winner"] == -1


def test_a_vote_without_an_answer_whose_text_was_cut_ends_by_length():
    result = voted(boxed("3", "3", "4", "5"), generation_controller=NativeGenerationController({"max_tokens": 2}))
    assert (result.answer, result.exit_reason) == (None, "length")


def test_it_ends_once_the_rule_is_certain():
    worker = boxed("8", "8", "9", "8", "7", "6")
    result = voted(worker, default_sample_num=5, allocation=Curtailment())
    assert (result.answer, result.exit_reason) == ("8", "certain")  # three of five: nothing can overtake it
    assert vote_event(result)["answers"] == ["8", "8", "9", "8"]
    assert len(worker.tasks) == 4


def test_two_equal_answers_among_five_samples_do_not_end_a_vote():
    answers = ["7", "7", None, None, None, "7", "7", "7"]
    result = voted(boxed(*answers), default_sample_num=8, allocation=StaticThreshold(knob=5))
    event = vote_event(result)
    assert (event["num_samples"], event["num_answers"]) == (8, 5)
    sooner = voted(boxed(*answers), default_sample_num=8, allocation=StaticThreshold(knob=5, min_answers=2))
    event = vote_event(sooner)
    assert (event["num_samples"], event["num_answers"]) == (5, 2)


@pytest.mark.parametrize("arguments", [{}, {"allocation": "LeaderChange"}, {"allocation": LeaderChange()}])
def test_a_rule_may_be_named_and_ours_is_the_default(arguments):
    assert MajorityVoteController(NATIVE, 16, **arguments).allocation == LeaderChange()


def test_a_stack_file_holds_a_rule_with_its_settings():
    arguments = {
        "generation_controller": {"type": "NativeGenerationController"},
        "allocation": {"type": "BetaConsistency", "args": {"confidence": 0.9}},
    }
    stack = {
        "controller": {"type": "MajorityVoteController", "args": arguments},
        "workers": {"generation": {"type": "ScriptedWorker", "args": {"respond": "x"}}},
    }
    with load_stack(stack) as llm:
        assert llm.prototype_controller.allocation == BetaConsistency(confidence=0.9)
    arguments["allocation"]["args"] = {"confidense": 0.9}
    with pytest.raises(ConfigError, match=r"allocation.args.confidense: .*did you mean 'confidence'"):
        load_stack(stack)


def test_weights_decide():
    weights = iter([0.1, 0.1, 0.9, 0.1])
    result = voted(boxed("1", "1", "2", "3"), weight=lambda sample: next(weights))
    assert result.answer == "2"
    assert vote_event(result)["weights"] == [0.1, 0.1, 0.9, 0.1]


class Given(Weight):
    """Four votes of 0.1, and the others 0.9."""

    most = 0.9

    def __call__(self, sample):
        return 0.1 if sample.index < 4 else 0.9


@pytest.mark.parametrize(
    "allocation", [None, Curtailment(), Curtailment(leap=2.0), AgreementDoubling(agreement=0.6, first=5)]
)
def test_a_rule_stops_a_weighted_vote_by_its_weights(allocation):
    result = voted(boxed(*"111123"), weight=Given(), allocation=allocation, default_sample_num=6)
    counted = vote_event(result)
    assert result.answer == "2"
    assert counted["weights"] == [0.1, 0.1, 0.1, 0.1, 0.9, 0.9][: len(counted["weights"])]


def test_leader_change_stops_a_vote_by_its_weights():
    """One heavy sample of three wins and ends the vote; two equal ones of three do so without weights."""
    weights = [1.0, 9.0, 1.0, 1.0, 1.0, 1.0]
    rule = {"allocation": "LeaderChange", "default_sample_num": 6}
    heavy = voted(boxed(*"121345"), weight=lambda sample: weights[sample.index], **rule)
    equal = voted(boxed(*"121345"), **rule)
    assert (heavy.answer, equal.answer) == ("2", "1")
    assert vote_event(heavy)["weights"] == [1.0, 9.0, 1.0]
    assert vote_event(equal)["num_samples"] == 3


@pytest.mark.parametrize(
    ("weight", "allocation"),
    [(Given(), BetaConsistency()), (Given(), StaticThreshold()), (lambda sample: 1.0, Curtailment())],
)
def test_a_rule_that_cannot_read_the_weights_is_refused(weight, allocation):
    with pytest.raises(ConfigError, match=r"^allocation: \w+ (counts every vote as 1|stops when no further vote)"):
        MajorityVoteController(NATIVE, 6, weight=weight, allocation=allocation)


@pytest.mark.parametrize("wrong", [float("nan"), -1.0, "much"])
@pytest.mark.parametrize("allocation", [None, "LeaderChange"])
def test_a_weight_that_is_no_number_is_refused_by_the_samples_index_before_a_rule_reads_it(wrong, allocation):
    def weight(sample):
        return wrong if sample.index == 1 else 1.0

    with pytest.raises(ConfigError, match="the weight of sample 1: is "):
        voted(boxed(*"111111"), weight=weight, allocation=allocation)


@pytest.mark.parametrize("wrong", [float("nan"), "two"])
def test_a_rule_that_asks_for_no_number_of_samples_is_an_error(wrong):
    class Odd(AllocationRule):
        def _num_more(self, votes):
            return wrong

    with pytest.raises(RequestError, match=f"Odd asks for {wrong!r} samples: give a whole number"):
        voted(boxed(*"1111"), allocation=Odd())


def test_a_weight_that_was_not_brought_is_an_error():
    with pytest.raises(Exception, match="returned no log-probabilities, though num_logprobs is 1"):
        voted(boxed("1", "1", "2", "3"), weight="mean_logprob")


class WithoutIds(ScriptedWorker):
    """Tells log-probabilities and no ids: the third text is the surest."""

    def __init__(self, *reported):
        super().__init__(lambda task: rf"\boxed{{{len(self.tasks)}}}")
        self._reported = iter(reported)

    async def _without_ids(self, task):
        status = await self._generate(task)
        task.output_tokens, task.logprobs = None, next(self._reported)
        return status

    task_handlers = {GenerationTask: _without_ids}  # noqa: RUF012


def test_log_probabilities_without_ids_weigh_where_they_tell_the_token_and_are_refused_where_not():
    alone = [[{0: TokenLogprob(-0.9)}], [{0: TokenLogprob(-0.8)}], [{0: TokenLogprob(-0.1)}]]
    result = voted(WithoutIds(*alone), weight="mean_logprob", default_sample_num=3)
    assert result.answer == "3"
    several = [[{0: TokenLogprob(-0.9), 1: TokenLogprob(-0.6)}]] * 3
    with pytest.raises(NoOutputError, match="several tokens at one position, without ids"):
        voted(WithoutIds(*several), weight="mean_logprob", default_sample_num=3)


def test_the_number_of_samples_may_be_the_requests():
    worker = boxed("1", "2", "2")
    with ScaffoldingLlm(MajorityVoteController(NATIVE, allocation=None), {"generation": worker}) as llm:
        assert llm.generate("Question", sample_num=3).answer == "2"
    assert len(worker.tasks) == 3


def test_the_requests_sampling_fields_reach_every_sample():
    worker = boxed("1", "2", "2", "2")
    with ScaffoldingLlm(MajorityVoteController(NATIVE, 4, allocation=None), {"generation": worker}) as llm:
        llm.generate("Question", temperature=0.3)
    assert [task.temperature for task in worker.tasks] == [0.3] * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"default_sample_num": 0}, "default_sample_num: is 0"),
        ({"weight": "luck"}, "weight: unknown vote weight 'luck'; known: answer_probability, mean_logprob"),
        ({"weight": 3}, "weight: is 3"),
        ({"allocation": "Coin"}, "allocation: unknown allocation rule 'Coin'; known: AgreementDoubling"),
        ({"weight": "reward"}, "needs a reward_controller"),
        ({"generation_controller": NativeGenerationController}, "generation_controller: is a ABCMeta"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        MajorityVoteController(**({"generation_controller": NATIVE} | arguments))


def test_one_failing_sample_fails_the_request():
    def respond(task):
        return RuntimeError("broken") if task.seed % 2 else "fine"

    with pytest.raises(TaskError, match="broken"):
        voted(ScriptedWorker(respond), default_sample_num=16)


def test_votes_and_choices_stack():
    class Longest(NativeGenerationController):
        scores = None

        def process(self, tasks, **kwargs):
            self.scores = [len(task.output_str) for task in tasks]
            yield []

    worker = boxed("1", "2", "2", "44", "44", "1")
    inner = MajorityVoteController(NATIVE, 3, allocation=None)
    with ScaffoldingLlm(BestOfNController(inner, Longest(), 2), {"generation": worker}) as llm:
        result = llm.generate("Question")
    assert result.answer == "44"
    best = next(event for event in result.program.trace if event["event"] == "best_of_n")
    assert best["answers"] == ["2", "44"]


def test_the_packaged_stack_votes_on_the_embedded_model():
    with load_stack(
        "configs:majority_vote", ("controller.args.default_sample_num=3", "workers.generation.args.model=tinylm/draft")
    ) as llm:
        result = llm.generate("Start with 5. Apply a+3,b-2. Find the total.")
    assert result.exit_reason in ("vote", "certain", "no_answer")
    assert len(vote_event(result)["answers"]) <= 3


def test_one_sample_alone_is_the_one_that_the_vote_draws():
    worker = ScriptedWorker(lambda task: rf"\boxed{{{task.seed % 1000}}} at {task.temperature}")
    vote = MajorityVoteController(NATIVE, default_sample_num=4, allocation=None)
    with ScaffoldingLlm(vote, {"generation": worker}, seed=0) as llm:
        answers = vote_event(llm.generate("Question", sample_id="a"))["answers"]
        llm.prototype_controller = SampleOfVote(llm.prototype_controller)
        alone = [llm.generate("Question", sample_id="a", only_sample=index) for index in (2, 0)]
        with pytest.raises(ConfigError, match=r"only_sample: is 4; it must be .*3"):
            llm.generate("Question", only_sample=4)
    assert [result.answer for result in alone] == [answers[2], answers[0]]
    assert [result.exit_reason for result in alone] == ["end", "end"]
    assert all(result.outputs[0].text.endswith("at 0.7") for result in alone)


@pytest.mark.parametrize(("weight", "is_honoured"), [("uniform", True), ("mean_logprob", False)])
def test_a_vote_that_reads_log_probabilities_takes_no_thinking_budget_since_a_cut_chain_has_none(weight, is_honoured):
    vote = MajorityVoteController(NativeGenerationController(), 3, weight=weight, allocation=None)
    assert ("thinking_budget" in vote.needs.fields) is is_honoured
    assert "temperature" in vote.needs.fields
    of_votes = BestOfNController(vote, default_sample_num=2, reward=len)
    assert ("thinking_budget" in of_votes.needs.fields) is is_honoured


@pytest.mark.parametrize(
    ("arguments", "is_honoured"),
    [
        ({"reward": "mean_logprob"}, False),
        ({"reward": lambda sample: 1.0}, True),
        ({"reward_controller": ProcessRewardController(reward="mean_logprob")}, False),
        ({"reward_controller": ProcessRewardController()}, True),
    ],
)
def test_best_of_n_takes_a_thinking_budget_where_it_reads_no_log_probabilities(arguments, is_honoured):
    best = BestOfNController(NativeGenerationController(), default_sample_num=2, **arguments)
    assert ("thinking_budget" in best.needs.fields) is is_honoured


@pytest.mark.parametrize(
    "controller",
    [
        MajorityVoteController(NATIVE, 3, weight="mean_logprob"),
        MajorityVoteController(NATIVE, 3, weight="answer_probability"),
        BestOfNController(NATIVE, default_sample_num=2, reward="mean_logprob"),
        BestOfNController(NATIVE, ProcessRewardController(reward="mean_logprob"), default_sample_num=2),
    ],
)
def test_a_worker_without_the_log_probabilities_that_are_read_is_refused_before_any_request(controller):
    worker = ScriptedWorker("no")
    worker.max_num_logprobs = 0
    with pytest.raises(ConfigError, match=f"reports log-probabilities of at most 0 .* of {type(controller).__name__}"):
        ScaffoldingLlm(controller, {"generation": worker})


# ---- samples that fail


def test_a_failed_sample_is_counted_apart_and_the_others_vote():
    result = voted(failing(0), allow_failed=1)
    assert result.answer == "4"
    event = vote_event(result)
    assert (event["num_samples"], event["num_failed"], event["answers"]) == (3, 1, ["4", "5", "4"])
    (failed,) = [each for each in result.program.trace if each["event"] == "sample_failed"]
    assert (failed["sample"], failed["error"]) == (0, "EngineError")
    assert result.program.figures["MajorityVoteController"]["failed_samples"] == 1
    assert result.exit_reason == "vote"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 does not tell who cancelled a task")
@pytest.mark.parametrize("in_flight", [None, 2])
def test_a_sample_that_its_worker_cancels_has_failed(in_flight):
    def cancelling():
        numbers = iter(range(9))

        def reply(task):
            if next(numbers) == 1:
                raise asyncio.CancelledError
            return r"so \boxed{4}."

        return ScriptedWorker(reply, before=take_turns)

    result = voted(cancelling(), allow_failed=1, in_flight=in_flight)
    assert (result.answer, vote_event(result)["num_failed"]) == ("4", 1)
    with pytest.raises(TaskError, match="the worker cancelled the task"):
        voted(cancelling(), in_flight=in_flight)


@pytest.mark.parametrize(("numbers", "allowed"), [((1,), 0), ((0, 2), 1), ((0, 1, 2, 3), 9)])
def test_more_failures_than_allowed_fail_the_vote(numbers, allowed):
    with pytest.raises(TaskError, match="broke"):
        voted(failing(*numbers), allow_failed=allowed)


def test_a_vote_in_rounds_goes_on_behind_a_failed_sample():
    result = voted(failing(1), default_sample_num=6, allocation=LeaderChange(), allow_failed=2)
    assert result.answer == "4"
    assert vote_event(result)["num_failed"] == 1


def test_a_vote_with_a_deadline_goes_on_behind_a_failed_sample():
    vote = MajorityVoteController(NATIVE, 4, allocation=None, allow_failed=1)
    with ScaffoldingLlm(vote, {"generation": failing(2)}, seed=0) as llm:
        result = llm.generate("Question", deadline=60)
    assert (result.answer, vote_event(result)["num_failed"]) == ("4", 1)


def test_the_others_are_drawn_as_without_the_failure():
    def seeds(worker, **arguments):
        voted(worker, **arguments)
        return [task.seed for task in worker.tasks]

    assert seeds(failing(1), allow_failed=1) == seeds(failing())


def test_allow_failed_is_a_whole_number():
    with pytest.raises(ConfigError, match="allow_failed: is -1"):
        MajorityVoteController(NATIVE, 4, allow_failed=-1)
