"""The ends of a chain that Dynasor-CoT watches: its output, its answer, and what is counted as discarded."""

from typing import ClassVar

import pytest

from scaffolding_ext.prompts.families import family_named
from scaffolding_ext.protocol import StreamGenerationTask
from scaffolding_ext.protocol.meta import PROBE, Purpose, purpose_of
from scaffolding_ext.testing import ScriptedWorker

FAMILY = family_named("tinylm")
PROMPT = "Question: "
ENDLESS = "thinking on and on " * 100
NATURAL = "some thinking, then</think>\nThe answer is \\boxed{9}."


@pytest.mark.parametrize("probes", [[], ["1}", "2}"], ["8}", "8}"]])
def test_a_chain_that_ends_by_itself_keeps_its_own_answer(mode, probes, ask, dynasor, events, positions):
    result, worker = ask(dynasor(mode, certainty_threshold=3), NATURAL, probes)
    assert result.outputs[0].text == NATURAL
    assert (result.answer, result.exit_reason) == ("9", "end")
    assert result.outputs[0].token_ids == [ord(c) for c in NATURAL]
    assert events(result, "force") == []
    assert max(positions(result)) < NATURAL.index("</think>") + len("</think>")  # the answer itself is not probed
    assert len([task for task in worker.tasks if purpose_of(task) == PROBE]) == len(positions(result))


@pytest.mark.parametrize(("mode", "reason"), [("stream", "certain"), ("chunk", "end"), ("chunk_in_turn", "certain")])
def test_a_chain_that_has_ended_beside_its_last_probe_keeps_its_own_answer(mode, reason, ask, dynasor):
    result, _ = ask(dynasor(mode, certainty_threshold=1), "0123456789" + NATURAL[-8:], ["8}"])
    assert result.exit_reason == reason
    assert (result.outputs[0].text == "0123456789" + NATURAL[-8:]) is (reason == "end")


def test_the_end_of_thinking_is_seen_across_pieces(mode, ask, dynasor, positions):
    chain = "1234567</think>" + "x" * 30 + "\\boxed{3}"
    result, _ = ask(dynasor(mode, certainty_threshold=9), chain, [])
    assert positions(result) == [10]  # at 10 the marker is cut in two; at 20 it is whole
    assert (result.outputs[0].text, result.answer) == (chain, "3")


def test_at_the_end_of_the_budget_an_answer_is_forced_out_of_open_thinking(
    mode, ask, dynasor, events, positions, closed
):
    result, worker = ask(dynasor(mode, max_tokens=35), ENDLESS, ["1}", "2}", "3}", "4} and"])
    assert positions(result) == [10, 20, 30]
    assert result.outputs[0].text == closed(ENDLESS[:35], "4")
    assert (result.answer, result.exit_reason) == ("4", "length")
    (force,) = events(result, "force")
    assert (force["position"], force["answer"]) == (35, "4")
    assert worker.tasks[-1].input_str == PROMPT + ENDLESS[:35] + FAMILY.close


@pytest.mark.parametrize("cut", [21, 38, 45])
def test_at_the_end_of_the_budget_a_closed_chain_is_not_closed_again(mode, cut, ask, dynasor):
    chain = "0123456789ab</think>\nThe answer is \\boxed{123456789}."
    result, worker = ask(dynasor(mode, max_tokens=cut), chain, ["1}", "123456789}"])
    assert result.outputs[0].text == chain[:cut] + FAMILY.close_closed + "123456789" + FAMILY.answer_end
    assert result.outputs[0].text.count("</think>") == 1
    assert (result.answer, result.exit_reason) == ("123456789", "length")
    assert worker.tasks[-1].input_str == PROMPT + chain[:cut] + FAMILY.close_closed


def test_at_the_end_of_the_budget_a_given_answer_stays(mode, ask, dynasor, events):
    chain = "0123456789ab</think>\nThe answer is \\boxed{7}. And " + ENDLESS
    result, _ = ask(dynasor(mode, max_tokens=60), chain, [])
    assert (result.outputs[0].text, result.answer, result.exit_reason) == (chain[:60], "7", "length")
    assert events(result, "force") == []


def test_where_even_force_gives_no_answer_there_is_none(mode, ask, dynasor, events):
    result, _ = ask(dynasor(mode, max_tokens=35), ENDLESS, [])
    assert (result.outputs[0].text, result.answer, result.exit_reason) == (ENDLESS[:35], None, "length")
    assert events(result, "force")[0]["answer"] is None


@pytest.mark.parametrize(("mode", "num_discarded"), [("stream", 0), ("chunk", 10), ("chunk_in_turn", 0)])
def test_what_an_exit_discards_is_counted(mode, num_discarded, ask, dynasor):
    result, worker = ask(dynasor(mode, certainty_threshold=3), ENDLESS, ["5}"] * 3)
    ledger = result.program.ledger.by_purpose
    assert ledger[Purpose.CHAIN].decoded == 30
    assert ledger[Purpose.PROBE].decoded == 6  # "5}" three times
    assert (ledger[Purpose.DISCARDED].decoded if num_discarded else 0) == num_discarded
    assert result.program.ledger.total.decoded == sum(len(task.output_tokens) for task in worker.tasks)


def test_what_a_stream_had_in_flight_is_discarded(ask, dynasor, closed):
    class Ahead(ScriptedWorker):
        """Has generated four more tokens when it is told to stop."""

        async def _stream(self, task):
            if task.cancel_flag:
                task.cancel_flag, task.streaming_step = False, 4
                await ScriptedWorker.task_handlers[StreamGenerationTask](self, task)
                task.cancel_flag = True
            return await ScriptedWorker.task_handlers[StreamGenerationTask](self, task)

        task_handlers: ClassVar = ScriptedWorker.task_handlers | {StreamGenerationTask: _stream}

    result, _ = ask(dynasor("stream", certainty_threshold=2), ENDLESS, ["5}"] * 2, Ahead)
    assert result.program.ledger.by_purpose[Purpose.DISCARDED].decoded == 4
    assert result.outputs[0].text == closed(ENDLESS[:20], "5")
    assert len(result.outputs[0].token_ids or [0] * 20) == 20
