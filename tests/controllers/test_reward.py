"""Rewards: P(yes) of a solution and of its steps, checks, log-probabilities, and best of N by them."""

import math

import pytest

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.basic.best_of_n import BestOfNController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.basic.process_reward import ProcessRewardController
from scaffolding_ext.controllers.needs import Needs
from scaffolding_ext.controllers.reward import RewardController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import GenerationTask, RewardTask, TaskStatus
from scaffolding_ext.protocol.branching import VerifyTask
from scaffolding_ext.protocol.meta import Purpose
from scaffolding_ext.protocol.task_results import TokenLogprob
from scaffolding_ext.testing import ScriptedWorker

SOLUTIONS = (r"2+2=4\boxed{4}", r"2+2=5\boxed{5}", r"2+2=3\boxed{3}")


class Judge(ScriptedWorker):
    """Serves VerifyTask: yes to branches that hold a text, the more the longer they are."""

    def __init__(self, likes, prompting):
        super().__init__("never generates")
        self.likes, self.prompting = likes, prompting

    async def _verify(self, task):
        self.tasks.append(task)
        texts = [self.prompting.decode(branch) for branch in task.branches]
        task.scores = [0.9 if self.likes in text else 0.1 for text in texts]
        return TaskStatus.SUCCESS

    task_handlers = ScriptedWorker.task_handlers | {VerifyTask: _verify}


class Sure(ScriptedWorker):
    """Writes solutions, each in pieces that it is more or less sure of: pairs of text and log-probability."""

    def __init__(self, prompting, *solutions):
        super().__init__("never scripted")
        self._prompting, self._solutions = prompting, iter(solutions)

    async def _sure(self, task):
        self.tasks.append(task)
        pieces = [(self._prompting.encode(text), logprob) for text, logprob in next(self._solutions)]
        task.output_tokens = [token for ids, _ in pieces for token in ids]
        task.output_str = self._prompting.decode(task.output_tokens)
        if task.num_logprobs:
            logprobs = [logprob for ids, logprob in pieces for _ in ids]
            task.logprobs = [
                {t: TokenLogprob(p), 0: TokenLogprob(-0.01)} for t, p in zip(task.output_tokens, logprobs, strict=True)
            ]
        return TaskStatus.SUCCESS

    task_handlers = {GenerationTask: _sure}  # noqa: RUF012


class RewardModel(ScriptedWorker):
    """Serves upstream's RewardTask: the number of characters."""

    async def _reward(self, task):
        self.tasks.append(task)
        task.custom_output_params = {"reward": len(task.input_str)} if self.tasks else None
        return TaskStatus.SUCCESS

    task_handlers = ScriptedWorker.task_handlers | {RewardTask: _reward}


class Silent(RewardModel):
    async def _reward(self, task):
        return TaskStatus.SUCCESS

    task_handlers = ScriptedWorker.task_handlers | {RewardTask: _reward}


@pytest.fixture(scope="module")
def prompting():
    return Prompting.for_model("tinylm/target")


def best_of(reward, judge, prompting, solutions=SOLUTIONS):
    texts = iter(solutions)
    generation = ScriptedWorker(lambda task: next(texts))
    controller = BestOfNController(NativeGenerationController(), reward, len(solutions))
    controller.prompting = prompting
    with ScaffoldingLlm(controller, {"generation": generation, "reward": judge}, seed=0) as llm:
        return llm.generate("What is 2+2?")


def event(result, name):
    return next(event for event in result.program.trace if event["event"] == name)


def test_the_sample_that_the_model_calls_correct_is_chosen(prompting):
    judge = Judge("2+2=5", prompting)
    result = best_of(RewardController(), judge, prompting)
    assert (result.answer, event(result, "best_of_n")["scores"]) == ("5", [0.1, 0.9, 0.1])
    (task,) = judge.tasks
    assert len(task.branches) == 3  # one batch
    text = prompting.decode(task.branches[0])
    assert text.startswith("What is 2+2?") or "What is 2+2?" in text
    assert text.endswith(prompting.family.verdict)
    assert task.yes_token == prompting.encode("YES")[0] != task.no_token


def test_of_equal_scores_the_first_sample_is_chosen(prompting):
    assert best_of(RewardController(), Judge("nothing", prompting), prompting).answer == "4"


def test_a_worker_without_verdicts_is_asked_for_one_token(prompting):
    yes, no = (prompting.encode(word)[0] for word in ("YES", "NO"))

    class Plain(ScriptedWorker):
        async def _one(self, task):
            liked = "2+2=3" in prompting.decode(task.input_tokens)
            task.logprobs = [{yes: TokenLogprob(-0.1 if liked else -3.0), no: TokenLogprob(-1.0)}]
            task.output_str, task.output_tokens = "x", [yes]
            return TaskStatus.SUCCESS

        task_handlers = {GenerationTask: _one}  # noqa: RUF012

    result = best_of(RewardController(), Plain("x"), prompting)
    assert result.answer == "3"
    assert any(e["event"] == "fallback" and e["task"] == "VerifyTask" for e in result.program.trace)
    assert result.program.ledger.by_purpose[Purpose.VERIFY].decoded == 3


def test_upstreams_reward_task_is_served(prompting):
    judge = RewardModel("x")
    result = best_of(RewardController(), judge, prompting, (r"\boxed{1}", r"longest \boxed{2}", r"mid \boxed{3}"))
    assert result.answer == "2"
    assert all(type(task) is RewardTask for task in judge.tasks)


def test_a_reward_model_that_leaves_nothing_is_an_error(prompting):
    with pytest.raises(Exception, match="left no custom_output_params"):
        best_of(RewardController(), Silent("x"), prompting)


def test_a_controller_that_leaves_no_scores_is_named(prompting):
    class Forgetful(BaseController):
        needs = Needs(tags=())

        def process(self, tasks, **kwargs):
            yield []

    with pytest.raises(Exception, match="Forgetful left none of 3 scores"):
        best_of(Forgetful(), Judge("x", prompting), prompting)


@pytest.mark.parametrize("value", [math.nan, math.inf, None, "high"])
def test_a_score_that_is_no_finite_number_is_an_error_naming_the_sample(prompting, value):
    class Unsure(BaseController):
        needs = Needs(tags=())

        def process(self, tasks, **kwargs):
            self.scores = [0.5, value, 0.4]
            yield []

    with pytest.raises(Exception, match="Unsure gave sample 1 the score"):
        best_of(Unsure(), Judge("x", prompting), prompting)
    with pytest.raises(Exception, match="the reward gave sample 0 the score"):
        best_by_itself(ScriptedWorker(r"\boxed{1}"), 2, prompting, reward=lambda sample: value)


def test_verdicts_need_a_tokenizer():
    with pytest.raises(Exception, match="needs a tokenizer to read verdicts with"):
        best_of(RewardController(), Judge("x", None), None)


def test_the_judging_models_own_tokenizer_is_used():
    judge = Judge("2+2=3", Prompting.for_model("tinylm/draft"))
    result = best_of(RewardController(prompting=judge.prompting), judge, None)
    assert result.answer == "3"


@pytest.mark.parametrize(
    ("aggregate", "scores"),
    [("min", [0.1, 0.9]), ("mean", [(0.1 + 0.9) / 2, 0.9]), ("product", [0.1 * 0.9, 0.81]), ("last", [0.9, 0.9])],
)
def test_steps_are_judged_one_by_one(aggregate, scores, prompting):
    judge = Judge("good", prompting)
    solutions = ("bad\n\nthen good", "good\n\n\n\nthen more")
    result = best_of(ProcessRewardController(aggregate=aggregate), judge, prompting, solutions)
    assert event(result, "best_of_n")["scores"] == pytest.approx(scores)
    assert [len(steps) for steps in event(result, "reward")["step_scores"]] == [2, 2]  # the empty step is none
    assert len(judge.tasks) == 1


@pytest.mark.parametrize(
    ("max_steps", "last_words"), [(1, ["e"]), (2, ["b", "e"]), (5, list("abcde")), (9, list("abcde"))]
)
def test_of_many_steps_evenly_spaced_ones_are_judged(max_steps, last_words):
    beginnings = ProcessRewardController("|", max_steps=max_steps)._beginnings("a|b|c|d|e")
    assert [text[-1] for text in beginnings] == last_words


# ---- questions of the prompt family


def test_a_question_of_ones_own_takes_the_place_of_the_familys(prompting):
    judge = Judge("2+2=4", prompting)
    best_of(RewardController("\nTrue?\n"), judge, prompting)
    assert all(prompting.decode(branch).endswith("\nTrue?\n") for branch in judge.tasks[0].branches)


def test_steps_are_asked_about_with_a_question_of_their_own(prompting):
    judge = Judge("good", prompting)
    best_of(ProcessRewardController("\n"), judge, prompting, ("a\nb", "c"))
    texts = [prompting.decode(branch) for branch in judge.tasks[0].branches]
    question = prompting.family.step_verdict
    assert [text[: -len(question)][-3:] for text in texts] == ["k>\na"[-3:], "a\nb", "k>\nc"[-3:]]
    assert all(text.endswith(question) for text in texts)


# ---- log-probabilities


def best_by_itself(worker, num, prompting, **reward):
    controller = BestOfNController(NativeGenerationController(), default_sample_num=num, **reward)
    controller.prompting = prompting
    with ScaffoldingLlm(controller, {"generation": worker}, seed=0) as llm:
        return llm.generate("What is 2+2?")


@pytest.mark.parametrize(("reward", "answer"), [("mean_logprob", "5"), (lambda sample: -sample.index, "4")])
def test_samples_are_scored_without_a_reward_worker(prompting, reward, answer):
    worker = Sure(
        prompting, [(r"so \boxed{4}", -0.9)], [("so ", -0.2), (r"\boxed{5}", -0.3)], [(r"so \boxed{3}", -0.5)]
    )
    result = best_by_itself(worker, 3, prompting, reward=reward)
    assert result.answer == answer
    assert len(worker.tasks) == 3  # the samples and nothing else


def test_the_score_is_the_geometric_mean_of_the_sampled_tokens_probabilities(prompting):
    worker = Sure(prompting, [("1", -0.1), ("2", -0.5)], [("3", -2.0)])
    result = best_by_itself(worker, 2, prompting, reward="mean_logprob")
    assert event(result, "best_of_n")["scores"] == pytest.approx([math.exp(-0.3), math.exp(-2.0)])


@pytest.mark.parametrize(
    ("aggregate", "of"), [("min", min), ("product", math.prod), ("last", lambda scores: scores[-1])]
)
def test_steps_are_scored_by_their_log_probabilities(prompting, aggregate, of):
    """A token belongs to the step that it ends in; a separator opens the next step."""
    worker = Sure(prompting, [("a1", -0.4), ("+2\n", -1.0), ("\n3", 0.0), ("4", 0.0)])
    controller = BestOfNController(
        NativeGenerationController(), ProcessRewardController("\n", aggregate, reward="mean_logprob"), 1
    )
    controller.prompting = prompting
    with ScaffoldingLlm(controller, {"generation": worker}, seed=0) as llm:  # no worker judges
        rewarded = event(llm.generate("What is 2+2?"), "reward")
    steps = [math.exp(-(0.4 + 0.4 + 1.0 + 1.0) / 4), math.exp(-1.0 / 4)]
    assert rewarded["step_scores"] == [pytest.approx(steps)]
    assert rewarded["scores"] == pytest.approx([of(steps)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "neither a reward_controller nor a reward"),
        ({"reward": "mean_logprob", "reward_controller": RewardController()}, "conflicts with reward_controller"),
        ({"reward": "uniform"}, "reward: is 'uniform'; choose one of mean_logprob, or give a function"),
    ],
)
def test_best_of_n_takes_one_score(arguments, message):
    with pytest.raises(ConfigError, match=message):
        BestOfNController(NativeGenerationController(), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"reward": "perplexity"}, "reward: is 'perplexity'; choose one of verdict, mean_logprob"),
        ({"worker_tag": "judge"}, "worker_tag: is 'judge'; choose one of generation"),
        ({"yes": "OK", "no": "OK"}, "give two different words"),
        ({"step_separator": ""}, "step_separator: is empty"),
        ({"aggregate": "median"}, "aggregate: is 'median'"),
        ({"max_steps": 0}, "max_steps: is 0"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        ProcessRewardController(**arguments)


def test_words_that_begin_alike_are_refused(prompting):
    with pytest.raises(Exception, match="begin with the same token"):
        best_of(RewardController(yes="YES", no="YES no"), Judge("x", prompting), prompting)


class UpstreamsOwn(ScriptedWorker):
    """A worker whose handlers are TensorRT-LLM's."""

    async def _generate(self, task):
        return TaskStatus.SUCCESS

    _generate.__module__ = "tensorrt_llm.scaffolding.worker"
    task_handlers = {GenerationTask: _generate}  # noqa: RUF012


def test_verdicts_of_upstreams_own_worker_are_refused_when_bound():
    """It forwards only `input_str`, so it would judge an empty prompt."""
    best_of_n = BestOfNController(NativeGenerationController({"temperature": 1.0}), RewardController())
    workers = {"generation": ScriptedWorker("x"), "reward": UpstreamsOwn("x")}
    with pytest.raises(ConfigError, match=r"workers\.reward: .*UpstreamsOwn reads only texts.*TRTLLMWorker\(llm\)"):
        best_of_n.bind(workers)
    NativeGenerationController().bind({"generation": workers["reward"]})
    best_of_n.bind({**workers, "reward": ScriptedWorker("x")})
