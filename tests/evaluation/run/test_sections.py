"""Each controller has its section: what it published of its requests, summed up with intervals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.basic.best_of_n import BestOfNController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.budgets.budget_forcing import BudgetForcingController
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.draft_target.coin import Coin
from scaffolding_ext.controllers.draft_target.conformal_draft_target import ConformalDraftTargetController
from scaffolding_ext.controllers.tree.kv_share_branching import KVShareBranchingController
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.evaluation.compare.compared import compare_runs
from scaffolding_ext.evaluation.report.page import rendered
from scaffolding_ext.evaluation.report.terminal import eval_lines
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.evaluation.run.records import Record, read_records, record_writer
from scaffolding_ext.evaluation.run.runner import evaluate
from scaffolding_ext.evaluation.run.sections import Sections, figures_of, shares_of
from scaffolding_ext.evaluation.run.summary import summarize
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import ControllerGenerator, GenerationTask
from scaffolding_ext.protocol.tasks import ScoreTask
from scaffolding_ext.protocol.worker import WorkerTag
from scaffolding_ext.request.figures import Answers, Ratio
from scaffolding_ext.request.program import publish_figures
from scaffolding_ext.stats.intervals import bootstrap_quotients, wilson_interval
from scaffolding_ext.testing import ScriptedWorker
from scaffolding_ext.workers.huggingface.worker import HuggingFaceWorker


def samples(num: int = 6) -> list[Example]:
    return [Example(f"q{number}", f"question {number}", "1") for number in range(num)]


def run(controller: Any, worker: Any, num: int = 6, **more: Any) -> list[Record]:
    workers = worker if isinstance(worker, dict) else {"generation": worker}
    with ScaffoldingLlm(controller, workers, 1, seed=0) as llm:
        return evaluate(llm, samples(num), **more)


def saying(*answers: str) -> ScriptedWorker:
    """Says the answers in turn, from the first again behind the last."""
    turn: Iterator[int] = iter(range(10_000))
    return ScriptedWorker(lambda task: f"\\boxed{{{answers[next(turn) % len(answers)]}}}")


class Strange(BaseController):
    """A controller of somebody else."""

    def run(self, task: GenerationTask, **kwargs: Any) -> ControllerGenerator:
        task.worker_tag = WorkerTag.GENERATION
        yield [task]
        hard = task.output_str == "\\boxed{2}"
        publish_figures("Strange", hard=Ratio(int(hard), 1), words=3, kinds={"hard" if hard else "easy": 1})
        task.customized_result_fields["answer"] = "1"


def test_a_strangers_controller_has_its_section_everywhere(tmp_path: Path) -> None:
    records = run(Strange(), saying("1", "2", "2"))
    summary = summarize(records)
    hard = summary.sections["Strange"]["hard"]
    assert (hard.kind, hard.value, hard.num, hard.of) == ("share", pytest.approx(4 / 6), 4, 6)
    parts = np.array([[0.0], [1.0], [1.0], [0.0], [1.0], [1.0]])
    (expected,) = bootstrap_quotients(parts, np.ones((6, 1)), rng=np.random.default_rng(0))
    assert (hard.low, hard.high) == (expected.low, expected.high)
    assert summary.sections["Strange"]["kinds"].counts == {"hard": 4, "easy": 2}
    document = json.loads(json.dumps(summary.to_json()))
    assert document["sections"]["Strange"]["words"]["value"] == 3
    folders = []
    for name in ("one", "two"):
        folders.append(tmp_path / name)
        folders[-1].mkdir()
        with record_writer(folders[-1] / "samples.jsonl") as write:
            for record in records:
                write(record)
    assert read_records(folders[0] / "samples.jsonl") == records  # figures survive the file
    compared = compare_runs(folders)
    page = rendered(compared, [])
    assert "<h2>Strange</h2>" in page
    assert "<th>kinds</th><td>hard 4 (67%), easy 2 (33%)</td><td>hard 4 (67%), easy 2 (33%)</td>" in page


def test_a_votes_own_samples_are_marked_once_a_class() -> None:
    asked: list[str] = []

    async def is_right(answer: str) -> bool:
        asked.append(answer)
        return answer in ("1", "1.0")

    published = {"Vote": {"answers": Answers(["2", "1", None, "2", "1.0"], [0, 1, -1, 0, 1]), "samples": 5}}
    figures = asyncio.run(figures_of(published, is_right))
    assert asked == ["2", "1"]
    assert figures == {"Vote": {"best@n": [1, 1], "maj@n": [0, 1], "mean@n": [2, 5], "samples": 5}}
    failed = asyncio.run(figures_of(published, None))
    assert failed == {"Vote": {"samples": 5}}


@pytest.mark.parametrize(
    ("right", "classes", "shares"),
    [
        ([False, False], [-1, -1], [[0, 1], [0, 1], [0, 2]]),
        ([True, False, False], [0, 1, 1], [[1, 1], [0, 1], [1, 3]]),
        ([True, False], [0, 1], [[1, 1], [1, 1], [1, 2]]),
    ],
)
def test_best_and_majority_of_a_votes_samples(right: list[bool], classes: list[int], shares: list[list[int]]) -> None:
    assert list(shares_of(right, classes).values()) == shares


@pytest.mark.parametrize("weight", ["votes", "best of n"])
def test_votes_tell_best_and_majority(weight: str) -> None:
    plain = NativeGenerationController({"temperature": 0.7})
    controller: Any = (
        MajorityVoteController(plain, 4, allocation=None)
        if weight == "votes"
        else BestOfNController(plain, default_sample_num=4, reward=lambda sample: float(sample.index == 3))
    )
    records = run(controller, saying("2", "3", "2", "1"))
    section = summarize(records).sections[type(controller).__name__]
    found = {name: figure.value for name, figure in section.items() if name.endswith("@n")}
    assert found == {"best@n": 1.0, "maj@n": 0.0, "mean@n": 0.25}
    if weight == "votes":
        assert section["stop_reason"].counts == {"vote": 6}
        assert all(not record.correct for record in records)
    else:
        assert all(record.correct for record in records)


def conformal(rule: Any, **changed: Any) -> ConformalDraftTargetController:
    sizes: dict[str, Any] = {"num_chains": 2, "max_turns": 3, "draft_tokens": 4, "target_tokens": 6} | changed
    return ConformalDraftTargetController(rule=rule, **sizes)


def draft_and_target() -> dict[str, ScriptedWorker]:
    def target(task: Any) -> Any:
        return [-1.0] * len(task.continuation_str) if isinstance(task, ScoreTask) else "T" * 100

    return {
        "draft": ScriptedWorker(lambda task: "1}" if task.input_str.endswith("{") else "d" * 100),
        "target": ScriptedWorker(target),
    }


def test_take_overs_stand_beside_alpha_with_tokens_of_both_models() -> None:
    records = run(conformal(Coin(1.0)), draft_and_target())
    section = summarize(records).sections["ConformalDraftTargetController"]
    assert section["take_over_rate"].value == 1.0
    assert section["take_over_rate"].of == 6 * 2 * 3  # questions, chains, turns
    assert not section.keys() & {"alpha", "decided_by_coin"}  # a coin has neither a level nor a calibration
    tokens = {name: section[name].value for name in ("draft_tokens", "target_tokens", "rejected_draft_tokens")}
    assert tokens == {"draft_tokens": 24.0, "target_tokens": 36.0, "rejected_draft_tokens": 24.0}
    assert section["rejected_drafts"].value == 1.0
    assert section["chain_ends"].counts == {"max_turns": 12}
    assert section["best@n"].value == 1.0
    assert (section["best@n"].low, section["best@n"].high) == pytest.approx(wilson_interval(6, 6))  # not 1 to 1


def test_kept_chunks_are_no_rejected_drafts_and_alpha_is_told() -> None:
    rule = "growing"
    records = run(conformal(rule, on_reject="continue"), draft_and_target())
    section = summarize(records).sections["ConformalDraftTargetController"]
    assert section["alpha"].value == pytest.approx(0.4)
    assert section["rejected_drafts"].value == 0.0
    decided = [event for record in records for event in record.trace if event["event"] in ("take_over", "accept")]
    taken = sum(event["event"] == "take_over" for event in decided)
    assert section["take_over_rate"].num == taken
    assert section["take_over_rate"].of == len(decided)
    assert section["take_over_rate"].low is not None
    coins = [event for event in decided if event["num_calibration"] == 0]
    assert (section["decided_by_coin"].num, section["decided_by_coin"].of) == (len(coins), len(decided))
    assert len(coins) == len(decided)  # six questions: the pools of this rule begin at eight
    said = [line for line in eval_lines("run", summarize(records)) if line.startswith("decided by coin")]
    assert said == [f"decided by coin: {len(coins)} of {len(coins)} decisions, 100 %"]


def test_the_intensity_is_work_over_what_chains_waited_for_decisions() -> None:
    """A1's r = T_c / (T_m + T_s), with T_s the waiting of the chains and T_m part of the work."""
    records = run(conformal(Coin(0.5, scores=True)), draft_and_target())
    intensity = summarize(records).sections["ConformalDraftTargetController"]["intensity"]
    decided = [event for record in records for event in record.trace if event["event"] in ("take_over", "accept")]
    assert intensity.of == pytest.approx(sum(event["seconds_waited"] for event in decided), abs=1e-6 * len(decided))
    assert 0 < intensity.num < sum(2 * record.seconds["total"] for record in records)  # two chains each
    assert intensity.value == intensity.num / intensity.of


def test_budgets_and_chains_say_what_they_kept() -> None:
    worker = HuggingFaceWorker("tinylm/draft")
    forced = run(BudgetForcingController(8), worker, num=2)
    section = summarize(forced).sections["BudgetForcingController"]
    assert section["kept"].value == 1.0
    assert section["kept"].of == 2
    assert section["kept_by"].counts == {"controller": 2}
    assert section["thinking_tokens"].value == 8.0
    chains = run(DynasorCoTController(chunk_size=4, certainty_threshold=1), ScriptedWorker("7} and on and on"), num=3)
    stopped = summarize(chains).sections["DynasorCoTController"]
    assert (stopped["stopped_early"].value, stopped["probes"].value) == (1.0, 1.0)
    assert stopped["stop_reason"].counts == {"certain": 3}


def test_branching_tells_skips_exits_and_reuse() -> None:
    worker = HuggingFaceWorker("tinylm/draft")
    settings: dict[str, Any] = {"max_tokens": 24}
    verdicts = KVShareBranchingController(
        2, scorer={"type": "verdict", "args": {"layer_exit": {"max_entropy": 50.0, "max_change": 50.0}}}, **settings
    )
    found = summarize(run(verdicts, worker, num=2)).sections
    section = found["KVShareBranchingController"]
    assert section["exit_layers"].counts == {"layer 2": 4}
    assert section["nodes"].value == 2.0
    assert found["KV of branches"]["reused_tokens"].value is not None
    skipping = KVShareBranchingController(2, scorer="verdict", gates={"skip": {"least": 0.0, "gap": 0.0}}, **settings)
    skipped = summarize(run(skipping, worker, num=2)).sections["KVShareBranchingController"]
    assert skipped["skip_rate"].value == 1.0
    assert "exit_layers" not in skipped


def test_questions_are_resampled_and_not_records() -> None:
    sections = Sections()
    for question, num in ((0, 1), (0, 1), (1, 0)):
        sections.add(question, {"S": {"rate": [num, 1], "never": [0, 0]}})
    figures = sections.figures(2)["S"]
    assert figures["rate"].value == pytest.approx(2 / 3)
    assert (figures["rate"].low, figures["rate"].high) == (0.0, 1.0)
    assert figures["never"].value is None
    assert figures["never"].low is None
    assert Sections().figures(0) == {}


def test_jobs_have_the_quantiles_of_their_seconds(make_job: Callable[..., Record]) -> None:
    records = [make_job("a", 10.0, 1010.0), make_job("b", 6.0, 1008.0), make_job("c", 5.0, 5000.0)]
    jobs = summarize(records).jobs
    assert jobs is not None
    assert jobs["num"] == 3
    assert jobs["seconds"] == {"mean": 7.0, "p50": 6.0, "p95": pytest.approx(9.6)}
    assert "seconds a question: 7" in eval_lines("run", summarize(records))


@pytest.fixture
def make_job() -> Callable[..., Record]:
    (record,) = run(NativeGenerationController(), saying("1"), num=1)

    def make(name: str, seconds: float, ended_at: float) -> Record:
        fields = record.to_json() | {"id": name, "seconds": {"total": seconds, "ended_at": ended_at}}
        return Record.from_json(fields)

    return make
