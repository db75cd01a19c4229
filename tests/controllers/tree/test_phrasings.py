"""Branches with phrasings of their own: what they read, where a gate lets them stay, and what is refused."""

import pytest

from scaffolding_ext.controllers.base import BaseController
from scaffolding_ext.controllers.basic.native_generation import NativeGenerationController
from scaffolding_ext.controllers.tree.kv_share_branching import KVShareBranchingController
from scaffolding_ext.controllers.tree.search import SearchController
from scaffolding_ext.controllers.tree.strategies.beam import Beam
from scaffolding_ext.errors import ConfigError
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.protocol import GenerationTask, TaskStatus
from scaffolding_ext.protocol.branching import SIMILARITY_GATE, BranchTask, VerifyTask
from scaffolding_ext.protocol.lowering import lower_branch
from scaffolding_ext.protocol.meta import TokenCounts, note
from scaffolding_ext.testing import ScriptedWorker
from tests.controllers.tree.characters import Characters

PHRASINGS = ["{question}", "Well, {question}", "{question} Now!"]
HINTS = ["A", "B", "C"]
WORDS = ["<Why?>", "<Well, Why?>", "<Why? Now!>"]  # as they are rendered


class Brackets(Characters):
    """A template that is a pair of brackets."""

    def apply(self, task, history=(), raw=False):
        if not raw:
            task.input_str = f"<{task.input_str}>"
        super().apply(task)


def text(ids):
    return "".join(map(chr, ids))


class Sharer(ScriptedWorker):
    """Writes the hint behind the prompt again and again; a branch whose hint is in `stays` stays on the prompt."""

    def __init__(self, stays=""):
        super().__init__("never scripted")
        self.stays = stays

    def write(self, task):
        hint = next((letter for letter in reversed(text(task.input_tokens)) if letter in HINTS), "A")
        task.output_str = hint * task.max_tokens
        task.output_tokens, task.finish_reason = list(map(ord, task.output_str)), "length"
        note(task, counts=TokenCounts(task.max_tokens))

    async def _generate(self, task):
        self.tasks.append(task)
        self.write(task)
        return TaskStatus.SUCCESS

    async def _branch(self, task):
        self.tasks.append(task)
        gated = task.least_similarity is not None
        stays = [text(suffix)[0] in self.stays for suffix in task.suffixes] if gated else None
        pieces = lower_branch(task, stays)
        for piece in pieces:
            self.write(piece)
        task.outputs = [piece.output_str for piece in pieces]
        task.output_tokens = [piece.output_tokens for piece in pieces]
        task.finish_reasons, task.on_prefix = ["length"] * len(pieces), stays
        task.logprobs = [[-0.1] * len(piece.output_tokens) for piece in pieces]
        task.confidences = [0.9] * len(pieces)
        note(task, counts=TokenCounts(task.max_tokens * len(pieces)))
        return TaskStatus.SUCCESS

    async def _verify(self, task):
        self.tasks.append(task)
        task.scores = [0.9 - 0.1 * number for number in range(len(task.branches))]
        return TaskStatus.SUCCESS

    task_handlers = {GenerationTask: _generate, BranchTask: _branch, VerifyTask: _verify}  # noqa: RUF012


class Requests(Sharer):
    """Serves plain requests and verdicts alone."""

    task_handlers = {  # noqa: RUF012
        kind: handler for kind, handler in Sharer.task_handlers.items() if kind is not BranchTask
    }


def words(**arguments):
    """The worker as an expander, with hints and phrasings."""
    return {"type": "worker", "args": {"hints": HINTS, "phrasings": PHRASINGS, **arguments}}


def asked(worker, beginnings=None, raw=False, is_deep=False, **arguments):
    given = {"max_tokens": 4, "scorer": "verdict", "insist_on_answer": False, "expander": words(**beginnings or {})}
    if is_deep:
        controller = SearchController(Beam(3, 2, 2), steps=2, **given)
    else:
        controller = KVShareBranchingController(3, **given | arguments)
    controller.prompting = Brackets()
    with ScaffoldingLlm(controller, {"generation": worker}, seed=0) as llm:
        return llm.generate("Why?", timeout=30, raw=raw)


def of_type(worker, kind):
    return [task for task in worker.tasks if type(task) is kind]


def verified(worker, number=0):
    """The judged texts, without the question that asks for the verdict."""
    return [
        text(branch).partition(Brackets.family.verdict)[0] for branch in of_type(worker, VerifyTask)[number].branches
    ]


def test_each_branch_reads_its_own_words_and_verdicts_read_them_too():
    worker = Sharer()
    asked(worker)
    (task,) = of_type(worker, BranchTask)
    assert text(task.prefix_tokens) == "<Why?>"
    assert list(map(text, task.phrasings)) == WORDS
    assert list(map(text, task.suffixes)) == HINTS
    assert task.least_similarity is None
    assert task.temperature is None  # hints make them differ
    assert verified(worker) == ["<Why?>AAAAA", "<Well, Why?>BBBBB", "<Why? Now!>CCCCC"]


def test_a_branch_that_stays_on_the_prompt_is_judged_there():
    worker = Sharer(stays="B")
    asked(worker, {"least_similarity": 0.5})
    (task,) = of_type(worker, BranchTask)
    assert task.least_similarity == 0.5
    assert verified(worker) == ["<Why?>AAAAA", "<Why?>BBBBB", "<Why? Now!>CCCCC"]


def test_a_leader_goes_on_behind_the_words_that_it_has_read_without_another_gate():
    for stays, words in (("", WORDS[0]), ("A", WORDS[0])):
        worker = Sharer(stays=stays)
        asked(worker, {"least_similarity": 0.5}, gates={"decode_exit": {"least": 0.0, "gap": 0.0, "after": 2}})
        first, second = of_type(worker, BranchTask)
        assert (first.least_similarity, second.least_similarity) == (0.5, None)
        assert text(second.prefix_tokens + second.suffixes[0]) == f"{words}AAA"


@pytest.mark.parametrize(("stays", "first", "second"), [("", 0, 1), ("B", 0, 0)])
def test_children_stand_behind_the_words_that_their_parent_read(stays, first, second):
    worker = Sharer(stays=stays)
    asked(worker, {"least_similarity": 0.5}, is_deep=True)
    _, *children = of_type(worker, BranchTask)
    assert [text(task.prefix_tokens) for task in children] == [f"{WORDS[first]}AAA", f"{WORDS[second]}BBB"]
    assert {task.phrasings for task in children} == {task.least_similarity for task in children} == {None}
    assert [branch[:-1] for branch in verified(worker, 1)] == [f"{WORDS[first]}AAAA"] * 2 + [f"{WORDS[second]}BBBB"]


def test_phrasings_make_branches_differ_unless_a_gate_may_undo_them():
    worker = Sharer()
    asked(worker, {"hints": None})
    assert of_type(worker, BranchTask)[0].temperature is None
    worker = Sharer(stays="A")
    asked(worker, {"hints": ["A"], "least_similarity": 0.5})
    assert of_type(worker, BranchTask)[0].temperature == 0.7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"phrasings": ["no place"]}, r"phrasings\[0\].*'no place'; give a text with one \{question\}"),
        ({"phrasings": ["{question}", "{question} {question}"]}, r"phrasings\[1\]"),
        ({"phrasings": []}, "phrasings.*give a list of texts"),
        ({"phrasings": "{question}"}, "phrasings: is .* must be of type Sequence"),
        ({"phrasings": None, "least_similarity": 0.5}, "least_similarity.*requires phrasings"),
        ({"hints": ["A", ""], "least_similarity": 0.5}, "least_similarity.*requires hints, none of them empty"),
        ({"hints": None, "least_similarity": 0.5}, "least_similarity.*requires hints"),
        ({"least_similarity": 1.5}, "least_similarity.*1.5"),
        (
            {"least_similarity": 0.5, "type": "controller", "controller": NativeGenerationController()},
            "expander.args.least_similarity: controller takes no such argument",
        ),
    ],
)
def test_what_is_unusable_is_refused_by_name(arguments, message):
    arguments = dict(arguments)
    kind = arguments.pop("type", "worker")
    with pytest.raises(ConfigError, match=message):
        KVShareBranchingController(2, expander={**words(**arguments), "type": kind}, max_tokens=4)


def test_a_stack_whose_worker_compares_no_hidden_states_is_refused():
    class NoStates(Sharer):
        refused = {SIMILARITY_GATE: "it has none"}  # noqa: RUF012

    for worker, why in ((NoStates(), ": it has none"), (Requests(), "")):
        message = rf"{type(worker).__name__} cannot compare hidden states \(least_similarity\), which .* needs{why}"
        with pytest.raises(ConfigError, match=message):
            asked(worker, {"least_similarity": 0.5})
    asked(NoStates())  # phrasings alone are served


def test_a_raw_prompt_has_no_question_to_put_in_other_words():
    with pytest.raises(ConfigError, match="the prompt is raw: leave phrasings out"):
        asked(Sharer(), raw=True)


def test_only_the_requests_own_prompt_is_put_in_other_words():
    """Behind a controller that wrote some text, that text would be lost."""

    class Begun(BaseController):
        def __init__(self):
            super().__init__()
            self.inner = KVShareBranchingController(3, expander=words(), max_tokens=4, scorer="verdict")

        def run(self, task, **kwargs):
            task.input_str += "Because"
            yield from self.inner.process([task], **kwargs)

    controller = Begun()
    controller.prompting = Brackets()
    with (
        ScaffoldingLlm(controller, {"generation": Sharer()}, seed=0) as llm,
        pytest.raises(ConfigError, match="more than the request's prompt: leave phrasings out"),
    ):
        llm.generate("Why?", timeout=30)
