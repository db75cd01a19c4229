"""The latency model: by hand, fitted to timings, and beside what the authors' probe printed."""

import math

import numpy as np
import pytest

from scaffolding_ext.controllers.tree.sharing_cost import (
    LatencyModel,
    Pass,
    Workload,
    net_saving,
    shared_seconds,
    unshared_seconds,
)
from scaffolding_ext.protocol.branching import break_even_branches

# What the probe of the released notebook prints (one A100, Qwen2.5-7B, B = 8), in ms: tokens of the prefix, the batch
# that reads everything, the prefix once, the suffixes behind it, and the net saving.
PROBES = [
    (1025, 582.6, 88.6, 39.4, 454.6),
    (1025, 581.5, 88.5, 39.5, 453.5),
    (1033, 583.3, 88.8, 40.0, 454.6),
    (1034, 582.4, 88.7, 39.9, 453.9),
    (1034, 581.4, 88.7, 40.0, 452.8),
    (1038, 587.4, 89.5, 39.8, 458.1),
    (1038, 585.5, 89.6, 39.9, 456.0),
    (1039, 588.6, 89.6, 39.8, 459.2),
    (1039, 586.2, 88.9, 39.9, 457.4),
]


@pytest.mark.parametrize(("prefix_len", "whole", "prefix", "suffixes", "printed"), PROBES)
def test_net_saving_is_what_the_authors_print(prefix_len, whole, prefix, suffixes, printed):
    assert net_saving(whole, prefix, suffixes) == pytest.approx(printed, abs=0.15)  # three rounded figures


def test_the_break_even_is_what_the_authors_print():
    assert break_even_branches(whole=95.0, prefix=88.8, suffix=40.0) == pytest.approx(1.6, abs=0.05)
    assert break_even_branches(whole=40.0, prefix=88.8, suffix=40.0) == math.inf


def test_a_pass_is_its_tokens_and_its_pairs():
    assert Pass(2, 3).size == (1, 6, 2 * (1 + 2 + 3))
    assert Pass(2, 3, num_cached=10).size == (1, 6, 2 * (11 + 12 + 13))
    assert LatencyModel(1.0, 0.1, 0.01).seconds(Pass(2, 3), Pass(1, 1, 9)) == pytest.approx(2 + 0.7 + 0.22)


def test_seconds_of_a_workload_by_hand():
    work = Workload(num_branches=2, prefix_len=10, suffix_len=2, num_decoded=3, verdict_len=4)
    tokens = LatencyModel(0.0, 1.0, 0.0)
    assert unshared_seconds(tokens, work) == 2 * 12 + 2 * 3 + 2 * 19
    assert shared_seconds(tokens, work) == 10 + 2 * 2 + 2 * 3 + 2 * 4
    assert shared_seconds(tokens, work, keeps_kv=False) == 10 + 2 * 2 + 2 * 3 + 2 * 19
    assert shared_seconds(tokens, work, skip_rate=0.5, depth=0.75) == 10 + 2 * 2 + 2 * 3 + 3
    pairs = LatencyModel(0.0, 0.0, 1.0)
    prefix, suffix = 10 * 11 / 2, 2 * (11 + 12)
    assert shared_seconds(pairs, work, skip_rate=1.0) == prefix + suffix + 2 * (13 + 14 + 15)


def test_sharing_pays_from_the_break_even_on():
    model = LatencyModel(0.002, 2e-4, 3e-8)
    whole, prefix, suffix = (model.seconds(each) for each in (Pass(1, 520), Pass(1, 512), Pass(1, 8, 512)))
    least = break_even_branches(whole, prefix, suffix)
    for num_branches in range(1, 6):  # branches one after the other, as in the equation
        saved = net_saving(num_branches * whole, prefix, num_branches * suffix)
        assert (saved > 0) == (num_branches > least)


def test_constants_come_back_from_timings():
    model = LatencyModel(0.004, 3e-5, 2e-9)
    passes = [Pass(rows, new, old) for rows in (1, 8) for new in (1, 64, 512) for old in (0, 256, 1024)]
    rng = np.random.default_rng(0)
    exact = [model.seconds(each) for each in passes]
    assert LatencyModel.fit(passes, exact) == pytest.approx(model)
    noisy = LatencyModel.fit(passes, exact * rng.lognormal(0, 0.03, len(exact)))
    assert noisy == pytest.approx(model, rel=0.15)


def test_timings_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="2 passes and 2 timings"):
        LatencyModel.fit([Pass(1, 1), Pass(1, 2)], [0.1, 0.2])
    with pytest.raises(ValueError, match=r"seconds\[2\]: is 0.0"):
        LatencyModel.fit([Pass(1, 1), Pass(1, 2), Pass(1, 3)], [0.1, 0.2, 0.0])
    with pytest.raises(ValueError, match="skip_rate"):
        shared_seconds(LatencyModel(1.0, 0.0, 0.0), Workload(1, 1, 1, 1, 1), skip_rate=1.1)
