"""Recorded chains, played: as a controller would have done it live, and at the cost by hand."""

from __future__ import annotations

import re
from types import MappingProxyType

import numpy as np
import pytest

from benchmarks._lib.chain_replay import TOKENS_PER_BLOCK, cut_at, fixed_cuts, lacking, play
from benchmarks._lib.recorded_chains import RecordedChain, read_chains
from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.dynasor_cot import DynasorCoTController
from scaffolding_ext.controllers.chain.looking import Needs, ProbeSchedule
from scaffolding_ext.controllers.chain.probe import AnswerProbe, Probe
from scaffolding_ext.controllers.chain.record_chain import RecordChainController
from scaffolding_ext.controllers.chain.stopping.agreement import Consecutive, Window
from scaffolding_ext.controllers.chain.stopping.base import StoppingRule
from scaffolding_ext.controllers.chain.stopping.text import PatternStop
from scaffolding_ext.errors import ConfigError, DatasetError, NoOutputError
from scaffolding_ext.evaluation.run.datasets import Example
from scaffolding_ext.evaluation.run.records import record_writer
from scaffolding_ext.evaluation.run.runner import evaluate
from scaffolding_ext.host.llm import ScaffoldingLlm
from scaffolding_ext.prompts.prompting import family_named
from scaffolding_ext.protocol.notes import PROBE, purpose_of
from scaffolding_ext.testing import ScriptedWorker

FAMILY = family_named("tinylm")
QUESTION = "Question {}: "
CHAINS = ("so 1 it 2 is " * 3 + "</think> \\boxed{7}", "x" * 33 + "</think> \\boxed{9}", "y" * 200, "short \\boxed{3}")
PROBES = ("7", "9", "7", "7", "7", "9")  # by the number of tens of tokens


def respond(task):
    """The chain of the question's number, or an answer that depends on how long the chain is."""
    number, text = re.match(r"Question (\d): (.*)", task.input_str, re.DOTALL).groups()
    if purpose_of(task) != PROBE:
        return CHAINS[int(number)][len(text) :]
    suffix = next(each for each in (FAMILY.probe, FAMILY.close) if text.endswith(each))
    answer = PROBES[(len(text) - len(suffix)) // 10 % len(PROBES)]
    return f"{answer}}} hmm" if suffix == FAMILY.probe and len(text) % 7 == 0 else f"{answer}}}"


def stopping(**arguments):
    given = {"max_tokens": 150, "mode": "stream", "family": "tinylm", "max_lead": 1, "schedule": ProbeSchedule(10)}
    given |= {} if "certainty_threshold" in arguments else {"rule": "consecutive"}
    return DynasorCoTController(**(given | arguments), probe=AnswerProbe(8))


def run(controller, **options):
    worker = ScriptedWorker(respond, **options)
    samples = [Example(str(number), QUESTION.format(number), "7") for number in range(len(CHAINS))]
    with ScaffoldingLlm(controller, {"generation": worker}) as llm:
        return evaluate(llm, samples)


@pytest.fixture(scope="module")
def chains(tmp_path_factory):
    path = tmp_path_factory.mktemp("recorded") / "samples.jsonl"
    with record_writer(path) as write:
        for record in run(RecordChainController(stopping(), num_logprobs=0)):
            assert record.error is None
            write(record)
    return read_chains(path)


def test_the_whole_chain_is_recorded_with_all_looks(chains):
    first, second, third, fourth = chains
    assert [look.prefix.num_tokens for look in first.looks] == [10, 20, 30, 40]
    assert [look.prefix.text for look in second.looks] == ["x" * 10, "x" * 20, "x" * 30, "x" * 33 + "</think"]
    assert [look.answer for look in second.looks] == ["9", "7", "7", "7"]
    assert first.looks[0].answer_class == first.forced[0]
    assert second.full == second.looks[0].answer_class != second.target == second.looks[1].answer_class
    assert len(third.looks) == 14  # its budget ended it, and it was asked for its answer
    assert third.length == 150
    assert third.num_tokens == 150 + 2
    assert fourth.looks == [fourth.looks[0]]


RULES = MappingProxyType(
    {
        "two agree": (Consecutive(2), ProbeSchedule(10)),
        "two agree, late": (Consecutive(2), ProbeSchedule(20, first_probe=40)),
        "three agree, doubling": (Consecutive(3), ProbeSchedule(10, growth=2)),
        "most agree": (Window(4, 0.75), ProbeSchedule(10)),
        "never": (Consecutive(99), ProbeSchedule(20)),
        "a pattern, no probes": (PatternStop("2 is"), ProbeSchedule(10)),
    }
)


@pytest.mark.parametrize("name", RULES)
def test_a_replay_is_what_the_controller_does(chains, name):
    rule, schedule = RULES[name]
    played = play(chains, rule, schedule)
    for number, record in enumerate(run(stopping(rule=rule, schedule=schedule))):
        stop = [event for event in record.trace if event["event"] == "stop"]
        assert len(stop) == int(played.exits[number] >= 0)
        left = next(event["position"] for event in record.trace if event["event"] in ("stop", "end"))
        assert left == played.positions[number]
        assert record.correct == bool(played.right[number])
        total, vain = record.ledger["total"], record.ledger["by_purpose"].get("discarded", {"decoded": 0})
        assert total["decoded"] - vain["decoded"] == played.costs["decoded"][number]


def test_a_cut_is_asked_for_its_answer(chains):
    cut = cut_at(chains, [1, 1, -1, 1])
    assert cut.exits.tolist() == [1, 1, -1, -1]
    assert cut.positions.tolist() == [20, 20, 150, len(CHAINS[3])]
    assert cut.right.tolist() == [1, 1, 1, 0]
    assert cut.differs.tolist() == [0, 1, 0, 0]
    assert cut.costs["decoded"].tolist() == [22, 22, 152, len(CHAINS[3])]
    assert cut.costs["probes"].tolist() == [1, 1, 0, 0]
    cuts = fixed_cuts(chains)
    assert len(cuts) == 15
    assert np.array_equal(cuts[-1].costs["decoded"], [chain.num_tokens for chain in chains])


def chain_of(answers, full="7", num_prompt_tokens=50):
    looks = [
        Probe(Prefix(40 * (i + 1), "", None), answer, -1 if answer is None else int(answer))
        for i, answer in enumerate(answers)
    ]
    return RecordedChain(
        question="q",
        looks=looks,
        forced=[5] * len(looks),
        num_answer_tokens=[3] * len(looks),
        num_forced_tokens=[2] * len(looks),
        full=int(full),
        target=7,
        num_prompt_tokens=num_prompt_tokens,
        length=200,
        num_tokens=204,
        num_probe_suffix=6,
        num_close_suffix=9,
    )


def test_costs_in_three_regimes_by_hand():
    (decoded, kept, blocks, nothing, probes) = play(
        [chain_of(["1", "7", "7", "7"])], Consecutive(2), ProbeSchedule(40)
    ).costs.values()
    assert decoded == 120 + 3 * 3
    assert kept == 50 + 120 + 3 * (3 + 6)
    in_blocks = sum((50 + position) % TOKENS_PER_BLOCK for position in (40, 80, 120))
    assert blocks == kept + in_blocks
    assert nothing == kept + (50 + 40) + (50 + 80) + (50 + 120)
    assert probes == 3


class Unsure(StoppingRule):
    """Stops at the second look, with an answer that is asked for, or none."""

    needs = Needs(answer=False, entropy=2)

    def __init__(self, answer):
        self.answer = answer

    def __call__(self, probes):
        return len(probes) == 2


def with_entropies(chain):
    return chain._replace(
        looks=[look._replace(answer=None, answer_class=-1, entropy=(0.1, 0.0)) for look in chain.looks]
    )


def test_a_rule_without_probes_pays_for_what_it_reads_and_for_the_answer_that_is_asked_for():
    chains = [with_entropies(chain_of(["1", "7", "7"]))]
    asked = play(chains, Unsure("newest"), ProbeSchedule(40))
    assert asked.costs["decoded"] == 80 + 2 * 1 + 2
    assert asked.costs["kept"] == 50 + 80 + 2 * (9 + 1) + (9 + 2)
    assert asked.right == 0  # the forced answer is 5
    assert asked.lost == 1
    none = play(chains, Unsure("none"), ProbeSchedule(40))
    assert none.costs["decoded"] == 80 + 2
    assert (none.right, none.differs) == (0, 1)


def test_an_answer_that_is_a_first_token_alone_is_asked_for_as_a_whole():
    chain = chain_of(["7", "7"])
    parts = chain._replace(looks=[look._replace(is_part=True) for look in chain.looks])
    whole, part = (play([each], Consecutive(2), ProbeSchedule(40)) for each in (chain, parts))
    assert part.costs["decoded"] == whole.costs["decoded"] + 2
    assert (whole.right, part.right) == (1, 0)  # the forced answer is 5


def test_looks_that_were_not_recorded_are_refused(chains):
    with pytest.raises(
        ConfigError, match="after 15 tokens, where nothing was recorded; the recorded looks are at 10, 20"
    ):
        play(chains, Consecutive(2), ProbeSchedule(15))


def test_what_a_rule_needs_must_have_been_recorded(chains):
    with pytest.raises(
        ConfigError, match="needs the entropy behind closed thinking, and the recorded chains hold none"
    ):
        play(chains, Unsure("newest"), ProbeSchedule(10))
    assert lacking(chains, Needs(answer_logprobs=True)) == "log-probabilities of answers"
    assert lacking(chains, Needs(chain_logprobs=True)) == "log-probabilities of the chain"
    assert lacking([with_entropies(chain_of(["1"]))], Needs(entropy=2, suffix="}")) == "a suffix of its own"
    assert lacking(chains, Needs()) is None


def test_a_worker_without_log_probabilities_is_told_of():
    errors = {record.error.type for record in run(RecordChainController(stopping())) if record.error}
    assert errors == {NoOutputError.__name__}


def test_other_runs_are_no_recordings(tmp_path):
    with record_writer(tmp_path / "plain.jsonl") as write:
        for record in run(stopping()):
            write(record)
    with pytest.raises(DatasetError, match="'0' is no chain recorded by version 1"):
        read_chains(tmp_path / "plain.jsonl")


def test_only_what_stops_chains_is_recorded():
    with pytest.raises(ConfigError, match="is a Scripted"):
        RecordChainController(ScriptedWorker(""))
