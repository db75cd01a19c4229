"""Branches on one prefix: what is asked of workers, what is spared, who wins, and how they stack."""

import asyncio
import math
import warnings

import pytest

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.calibration_file import CalibrationWarning
from scaffolding_ext.controllers.tree.calibration_file import BranchingCalibration, BranchingFigures
from scaffolding_ext.controllers.tree.gates.confidence import ConfidenceGate, DecodeExit, Gates
from scaffolding_ext.controllers.tree.kv_share_branching import KVShareBranchingController
from scaffolding_ext.controllers.tree.score import VerdictScorer
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.tree.strategies.beam import Beam
from scaffolding_ext.controllers.vote.majority_vote import MajorityVoteController
from scaffolding_ext.errors import ConfigError, NoOutputError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask, TaskStatus
from scaffolding_ext.protocol.branching import LAYER_EXIT, BranchTask, LayerExit, VerifyTask
from scaffolding_ext.protocol.lowering import lower_branch, write_back_branch
from scaffolding_ext.protocol.meta import Purpose, TokenCounts, note, token_counts_of
from scaffolding_ext.protocol.task_results import TokenLogprob
from scaffolding_ext.request.program import Lifetime
from scaffolding_ext.testing import ScriptedWorker
from tests.controllers.tree.characters import END, Characters


class Writer(ScriptedWorker):
    """Writes a text behind each prompt, as sure of it as is said, and judges texts.

    Args:
        texts: By how what stands behind the prompt begins: the whole text, and the probability of each token.
        verdicts: P(yes) by a text that the branch contains.
    """

    def __init__(self, texts, verdicts=None):
        super().__init__("never scripted")
        self.texts, self.verdicts = texts, verdicts or {}

    def _serve(self, task):
        text = "".join(map(chr, task.input_tokens)).partition("?")[2]
        whole, probability = next(
            (whole, p) for begin, (whole, p) in self.texts.items() if whole.startswith(text) and text.startswith(begin)
        )
        ids = [*map(ord, whole[len(text) :]), END][: task.max_tokens]
        task.output_tokens, task.output_str = ids, "".join(chr(i) for i in ids if i != END)
        task.finish_reason = "stop" if ids[-1] == END else "length"
        if task.num_logprobs:
            task.logprobs = [{token: TokenLogprob(math.log(probability))} for token in ids]
        note(task, counts=TokenCounts(len(ids), len(task.input_tokens)))

    async def _generate(self, task):
        self.tasks.append(task)
        self._serve(task)
        return TaskStatus.SUCCESS

    async def _verify(self, task):
        self.tasks.append(task)
        texts = ["".join(map(chr, branch)) for branch in task.branches]
        task.scores = [next(p for part, p in self.verdicts.items() if part in text) for text in texts]
        task.exit_layers = None if task.layer_exit is None else [3] * len(texts)
        note(task, counts=TokenCounts(0, sum(map(len, task.branches))))
        return TaskStatus.SUCCESS

    task_handlers = {GenerationTask: _generate, VerifyTask: _verify}  # noqa: RUF012


class Sharer(Writer):
    """Serves BranchTask, too."""

    async def _branch(self, task):
        self.tasks.append(task)
        pieces = lower_branch(task)
        for piece in pieces:
            self._serve(piece)
        write_back_branch(task, pieces)
        total = TokenCounts(*map(sum, zip(*map(token_counts_of, pieces), strict=True)))
        note(task, counts=total)
        return TaskStatus.SUCCESS

    task_handlers = {**Writer.task_handlers, BranchTask: _branch}  # noqa: RUF012


TEXTS = {
    "A": (r"A so it is \boxed{1}", 0.8),
    "B": (r"B hence it must be \boxed{2}", 0.5),
    "C": (r"C thus \boxed{3}", 0.6),
}
VERDICTS = {"boxed{1}": 0.5, "boxed{2}": 0.7, "boxed{3}": 0.4}
HINTS = ["A", "B", "C"]


def worker_with(**arguments):
    return {"type": "worker", "args": arguments}


def verdict(**arguments):
    return {"type": "verdict", "args": arguments}


def written_by(controller, **arguments):
    return {"type": "controller", "args": {"controller": controller, **arguments}}


def answer(worker, prompt="What?", controller=None, **arguments):
    controller = controller or KVShareBranchingController(
        3, **{"expander": worker_with(hints=HINTS), "scorer": "verdict", "insist_on_answer": False, **arguments}
    )
    controller.prompting = Characters()
    with ScaffoldingLlm(controller, {"generation": worker}, seed=0) as llm:
        return llm.generate(prompt, timeout=30)


def of_type(worker, kind):
    return [task for task in worker.tasks if type(task) is kind]


def test_one_task_writes_all_branches_on_one_prefix_and_another_judges_them(events):
    worker = Sharer(TEXTS, VERDICTS)
    result = answer(worker)
    (branches,), (verdicts,) = of_type(worker, BranchTask), of_type(worker, VerifyTask)
    assert "".join(map(chr, branches.prefix_tokens)) == "What?"
    assert ["".join(map(chr, suffix)) for suffix in branches.suffixes] == HINTS
    assert len(set(branches.seeds)) == 3
    assert branches.temperature is None  # the hints differ: nobody has to
    question = Characters.family.verdict
    assert Characters().decode(verdicts.branches[2]) == rf"What?C thus \boxed{{3}}{question}"
    assert END not in verdicts.branches[2]
    # 0.5 * sqrt(0.8) is 0.447, 0.7 * sqrt(0.5) is 0.495, 0.4 * sqrt(0.6) is 0.310
    assert events(result, "select")[0]["values"] == pytest.approx([0.4472, 0.4950, 0.3098], abs=1e-4)
    assert (result.outputs[0].answer, result.outputs[0].text) == ("2", TEXTS["B"][0])
    assert result.outputs[0].exit_reason == "end"
    by_purpose = result.program.ledger.by_purpose
    assert by_purpose[Purpose.CHAIN].decoded == sum(len(text) for text, _ in TEXTS.values())  # - hint + end
    assert by_purpose[Purpose.VERIFY].prefilled == sum(map(len, verdicts.branches))


def test_verdicts_that_the_deadline_cut_are_said(monkeypatch):
    class Hung(Sharer):
        async def _verify(self, task):
            await asyncio.get_running_loop().create_future()

        task_handlers = {**Sharer.task_handlers, VerifyTask: _verify}  # noqa: RUF012

    worker = Hung(TEXTS)
    monkeypatch.setattr(Lifetime, "left", property(lambda _: 0.2 if worker.tasks else 1000.0))
    result = answer(worker)
    assert (result.outputs[0].answer, result.outputs[0].exit_reason) == ("1", "deadline")


def test_lowered_branches_are_the_same(events):
    shared, lowered = answer(Sharer(TEXTS, VERDICTS)), answer(Writer(TEXTS, VERDICTS))
    assert events(lowered, "fallback") == [
        {"event": "fallback", "branch": [], "task": "BranchTask", "to": "GenerationTask"}
        | {"reason": "the worker does not serve it"}
    ]
    assert events(shared, "branches", "verify", "select") == events(lowered, "branches", "verify", "select")
    assert shared.outputs[0].text == lowered.outputs[0].text


def test_without_its_confidence_a_score_counts_alone(events):
    result = answer(Sharer(TEXTS, VERDICTS | {"boxed{1}": 0.69}), scorer=verdict(weighs_confidence=False))
    assert result.outputs[0].answer == "2"
    result = answer(Sharer(TEXTS, VERDICTS | {"boxed{1}": 0.69}))
    assert result.outputs[0].answer == "1"


def test_a_gate_spares_the_verdicts_where_one_branch_leads(events):
    worker = Sharer(TEXTS, VERDICTS)
    result = answer(worker, gates={"skip": {"least": 0.7, "gap": 0.2}})
    assert not of_type(worker, VerifyTask)
    assert result.outputs[0].answer == "1"
    (skip,) = events(result, "skip")
    assert (skip["leader"], skip["confidences"]) == (0, pytest.approx([0.8, 0.5, 0.6]))
    worker = Sharer(TEXTS, VERDICTS)
    assert answer(worker, gates={"skip": {"least": 0.7, "gap": 0.3}}).outputs[0].answer == "2"
    assert len(of_type(worker, VerifyTask)) == 1


def test_a_decode_exit_ends_the_losers_and_lets_the_winner_finish(events):
    worker = Sharer(TEXTS, VERDICTS)
    result = answer(worker, gates={"decode_exit": {"least": 0.7, "gap": 0.2, "after": 4}})
    first, second = of_type(worker, BranchTask)
    assert (first.max_tokens, len(first.suffixes)) == (4, 3)
    assert "".join(map(chr, second.suffixes[0])) == "A so "
    assert len(second.suffixes) == 1
    assert second.seeds == first.seeds[:1]  # it goes on as if nobody had looked
    assert not of_type(worker, VerifyTask)  # there is no choice left
    assert result.outputs[0].text == TEXTS["A"][0]
    assert result.program.ledger.by_purpose[Purpose.DISCARDED].decoded == 8
    worker = Sharer(TEXTS, VERDICTS)
    undecided = answer(worker, gates=Gates(decode_exit=DecodeExit(least=0.9, after=4)))
    assert undecided.outputs[0].text == answer(Sharer(TEXTS, VERDICTS)).outputs[0].text
    assert undecided.program.ledger.by_purpose.get(Purpose.DISCARDED, TokenCounts()).decoded == 0


class Forked(Sharer):
    """Draws: children of one branch go different ways, by their seeds."""

    def _serve(self, task):
        text = "".join(map(chr, task.input_tokens)).partition("?")[2]
        draws = {len(text): []} if not hasattr(self, "draws") else self.draws
        seeds = draws.setdefault(len(text), [])
        seeds.append(task.seed)
        self.draws = draws
        letter = "abcdefgh"[len(seeds) - 1]
        self.texts = {text: (text + letter * 4 if len(text) < 4 else rf"{text}{letter}\boxed{{{letter}}}", 0.5)}
        super()._serve(task)


def test_beyond_depth_one_the_best_go_on(events):
    worker = Forked({}, {"c\\boxed": 0.9, "d\\boxed": 0.8, "boxed": 0.6, "aaaa": 0.3, "bbbb": 0.7, "": 0.5})
    result = answer(worker, controller=SearchController(Beam(4, 2, 2), verdict(weighs_confidence=True), steps=4))
    first, *second = of_type(worker, BranchTask)
    assert (first.depth, first.max_tokens, first.branch_scores, first.temperature) == (1, 4, [1.0] * 4, 0.7)
    assert [Characters().decode(task.prefix_tokens) for task in second] == ["What?bbbb", "What?cccc"]
    assert [task.branch_scores for task in second] == [[0.7, 0.7], [0.5, 0.5]]
    assert [(task.depth, len(task.suffixes)) for task in second] == [(2, 2), (2, 2)]
    assert [task.depth for task in of_type(worker, VerifyTask)] == [1, 2]
    assert result.outputs[0].text == r"ccccc\boxed{c}"
    assert [each["kept"] for each in events(result, "select")] == [[(1,), (2,)], [(2, 0)]]
    assert len({seed for seeds in worker.draws.values() for seed in seeds}) == 8


def test_a_branch_that_has_ended_stays_in_the_running():
    worker = Sharer(TEXTS, VERDICTS | {"boxed{3}": 0.95, "A so": 0.9, "B hence": 0.2})
    given = {"expander": worker_with(hints=HINTS), "insist_on_answer": False, "sampling_params": {"temperature": 1.0}}
    controller = SearchController(Beam(3, 2, 2), verdict(weighs_confidence=True), steps=16, **given)
    result = answer(worker, controller=controller)
    second = of_type(worker, BranchTask)[1]
    assert Characters().decode(second.prefix_tokens) == r"What?A so it is \boxed"
    assert len(second.suffixes) == 3  # all that may run at once
    assert result.outputs[0].answer == "3"  # which had ended at the first level


def test_the_probabilities_of_its_tokens_score_a_branch_for_nothing():
    worker = Sharer(TEXTS)
    result = answer(worker, scorer="mean_logprob")
    assert [type(task) for task in worker.tasks] == [BranchTask]
    assert result.outputs[0].answer == "1"


def test_branches_vote_unless_the_best_is_asked_for():
    """Two of three agree; the third is the one that its verdict likes most."""
    texts = {"A": (r"A so \boxed{3}", 0.5), "B": (r"B hence \boxed{4}", 0.5), "C": (r"C well \boxed{3}", 0.5)}
    verdicts = {"boxed{4}": 0.9, "boxed{3}": 0.6}
    assert answer(Sharer(texts, verdicts)).outputs[0].answer == "3"
    assert answer(Sharer(texts, verdicts), selector="best").outputs[0].answer == "4"


class Longest(BaseController):
    """Scores a text by its length."""

    scores = None

    def process(self, tasks, **kwargs):
        self.scores = [len(task.output_str) for task in tasks]
        yield []


def test_a_reward_controller_may_score():
    worker = Sharer(TEXTS)
    result = answer(worker, scorer=Longest())
    assert result.outputs[0].answer == "2"
    assert not of_type(worker, VerifyTask)


def test_any_controller_writes_branches_and_a_vote_stands_over_them(events):
    def inner():
        return KVShareBranchingController(
            3, expander=written_by(NativeGenerationController(), hints=HINTS), insist_on_answer=False
        )

    worker = Sharer(TEXTS)
    assert answer(worker, controller=inner()).outputs[0].text == TEXTS["A"][0]
    assert [type(task) for task in worker.tasks] == [GenerationTask] * 3
    vote = MajorityVoteController(inner(), 2, allocation=None)
    result = answer(Sharer(TEXTS), controller=vote)
    assert result.outputs[0].answer == "1"
    assert events(result, "vote")[0]["answers"] == ["1", "1"]
    votes = MajorityVoteController(NativeGenerationController(), 2, allocation=None)
    over_votes = KVShareBranchingController(
        3, expander=written_by(votes, hints=HINTS), scorer=Longest(), insist_on_answer=False
    )
    assert answer(Sharer(TEXTS), controller=over_votes).outputs[0].answer == "2"


def test_fields_that_a_branch_task_lacks_are_asked_for_plainly(events):
    worker = Sharer(TEXTS, VERDICTS)
    result = answer(worker, sampling_params={"frequency_penalty": 0.5, "top_k": 5})
    assert {task.frequency_penalty for task in of_type(worker, GenerationTask)} == {0.5}
    assert [each["reason"] for each in events(result, "fallback")] == ["it has no field for frequency_penalty"]
    worker = Sharer(TEXTS, VERDICTS)
    answer(worker, sampling_params={"stop": "must"})
    assert [task.stop for task in of_type(worker, BranchTask)] == [["must"]]


def test_a_layer_exit_reaches_the_worker_or_the_stack_is_refused(events):
    rule = LayerExit(1.5, 0.25)
    worker = Sharer(TEXTS, VERDICTS)
    result = answer(worker, scorer=verdict(layer_exit={"max_entropy": 1.5, "max_change": 0.25}))
    assert of_type(worker, VerifyTask)[0].layer_exit == rule
    assert events(result, "verify")[0]["exit_layers"] == [3, 3, 3]

    class LastLayer(Sharer):
        refused = {LAYER_EXIT: "it reads the last layer"}  # noqa: RUF012

    with pytest.raises(ConfigError, match=r"LastLayer cannot stop at a layer \(layer_exit\).*it reads the last layer"):
        answer(LastLayer(TEXTS, VERDICTS), scorer=verdict(layer_exit=rule))
    with pytest.raises(ConfigError, match="the paper's median rule, which needs a calibration of this model"):
        answer(Sharer(TEXTS, VERDICTS), scorer=verdict(layer_exit=True))
    with pytest.raises(ConfigError, match="ScriptedWorker cannot stop at a layer"):
        answer(ScriptedWorker("no verdicts"), scorer=verdict(layer_exit=rule))
    assert answer(LastLayer(TEXTS, VERDICTS), scorer=verdict(layer_exit=False)).outputs[0].answer == "2"


def calibration(**fields):
    figures = BranchingFigures(
        num_problems=30,
        skip_rate=0.5,
        skip_agreement=1.0,
        exit_agreement=1.0,
        exit_share=0.4,
        depth=0.8,
        median_agreement=0.9,
        median_depth=0.5,
    )
    known = {"model": "ours", "data": "some", "branching_factor": 3, "seed": 0, "least_agreement": 0.99}
    known |= {"skip_gate": ConfidenceGate(0.75, 0.2), "layer_exit": LayerExit(2.0, 0.5, 4), "figures": figures}
    known |= {"median_exit": LayerExit(1.25, 3.0)}
    return BranchingCalibration(**known | fields)


def test_a_calibration_sets_gates_and_what_is_given_goes_before_it(tmp_path):
    path = tmp_path / "branching.yaml"
    calibration().save(path)
    assert BranchingCalibration.load(path) == calibration()

    def gates_of(**arguments):
        controller = KVShareBranchingController(calibration=path, **arguments)
        scorer = getattr(controller.scorer, "scorer", controller.scorer)
        return controller.gates.skip, getattr(scorer, "layer_exit", None)

    known = ConfidenceGate(0.75, 0.2), LayerExit(2.0, 0.5, 4)
    assert gates_of(scorer="verdict") == gates_of(scorer=verdict(question="Right?"), gates={"skip": None}) == known
    assert gates_of(scorer=VerdictScorer()) == known
    assert gates_of(scorer=verdict(layer_exit=False), gates={"skip": {"least": 0.9}}) == (ConfidenceGate(0.9), None)
    assert gates_of(scorer="verdict", gates={"skip": False}) == (None, known[1])
    assert gates_of(scorer=verdict(layer_exit=LayerExit(1.0, 1.0))) == (known[0], LayerExit(1.0, 1.0))
    assert gates_of(scorer=verdict(layer_exit=True)) == (known[0], LayerExit(1.25, 3.0))
    assert gates_of(scorer="mean_logprob") == gates_of(scorer=Longest()) == (None, None)
    worker = Sharer(TEXTS, VERDICTS)
    worker.model = "theirs"
    with pytest.warns(CalibrationWarning, match="'ours' and is used with 'theirs'"):
        assert KVShareBranchingController(calibration=path).bind({"generation": worker}) is None
    worker.model = "ours"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KVShareBranchingController(calibration=path).bind({"generation": worker})


@pytest.mark.parametrize(
    ("arguments", "key", "message"),
    [
        (
            {"expander": worker_with(hints="poetry")},
            "expander.args.hints",
            "choose one of science, mathematics, choice",
        ),
        (
            {"expander": worker_with(hints="science", hints_file="nowhere.json")},
            "expander.args.hints_file",
            "nowhere.json",
        ),
        ({"gates": {"skip": {"most": 2}}}, "gates.skip", "give a mapping of its arguments"),
        ({"gates": {"decode_exit": {"after": 0}}}, "gates.decode_exit.after", "at least 1"),
        ({"scorer": "mean_logprob", "gates": {"skip": True}}, "gates.skip", "needs none"),
        ({"gates": {"layer_exit": False}}, "gates", "layer_exit is an argument of the scorer verdict"),
        (
            {"scorer": verdict(layer_exit={"min_layer": 2})},
            "scorer.args.layer_exit",
            "give a mapping of its arguments",
        ),
        (
            {"gates": {"decode_exit": True}, "expander": Longest()},
            "gates.decode_exit",
            "the expander writes whole branches",
        ),
        ({"sampling_params": {"top_p": 0.9}, "expander": Longest()}, "sampling_params", "set them there"),
    ],
)
def test_what_cannot_be_is_refused_by_name(arguments, key, message):
    with pytest.raises(ConfigError, match=message) as refused:
        KVShareBranchingController(**arguments)
    assert str(refused.value).startswith(key)


def test_hints_come_from_a_file_by_domain(tmp_path):
    path = tmp_path / "hints.json"
    path.write_text('{"law": ["Let me read the statute. "]}')
    law = worker_with(hints="law", hints_file=path)
    assert KVShareBranchingController(expander=law).expander.hints == ("Let me read the statute. ",)
    science = worker_with(hints="science")
    assert len(KVShareBranchingController(expander=science, sampling_params={"temperature": 0}).expander.hints) == 8
    path.write_text("[]")
    with pytest.raises(ConfigError, match="no object of domains"):
        KVShareBranchingController(expander=law)


def test_a_worker_without_log_probabilities_is_told_from_one_that_is_unsure():
    class Silent(Writer):
        def _serve(self, task):
            super()._serve(task)
            task.logprobs = None

    with pytest.raises(NoOutputError, match="reported no log-probabilities"):
        answer(Silent(TEXTS, VERDICTS))
    assert answer(Silent(TEXTS, VERDICTS), scorer=verdict(weighs_confidence=False)).outputs[0].answer == "2"


def test_verdicts_need_a_tokenizer():
    async def ask():
        controller = KVShareBranchingController(2, scorer="verdict")
        with ScaffoldingLlm(controller, {"generation": Texts("so \\boxed{1}")}) as llm:
            return await llm.generate_async("What?")

    class Texts(ScriptedWorker):
        async def _generate(self, task):
            status = await super()._generate(task)
            task.logprobs = [{token: TokenLogprob(-0.1)} for token in task.output_tokens]
            return status

        task_handlers = {GenerationTask: _generate}  # noqa: RUF012

    with pytest.raises(ConfigError, match="set the stack's prompting"):
        asyncio.run(ask())
