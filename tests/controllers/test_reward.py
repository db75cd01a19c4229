"""Rewards: P(yes) of a solution and of its steps, and best of N by them."""

import pytest

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.best_of_n import BestOfNController
from scaffolding_ext.controllers.native_generation import NativeGenerationController
from scaffolding_ext.controllers.process_reward import ProcessRewardController
from scaffolding_ext.controllers.reward import VERDICT, RewardController
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompting import Prompting
from scaffolding_ext.protocol import GenerationTask, RewardTask, TaskStatus
from scaffolding_ext.tasks import Purpose, VerifyTask
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
    assert text.endswith(prompting.decode(prompting.encode(VERDICT)))
    assert task.yes_token == prompting.encode("YES")[0] != task.no_token


def test_of_equal_scores_the_first_sample_is_chosen(prompting):
    assert best_of(RewardController(), Judge("nothing", prompting), prompting).answer == "4"


def test_a_worker_without_verdicts_is_asked_for_one_token(prompting):
    class Entry:
        def __init__(self, logprob):
            self.logprob = logprob

    yes, no = (prompting.encode(word)[0] for word in ("YES", "NO"))

    class Plain(ScriptedWorker):
        async def _one(self, task):
            liked = "2+2=3" in prompting.decode(task.input_tokens)
            task.logprobs = [{yes: Entry(-0.1 if liked else -3.0), no: Entry(-1.0)}]
            task.output_str, task.output_tokens = "x", [yes]
            return TaskStatus.SUCCESS

        task_handlers = {GenerationTask: _one}  # noqa: RUF012

    result = best_of(RewardController(), Plain("x"), prompting)
    assert result.answer == "3"
    assert any(e["event"] == "lowered" and e["task"] == "VerifyTask" for e in result.program.trace)
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
        required_tags = ()

        def process(self, tasks, **kwargs):
            yield []

    with pytest.raises(Exception, match="Forgetful left none of 3 scores"):
        best_of(Forgetful(), Judge("x", prompting), prompting)


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
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
