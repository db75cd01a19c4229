"""Conformal draft and target: what it sends to which worker, how it decides, what it keeps, and what it refuses."""

import asyncio
import contextvars
import inspect
import re
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.calibration_file import CalibrationWarning
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.chain.ending import forced_answers
from scaffolding_ext.controllers.draft_target.calibration_file import (
    ConformalCalibration,
    DraftTargetSetting,
    LevelScores,
    TurnScores,
    fingerprints,
)
from scaffolding_ext.controllers.draft_target.chain import Decision
from scaffolding_ext.controllers.draft_target.coin import Coin
from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.controllers.draft_target.conformal_rule import ConformalRule
from scaffolding_ext.controllers.draft_target.p_values import leave_one_out_p_values
from scaffolding_ext.controllers.draft_target.take_over import TakeOverRule
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.evaluation.calibrate.conformal_run import CalibrateDraftTargetController, turns_in
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask
from scaffolding_ext.protocol.meta import Purpose, meta_of
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.request.program import Program, enter_program
from scaffolding_ext.stack.build import check_stack
from scaffolding_ext.stack.load import load_config
from scaffolding_ext.testing import FakeClock, ScriptedWorker
from scaffolding_ext.workers.budgeted import BudgetedWorker

pytestmark = pytest.mark.filterwarnings("ignore:the take-over rule. the calibration has scores of")

SETTING = {"draft_tokens": 4, "target_tokens": 6, "on_reject": "resample"}


def calibration(*turns, alpha=0.4, source="held_out", prompts=("another question",), **changed):
    setting = {"draft_model": None, "target_model": None, **SETTING, **changed}
    scores = [TurnScores(scores=list(turn), rate=alpha, low=None, high=None) for turn in turns]
    return ConformalCalibration(
        source=source,
        setting=DraftTargetSetting(**setting),
        num_chains=1,
        seed=0,
        questions=fingerprints(prompts),
        levels=[LevelScores(alpha=alpha, turns=scores)],
    )


def controller(*turns, **changed):
    arguments = {"num_chains": 1, "max_turns": 3, **SETTING} | changed
    own = {name: arguments.pop(name) for name in inspect.signature(ConformalRule).parameters if name in arguments}
    if "rule" not in arguments:
        conformal = {"alpha": 0.4, "ties": "conservative"} | own
        if conformal.get("coverage") != "conditional":
            conformal.setdefault("calibration", calibration(*turns, on_reject=arguments["on_reject"]))
        arguments["rule"] = ConformalRule(**conformal)
    return ConformalDraftTargetController(**arguments)


def scored(nll):
    """A target that writes T and finds every chunk as unlikely as `nll` says of its task."""

    def respond(task):
        if isinstance(task, ScoreTask):
            return [-nll(task)] * len(task.continuation_str)
        return "9}" if task.input_str.endswith("{") else "T" * 100

    return ScriptedWorker(respond)


def drafting():
    return ScriptedWorker(lambda task: "7}" if task.input_str.endswith("{") else "d" * 100)


def run(made, draft=None, target=None, prompt="question", **kwargs):
    workers = {"draft": draft or drafting(), "target": target or scored(lambda task: 5.0)}
    with ScaffoldingLlm(made, workers, seed=0) as llm:
        return llm.generate(prompt, sample_id="sample", **kwargs)


NINE = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]


def test_a_chunk_stands_or_is_written_anew_by_the_rank_of_its_score_in_its_turns_pool(events) -> None:
    pools = (NINE, [score + 100 for score in NINE], NINE)
    result = run(controller(*pools, max_turns=3), target=scored(lambda task: 6.5))
    # 6.5 is above all but three of nine: p = 4 / 10. At turn 1 it is below all.
    decisions = events(result, "accept", "take_over")
    assert [(e["event"], e["turn"], e["score"], e["p_value"], e["alpha"]) for e in decisions] == [
        ("take_over", 0, 6.5, 0.4, 0.4),
        ("accept", 1, 6.5, 1.0, 0.4),
        ("take_over", 2, 6.5, 0.4, 0.4),
    ]
    assert [(e["num_draft_tokens"], e["num_target_tokens"]) for e in decisions] == [(4, 6), (4, 0), (4, 6)]
    assert result.outputs[0].text.startswith("TTTTTT" + "dddd" + "TTTTTT")
    assert result.program.ledger.by_purpose[Purpose.REJECTED].decoded == 8  # two rejected drafts
    assert (result.answer, result.exit_reason) == ("7", "max_turns")


def test_continue_keeps_the_rejected_chunk() -> None:
    made = controller(NINE, NINE, on_reject="continue", max_turns=2)
    result = run(made, target=scored(lambda task: 10.0))
    assert result.outputs[0].text.startswith("dddd" + "TTTTTT" + "dddd" + "TTTTTT")
    assert not {Purpose.REJECTED, Purpose.DISCARDED} & result.program.ledger.by_purpose.keys()


def test_each_model_reads_the_chain_so_far_and_the_target_scores_the_chunk_behind_it() -> None:
    draft, target = drafting(), scored(lambda task: 10.0 if task.input_str == "question" else 0.0)
    run(controller(NINE, NINE, NINE, max_turns=2), draft, target)
    drafts = [(task.input_str, task.max_tokens) for task in draft.tasks]
    assert drafts[:2] == [("question", 4), ("questionTTTTTT", 4)]
    assert drafts[2][0].startswith("questionTTTTTTdddd")  # asked for its answer
    assert [meta_of(task).turn_start for task in draft.tasks[:2]] == [None, len("question")]
    scores = [(t.input_str, t.continuation_str) for t in target.tasks if isinstance(t, ScoreTask)]
    assert scores == [("question", "dddd"), ("questionTTTTTT", "dddd")]
    assert [(t.input_str, t.max_tokens) for t in target.tasks if not isinstance(t, ScoreTask)] == [("question", 6)]


def test_a_chain_ends_at_an_answer_at_the_models_end_and_at_its_budget(events) -> None:
    boxed = ScriptedWorker(lambda task: "so \\boxed{3} and on and on")
    result = run(controller(NINE, draft_tokens=20, calibration=calibration(NINE, draft_tokens=20)), boxed)
    assert (result.answer, result.exit_reason) == ("3", "answer")
    ended = ScriptedWorker(lambda task: "4}" if task.input_str.endswith("{") else "no")
    assert run(controller(NINE), ended).exit_reason == "end"
    result = run(controller(NINE, NINE, max_tokens=6, max_turns=9))
    assert result.exit_reason == "length"
    assert [event["turn"] for event in events(result, "accept")] == [0, 1]


def test_a_chain_that_drafts_nothing_has_ended_and_nothing_is_decided(events) -> None:
    silent = ScriptedWorker(lambda task: "5}" if task.input_str.endswith("{") else "")
    result = run(controller(NINE), silent)
    assert not events(result, "accept", "take_over")
    assert (result.answer, result.exit_reason) == ("5", "end")


def test_an_accepted_chain_goes_on_while_another_still_drafts(events) -> None:
    """The first draft to arrive is held until the other chain has been scored three times."""
    released = asyncio.Event()
    held = []
    num_scored = 0

    async def hold(task):
        if not held:
            held.append(task)
            await released.wait()

    def nll(task):
        nonlocal num_scored
        num_scored += 1
        if num_scored == 3:
            released.set()
        return 0.0

    draft = ScriptedWorker(lambda task: "7}" if task.input_str.endswith("{") else "d" * 100, before=hold)
    result = run(controller(NINE, NINE, NINE, num_chains=2, max_turns=3), draft, scored(nll), timeout=30)
    assert [event["chain"] for event in events(result, "accept")][:3] == [1, 1, 1]
    assert len(events(result, "accept")) == 6


def test_conditional_coverage_scores_all_first_drafts_and_ranks_each_among_the_others(events) -> None:
    nlls = iter([3.0, 1.0, 2.0, 2.0, 9.0])
    drawn = []

    def nll(task):
        drawn.append(next(nlls) if task.input_str == "question" else 100.0)
        return drawn[-1]

    made = controller(coverage="conditional", num_chains=5, max_turns=2, ties="conservative")
    with pytest.warns(CalibrationWarning, match="coverage 'conditional' holds alpha on the first turn only"):
        result = run(made, target=scored(nll))
    assert [event["what"] for event in events(result, "warning")] == ["calibration"]
    by_chain = {e["chain"]: e["p_value"] for e in events(result, "accept", "take_over") if e["turn"] == 0}
    assert [by_chain[chain] for chain in range(5)] == leave_one_out_p_values([3.0, 1.0, 2.0, 2.0, 9.0]).tolist()
    later = [e for e in events(result, "accept", "take_over") if e["turn"] == 1]
    assert [e["p_value"] for e in later] == pytest.approx([1 / 6] * 5)
    assert not events(run(controller(coverage="conditional", num_chains=2, max_turns=1)), "warning")


def test_conditional_coverage_beyond_a_turn_is_warned_of_once_a_stack_and_told_in_every_trace(events) -> None:
    made = controller(coverage="conditional", num_chains=2, max_turns=2)
    workers = {"draft": drafting(), "target": scored(lambda task: 1.0)}
    with pytest.warns(CalibrationWarning) as warned, ScaffoldingLlm(made, workers, seed=0) as llm:
        results = [llm.generate(prompt) for prompt in ("one", "two", "three")]
    assert len(warned) == 1
    assert [len(events(result, "warning")) for result in results] == [1, 1, 1]


def test_a_turn_that_no_calibration_chain_reached_is_decided_by_a_coin_of_the_same_rate(events) -> None:
    """About 1,000 decisions; 4 binomial standard errors."""
    made = controller(NINE, max_turns=100, num_chains=10, ties="random", max_tokens=10**6)
    decisions = [e for e in events(run(made), "accept", "take_over") if e["turn"]]
    assert all(event["num_calibration"] == 0 for event in decisions)
    rate = np.mean([event["event"] == "take_over" for event in decisions])
    assert rate == pytest.approx(0.4, abs=4 * (0.24 / len(decisions)) ** 0.5)


def test_turns_that_no_calibration_chain_reached_are_warned_of_when_the_stack_is_built(events) -> None:
    (told,) = events(run(controller(NINE)), "warning")
    assert "scores of 1 turns" in told["reason"]
    workers = {"draft": drafting(), "target": scored(lambda task: 5.0)}
    with pytest.warns(CalibrationWarning, match=r"scores of 2 turns, but a chain may draft 3 chunks: .* a coin"):
        controller(NINE, NINE, []).bind(workers)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        controller(NINE, NINE, NINE).bind(workers)


@pytest.mark.filterwarnings("ignore:the take-over rule. pool 'first_turn'")
def test_a_pool_of_the_first_turn_decides_at_all_turns(events) -> None:
    made = controller(NINE, max_turns=3, pool="first_turn")
    decisions = events(run(made), "accept", "take_over")
    assert [event["turn"] for event in decisions] == [0, 1, 2]
    assert {event["num_calibration"] for event in decisions} == {len(NINE)}
    with pytest.warns(CalibrationWarning, match="holds alpha on the first turn only"):
        made.bind({"draft": drafting(), "target": scored(lambda task: 5.0)})


@pytest.mark.parametrize("of_the_task", [True, False])
def test_ties_are_broken_by_the_seed_of_the_task_or_the_drafts_where_no_program_has_one(of_the_task) -> None:
    """All scores tie with the pool's, so that chance alone decides; as under upstream's host, there is no program."""

    def written(seed):
        own = {} if of_the_task else {"seed": seed}
        drafts = NativeGenerationController({"temperature": 0.7, **own})
        pools = [[5.0] * 9] * 12
        made = controller(*pools, draft_controller=drafts, max_turns=12, ties="random", max_tokens=100)
        workers = {"draft": drafting(), "target": scored(lambda task: 5.0)}
        made.bind(workers)
        task = GenerationTask(input_str="question", seed=seed if of_the_task else None)
        drive(made.run(task), workers)
        return task.output_str

    texts = [written(seed) for seed in range(5)]
    assert [written(seed) for seed in range(5)] == texts
    assert len(set(texts)) > 1


def test_the_rate_is_alpha_where_the_scores_are_exchangeable(events) -> None:
    """800 chunks against 999 calibration scores of their law; both draws scatter, by 4 standard errors together."""
    rng = np.random.default_rng(1)
    pool = rng.gamma(2.0, 1.0, 999).tolist()
    made = controller(pool, num_chains=800, max_turns=1, ties="random")
    decisions = events(run(made, target=scored(lambda task: float(rng.gamma(2.0, 1.0)))), "accept", "take_over")
    rate = np.mean([event["event"] == "take_over" for event in decisions])
    assert rate == pytest.approx(0.4, abs=4 * (0.24 / 800 + 0.24 / 1_000) ** 0.5)


def test_the_adaptive_level_keeps_the_rate_under_drift_and_tells_its_regret(events) -> None:
    made = controller(NINE, num_chains=500, max_turns=1, adaptive_step=0.05)
    result = run(made, target=scored(lambda task: 50.0))  # stranger than any calibration score
    rate = np.mean([event["event"] == "take_over" for event in events(result, "accept", "take_over")])
    assert rate == pytest.approx(0.4, abs=(0.6 + 0.05) / (500 * 0.05))
    figures = events(result, "vote")[0]
    assert figures["rate"] == rate
    assert figures["regret"] < 10


def test_chains_vote_and_the_output_is_the_first_of_the_winners(events) -> None:
    answers = iter("122")
    draft = ScriptedWorker(lambda task: f"\\boxed{{{next(answers)}}}")
    made = controller(NINE, num_chains=3, draft_tokens=20, calibration=calibration(NINE, draft_tokens=20), alpha=0.4)
    result = run(made, draft, scored(lambda task: 0.0))
    assert (result.answer, result.exit_reason) == ("2", "vote")
    assert events(result, "vote")[0]["winner"] == 1


def test_half_a_character_does_not_go_to_the_other_model() -> None:
    draft, target = ScriptedWorker(lambda task: "ab\ufffd"), scored(lambda task: 0.0)
    run(controller(NINE), draft, target)
    assert next(t for t in target.tasks if isinstance(t, ScoreTask)).continuation_str == "ab"


# Rules


class Every(TakeOverRule):
    """Takes over every chunk, the first ones of all chains together, and has the target read none."""

    scores_chunks = False
    is_joint = True

    def decide(self, chains, rngs):
        yield from ()
        assert len(chains) == len(rngs)
        return [Decision(True, {"num_decided": len(chains)}) for _ in chains]


def test_a_joint_rule_decides_on_all_first_chunks_together(events) -> None:
    target = scored(lambda task: 0.0)
    made = controller(rule=Every(), calibration=None, num_chains=3, max_turns=3)
    decisions = events(run(made, target=target), "accept", "take_over")
    assert all((e["event"], e["score"]) == ("take_over", None) for e in decisions)
    assert sorted((e["turn"], e["num_decided"]) for e in decisions) == [(0, 3)] * 3 + [(1, 1)] * 3 + [(2, 1)] * 3
    assert not [task for task in target.tasks if isinstance(task, ScoreTask)]


def test_the_page_s_own_rule_decides(events) -> None:
    page = (Path(__file__).parents[3] / "docs" / "algorithms" / "conformal_draft_target.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    nlls = iter([1.0, 3.0, 1.5])
    made = controller(rule=names["Doubling"](), max_turns=3)
    decisions = events(run(made, target=scored(lambda task: next(nlls))), "accept", "take_over")
    told = [(each["event"], each["score"], each["usual"]) for each in decisions]
    assert told == [("accept", 1.0, 1.0), ("take_over", 3.0, 1.0), ("accept", 1.5, 1.0)]


class Joint(Every):
    """Has the target read the chunks, too."""

    scores_chunks = True


class AcceptsJointly(Joint):
    """Accepts every chunk."""

    scores_chunks = False

    def decide(self, chains, rngs):
        yield from ()
        return [Decision(False, {}) for _ in chains]


def test_a_chain_that_has_ended_has_its_answer_while_others_go_on(events) -> None:
    replies = iter(["so \\boxed{3}"])  # of the first chain; the other drafts on
    draft = ScriptedWorker(lambda task: "7}" if task.input_str.endswith("{") else next(replies, "d" * 20))
    settings = {"draft_tokens": 12, "num_chains": 2, "max_turns": 3}
    result = run(controller(rule=AcceptsJointly(), calibration=None, **settings), draft)
    told = [(event["event"], event["chain"]) for event in events(result, "accept", "end")]
    assert told.index(("end", 0)) < told.index(("end", 1)) - 1
    assert told.count(("accept", 1)) == 3
    assert told.count(("end", 0)) == told.count(("end", 1)) == 1
    assert [(event["turns"], event["answer"]) for event in events(result, "end")] == [(1, "3"), (3, "7")]
    (forced,) = events(result, "force")  # the other chain answered by itself
    assert (forced["chain"], forced["answer"], forced["cause"]) == (1, "7", "max_turns")
    assert forced_answers(result.program.trace) == {"max_turns": 1}


class OneByOne(Every):
    """Lets every chain go on by itself."""

    scores_chunks = True
    is_joint = False


@pytest.mark.parametrize(("rule", "waited"), [(Joint(), [2.0, 2.0]), (OneByOne(), [0.0, 0.0])])
def test_the_trace_says_how_long_a_chunk_waited_for_its_decision(rule, waited) -> None:
    """One branch after the other, a second a task.

    In step, the first chain waits while the second is drafted and scored, the second while the first is taken over and
    asked for its answer.
    """
    clock = FakeClock()

    async def tick(task):
        clock.advance(1.0)

    workers = {"draft": ScriptedWorker("dddd", before=tick), "target": ScriptedWorker(replies, before=tick)}
    program = Program(clock=clock)
    contextvars.copy_context().run(drive_in, program, controller(rule=rule, num_chains=2, max_turns=1), workers)
    decisions = [event for event in program.trace if event["event"] == "take_over"]
    assert [(event["chain"], event["seconds_waited"]) for event in decisions] == list(enumerate(waited))


def replies(task):
    return [-1.0] * len(task.continuation_str) if isinstance(task, ScoreTask) else "TTTTTT"


def drive(generator, workers):
    """Run a controller's work, one branch after the other."""
    for work in generator:
        for branch in getattr(work, "sub_gens", ()):
            drive(branch, workers)
        for task in () if hasattr(work, "sub_gens") else work:
            asyncio.run(workers[str(task.worker_tag)].run_task(task))


def drive_in(program, made, workers):
    """Run a controller in a program."""
    enter_program(program)
    made.bind(workers)
    drive(program.meter.watch(made.run(GenerationTask(input_str="question"))), workers)


# Workers and draft controllers


def test_models_with_different_chat_templates_are_refused_unless_they_are_to_share_a_prompt() -> None:
    draft, target = drafting(), scored(lambda task: 0.0)
    draft.chat_template, target.chat_template = "<user>", "<human>"
    with pytest.raises(ConfigError, match=r"workers.draft: the models of draft and target have different chat templ"):
        run(controller(NINE), draft, target)
    assert run(controller(NINE, shares_prompt=True), draft, target).answer == "7"


def test_dynasor_drafts_and_a_chunk_that_its_budget_cuts_off_is_no_end(events) -> None:
    """Its probes agree in the second chunk, on 7; in the first there is room for one probe."""
    draft = ScriptedWorker(lambda task: "7}" if task.input_str.endswith("{") else "d" * 100)
    dynasor = DynasorCoTController(chunk_size=3, certainty_threshold=2, mode="chunk", overlap=False)
    made = controller(
        NINE,
        draft_controller=dynasor,
        draft_tokens=4,
        max_turns=1,
        calibration=calibration(NINE, draft_tokens=4),
    )
    result = run(made, draft, scored(lambda task: 0.0))
    assert result.outputs[0].text.startswith("dddd\n\n...</think>")  # closed once, behind the chunk
    assert result.exit_reason == "max_turns"
    made = controller(NINE, draft_controller=dynasor, draft_tokens=9, calibration=calibration(NINE, draft_tokens=9))
    result = run(made, draft, scored(lambda task: 0.0))
    assert (result.answer, result.exit_reason) == ("7", "end")
    assert result.outputs[0].text.startswith("dddddd\n\n...</think>")  # it stopped at two probes that agree
    assert [event["turn"] for event in events(result, "accept")] == [0]


def test_the_target_serves_few_calls_at_once_and_the_strangest_chains_first(events) -> None:
    """Twelve chains, one call at a time: what waits comes by p-value, and the trace says that it waited."""
    nlls = iter(range(12))
    target = BudgetedWorker(scored(lambda task: float(next(nlls, 0.0))), max_calls=1)
    result = run(controller(NINE, num_chains=12, max_turns=2, alpha=0.4), drafting(), target)
    assert target.most_calls == 1
    assert len(events(result, "waited")) == len(target.worker.tasks)
    decisions = {(e["chain"], e["turn"]): e["p_value"] for e in events(result, "accept", "take_over")}
    assert {e["priority"] for e in events(result, "waited")} <= {0.0, *decisions.values()}


# Calibration


@pytest.mark.parametrize("flat", [{"alpha": 0.4}, {"coverage": "conditional"}, {"calibration": "file.json"}])
@pytest.mark.parametrize("rule", ["coin", Coin()])
def test_what_a_rule_owns_is_refused_beside_it(rule, flat) -> None:
    with pytest.raises(ConfigError, match=f"conflicts with {next(iter(flat))}") as caught:
        ConformalDraftTargetController(rule=rule, **flat)
    assert caught.value.key == "rule"


def test_the_usual_arguments_take_the_place_of_a_conformal_rule_s_own() -> None:
    own = ConformalRule(0.1, "conditional", ties="conservative", adaptive_step=0.02)
    rule = ConformalDraftTargetController(rule=own, alpha=0.3).rule
    assert (rule.alpha, rule.coverage, rule.ties, rule.figures()) == (
        0.3,
        "conditional",
        "conservative",
        {"rate": 0.3, "regret": 0.0},
    )
    made = calibration(NINE, draft_tokens=64, target_tokens=64)
    rule = ConformalDraftTargetController(rule=own, alpha=0.4, coverage="marginal", calibration=made).rule
    assert (rule.coverage, rule.calibration, rule.ties) == ("marginal", made, "conservative")
    assert ConformalDraftTargetController(rule=own).rule is own


def test_a1_s_own_settings_are_a_stack() -> None:
    made = check_stack(load_config("configs:conformal_draft_target_a1"))
    assert (made.rule.alpha, made.num_chains, made.max_tokens) == (0.4, 16, 8192)
    assert made.rule.pool == "first_turn"
    with pytest.raises(ConfigError, match="scored before the first is answered: `eval` does"):
        made.rule.for_request()
    assert (made.setting.draft_tokens, made.setting.target_tokens, made.setting.on_reject) == (500, 500, "continue")
    temperatures = {
        made.draft.controller.sampling_params["temperature"],
        made.target.controller.sampling_params["temperature"],
    }
    assert temperatures == {0.8}


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("coins", "did you mean 'coin'"),
        ({"type": "consecutive"}, "unknown take-over rule 'consecutive'"),
        ({"type": "os:getcwd"}, "not a subclass of TakeOverRule"),
        ({"type": "coin", "args": {"rate": 1.5}}, "controller.args.rule.args.rate: is 1.5; it must be"),
    ],
)
def test_what_is_no_take_over_rule_is_refused(rule, message) -> None:
    worker = {"type": "ScriptedWorker", "args": {"respond": "so"}}
    component = {"type": "ConformalDraftTargetController", "args": {"rule": rule}}
    with pytest.raises(ConfigError, match=message):
        check_stack(load_config({"controller": component, "workers": {"draft": worker, "target": worker}}))


def test_a_rule_that_is_not_conformal_has_nothing_to_calibrate() -> None:
    with pytest.raises(ConfigError, match="is a Coin; only a ConformalRule can be calibrated"):
        CalibrateDraftTargetController(ConformalDraftTargetController(rule="coin"), ["question"])


def test_calibration_chains_go_on_in_step_and_are_ranked_among_the_others() -> None:
    made = controller(coverage="conditional", num_chains=4, max_turns=3, ties="random")
    rng = np.random.default_rng(2)
    calibrating = CalibrateDraftTargetController(made, [f"question {i}" for i in range(25)])
    result = run(calibrating, target=scored(lambda task: float(rng.normal(len(task.input_str)))))
    turns = turns_in(result.program.trace)
    assert [len(turn.scores) for turn in turns] == [100, 100, 100]
    assert turns[0].questions == [i for i in range(25) for _ in range(4)]
    for turn in turns:
        assert np.mean(turn.taken_over) == pytest.approx(0.4, abs=0.02)  # ranks among each other: nearly exact


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"draft_tokens": 5}, "was calibrated with draft_tokens 4, but here it is 5.*any_chunk_len"),
        ({"target_tokens": 7}, "was calibrated with target_tokens 6, but here it is 7"),
        ({"alpha": 0.25}, r"alpha: is 0.25, but the calibration has 0.4"),
        ({"alpha": 4}, "alpha: is 4; it must be at least 0 and at most 1"),
        ({"num_chains": 0}, "num_chains: is 0; it must be at least 1"),
        ({"coverage": "total"}, "coverage: is 'total'; choose one of marginal, conditional"),
        ({"calibration": None}, "calibration: is None, but marginal coverage"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changed, message) -> None:
    with pytest.raises(ConfigError, match=message):
        controller(**{"calibration": calibration(NINE)} | changed)


def test_a_calibration_of_chunks_of_another_length_is_taken_on_request_and_doubted() -> None:
    """A1's figure 6: calibrated at 500 tokens, sampled at 700."""
    made = ConformalRule(0.4, calibration=calibration(NINE), any_chunk_len=True)
    own = SETTING | {"draft_tokens": 5, "target_tokens": 7}
    assert ConformalDraftTargetController(rule=made, **own).rule is made
    assert made.changed(ties="conservative").any_chunk_len
    assert "chunks of another length" in str(made.coverage_warning(3))
    with pytest.raises(ConfigError, match="was calibrated with on_reject"):
        ConformalDraftTargetController(rule=made, **SETTING | {"on_reject": "continue"})


def test_other_models_than_the_calibrated_are_refused() -> None:
    made = controller(calibration=calibration(NINE, draft_model="small", target_model="large"))
    draft, target = drafting(), scored(lambda task: 0.0)
    run(made, draft, target)  # workers that name no model cannot be compared
    draft.model, target.model = "small", "larger"
    with pytest.raises(ConfigError, match="was calibrated with target_model 'large', but here it is 'larger'"):
        run(made, draft, target)


def test_a_worker_that_cannot_score_is_refused() -> None:
    class Mute(ScriptedWorker):
        task_handlers: ClassVar = {
            kind: run for kind, run in ScriptedWorker.task_handlers.items() if kind is not ScoreTask
        }

    with pytest.raises(ConfigError, match=r"workers.target: \w+ cannot serve ScoreTask, which Conformal"):
        run(controller(NINE), target=Mute("T"))


def test_questions_that_an_online_calibration_did_not_see_are_told_in_the_trace(events) -> None:
    online = calibration(NINE, NINE, NINE, source="online", prompts=("question",))
    assert not events(run(controller(calibration=online)), "warning")
    with pytest.warns(CalibrationWarning, match="for questions other than this one"):
        assert events(run(controller(calibration=online), prompt="another"), "warning")
    assert not events(run(controller(NINE, NINE, NINE), prompt="another"), "warning")


def test_a_request_is_ranked_among_its_own_first_drafts():
    def decided(rule, turn, *scores):
        chains = [SimpleNamespace(score=score, turn=turn) for score in scores]
        with pytest.raises(StopIteration) as stop:
            next(rule.decide(chains, [np.random.default_rng(0)] * len(chains)))
        return stop.value.value

    shared = ConformalRule(0.4, "conditional", ties="conservative")
    first, second = shared.for_request(), shared.for_request()
    decided(first, 0, 1.0, 2.0, 3.0)
    decided(second, 0, 7.0, 8.0)
    (later,) = decided(first, 1, 2.5)
    assert (later.figures["num_calibration"], later.figures["p_value"]) == (3, 0.5)
