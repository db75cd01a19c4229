"""Asking a chain for its answer, closing it, and concluding a request with it."""

import contextvars
from typing import ClassVar

import pytest

from scaffolding_ext.controllers.chain.chunk_chain import ChunkChain
from scaffolding_ext.controllers.chain.ending import conclude, forced_answers
from scaffolding_ext.controllers.chain.probe import asked_answer
from scaffolding_ext.controllers.chain.stream_chain import StreamChain
from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.prompts.prompting import Prompting
from scaffolding_ext.protocol import GenerationTask, Worker
from scaffolding_ext.protocol.meta import PROBE, Purpose, purpose_of
from scaffolding_ext.request.program import Program, Question, enter_program
from scaffolding_ext.testing import ScriptedWorker

FAMILY = family_named("tinylm")
PROMPT_IDS = [7, 8, 9]
TOKENIZER = Prompting.for_model("tinylm/draft")


def test_forced_answers_are_counted_by_their_cause():
    given = {"event": "force", "answer": "5", "cause": "length"}
    refused = {"event": "force", "answer": None, "cause": "length"}
    of_a_tree = {"event": "force", "paths": [[0]], "answers": ["5"]}
    own = {"event": "end", "answer": "5", "cause": "length"}
    assert forced_answers([given, own, refused, given, of_a_tree, given | {"cause": "loop"}]) == {
        "length": 2,
        "loop": 1,
    }
    assert forced_answers([refused]) == {}


@pytest.mark.parametrize(("response", "answer"), [("5} so", "5"), ("}", None), ("5", None), ("", None)])
def test_the_answer_that_was_asked_for(response, answer):
    assert asked_answer(GenerationTask(output_str=response)) == answer


@pytest.fixture
def concluded(prompt, run):
    """Finds what `conclude` writes for a chain that was grown so far (else to its end), the trace, and the ledger."""

    def find(reply, budget=100, answer="4} and", position=None, make_chain=ChunkChain, family=FAMILY, **options):
        program, task = Program(), prompt()
        worker = ScriptedWorker(lambda asked: answer if purpose_of(asked) == PROBE else reply)

        def request():
            chain = make_chain(task, budget, {})
            chain.family = family
            yield from chain.grow(budget if position is None else position)
            yield from conclude(chain, {"max_tokens": 9}, **options)

        def drive():
            enter_program(program)
            run(worker, program.meter.watch(request()))

        contextvars.copy_context().run(drive)
        fields = task.customized_result_fields
        result = (task.output_str, fields["answer"], fields["exit_reason"])
        return result, program.trace, program.ledger.by_purpose

    return find


THOUGHT = "so it is \\boxed{9}."


@pytest.mark.parametrize("make_chain", [ChunkChain, StreamChain])
@pytest.mark.parametrize(
    ("reply", "options", "output", "answer", "reason"),
    [
        (THOUGHT, {}, THOUGHT, "9", "end"),
        ("done</think>" + THOUGHT, {}, "done</think>" + THOUGHT, "9", "end"),
        ("no idea", {}, "no idea" + FAMILY.close + "4" + FAMILY.answer_end, "4", "end"),
        ("no idea", {"insist_on_answer": False}, "no idea", None, "end"),
        ("no</think> idea", {}, "no</think> idea" + FAMILY.close_closed + "4" + FAMILY.answer_end, "4", "end"),
        ("no idea", {"answer": "}"}, "no idea", None, "end"),
        (
            "no idea",
            {"answer": "4 or so\nand"},
            "no idea" + FAMILY.close + "4 or so" + FAMILY.answer_end,
            "4 or so",
            "end",
        ),
        (
            "the answer is: 3\nor not",
            {"answer": "}", "budget": 20},
            "the answer is: 3\nor " + FAMILY.close + "3" + FAMILY.answer_end,
            "3",
            "length",
        ),
        # at its budget, and left for a reason
        (THOUGHT, {"budget": 5}, THOUGHT[:5] + FAMILY.close + "4" + FAMILY.answer_end, "4", "length"),
        (THOUGHT * 2, {"budget": len(THOUGHT)}, THOUGHT + FAMILY.close + "4" + FAMILY.answer_end, "4", "length"),
        (
            THOUGHT,
            {"position": 5, "exit_reason": "bored"},
            THOUGHT[:5] + FAMILY.close + "4" + FAMILY.answer_end,
            "4",
            "bored",
        ),
        ("</think>" + THOUGHT * 2, {"position": 26, "exit_reason": "x"}, "</think>" + THOUGHT[:18], "9", "x"),
    ],
)
def test_a_chain_is_concluded_with_its_own_answer_or_one_that_is_asked_for(
    make_chain, reply, options, output, answer, reason, concluded
):
    written, trace, ledger = concluded(reply, make_chain=make_chain, **options)
    assert written == (output, answer, reason)
    events = [event["event"] for event in trace]
    asked = answer == "4" or "answer" in options
    assert events == (["end", "force"] if asked else ["end"])
    assert Purpose.DISCARDED not in ledger
    assert (Purpose.PROBE in ledger) is asked


@pytest.mark.parametrize(
    ("family", "reply", "cause"),
    [
        ("deepseek_r1", "Tokyo.", "open_thinking"),
        ("deepseek_r1", "So.</think>Tokyo.", "no_answer"),
        ("deepseek_r1", " ", "empty"),
        ("instruct", "Tokyo.", "no_answer"),  # it does not think: what it wrote is what its user reads
        ("instruct", " ", "empty"),
    ],
)
def test_the_cause_of_a_forced_answer_tells_thinking_from_what_was_said(family, reply, cause, concluded):
    _, trace, _ = concluded(reply, family=family_named(family))
    assert forced_answers(trace) == {cause: 1}


@pytest.mark.parametrize(("answer", "is_closed"), [("4} and", True), ("4 and", False), ("}", False)])
def test_the_trace_says_whether_the_model_closed_the_box_of_its_forced_answer(answer, is_closed, concluded):
    _, trace, _ = concluded("no idea", answer=answer)
    assert trace[-1]["closed"] is is_closed


def test_the_token_that_ended_a_chain_is_not_read_again_when_it_is_asked(prompt, run):
    """Some engines hand over the token that ends a text; behind it a model would begin another text."""
    program, sent = Program(), []
    end_id = TOKENIZER.encode("<|end|>")[-1]
    ids = TOKENIZER.encode("no idea")

    class Ending(Worker):
        async def _generate(self, task):
            sent.append(task)
            probing = purpose_of(task) == PROBE
            task.output_tokens = TOKENIZER.encode("4}") if probing else [*ids, end_id]
            task.output_str = "4}" if probing else "no idea"
            task.finish_reason = "stop"

        task_handlers: ClassVar = {GenerationTask: _generate}

    task = prompt()

    def request():
        chain = ChunkChain(task, 100, {})
        chain.family = FAMILY
        yield from chain.grow(100)
        yield from conclude(chain, {"max_tokens": 9})

    def drive():
        program.question = Question(prompting=TOKENIZER, raw=True)
        enter_program(program)
        run(Ending(), program.meter.watch(request()))

    contextvars.copy_context().run(drive)
    close = TOKENIZER.encode(FAMILY.close)
    assert sent[1].input_tokens == PROMPT_IDS + ids + close
    ending = FAMILY.close + "4" + FAMILY.answer_end
    assert task.output_str == "no idea" + ending
    assert task.output_tokens == ids + TOKENIZER.encode(ending)
    assert program.ledger.by_purpose[Purpose.DISCARDED].decoded == 1


@pytest.mark.parametrize("make_chain", [ChunkChain, StreamChain])
def test_an_answer_within_the_thinking_alone_is_asked_for_again(make_chain, concluded):
    reply = THOUGHT + "</think> No idea"
    written, trace, _ = concluded(reply, make_chain=make_chain)
    assert written == (reply + FAMILY.close_closed + "4" + FAMILY.answer_end, "4", "end")
    assert [(event["event"], event["answer"]) for event in trace] == [("end", None), ("force", "4")]
