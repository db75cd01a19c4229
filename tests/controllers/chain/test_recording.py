"""Looks as JSON: what is read back is what was seen, and a rule decides on it as it did."""

from __future__ import annotations

import json

import pytest

from scaffolding_ext.controllers.chain.chain import Prefix
from scaffolding_ext.controllers.chain.probe import Probe, probes_of, row_of
from scaffolding_ext.protocol.task_results import TokenLogprob

TEXT = "so the total is 9."


def steps(num):
    return [{index: TokenLogprob(-0.5 * index), 99: TokenLogprob(-0.25)} for index in range(num)]


def looks(ids=True, logprobs=True):
    def prefix(num):
        return Prefix(num, TEXT[:num], list(range(num)) if ids else None, steps(num) if logprobs else None)

    return [
        Probe(prefix(5), None, -1, True, "wait"),
        Probe(prefix(12), "9", 0, False, "9} </think>", answer_logprobs=(-0.1, -0.2), closes=True),
        Probe(prefix(13), "9", 0, False, "9"),
        Probe(prefix(18), "9", 0),
    ]


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("logprobs", [True, False])
def test_looks_are_read_back_as_they_were(ids, logprobs):
    seen = looks(ids, logprobs)
    rows = [row_of(seen[: number + 1]) for number in range(len(seen))]
    assert probes_of(json.loads(json.dumps(rows))) == seen
    assert probes_of(rows[:2]) == seen[:2]


def test_a_row_holds_what_is_new():
    row = row_of(looks()[:2])
    assert (row["position"], row["text"], row["token_ids"]) == (12, TEXT[5:12], list(range(5, 12)))
    assert row["logprobs"][0] == [[5, -2.5], [99, -0.25]]
    assert len(row["logprobs"]) == 7
