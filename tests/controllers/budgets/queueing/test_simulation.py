"""Simulated queues against closed forms, against each other, and against simpy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from scaffolding_ext.controllers.budgets.queueing.model import Moments, pollaczek_khinchine
from scaffolding_ext.controllers.budgets.queueing.simulation import (
    serve_by_servers,
    serve_in_batch,
    simulate_fifo,
    summarized,
    waiting_times,
)
from scaffolding_ext.errors import ConfigError


def drawn(seed: int, num_queries: int, rate: float, mean: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return np.cumsum(rng.exponential(1 / rate, num_queries)), rng.exponential(mean, num_queries)


def test_waits_are_those_of_the_recursion() -> None:
    arrivals, services = drawn(0, 500, 0.9)
    gaps = np.diff(arrivals, prepend=0.0)
    waits, work = [0.0], 0.0
    for gap, service in zip(gaps[1:], services, strict=False):
        waits.append(max(0.0, waits[-1] + service - gap))
    work = waits[-1] + services[-1]
    found, left = waiting_times(gaps.copy(), services)
    assert found == pytest.approx(waits, abs=1e-9)
    assert left == pytest.approx(work)
    half, between = waiting_times(gaps[:200].copy(), services[:200])
    rest, left = waiting_times(gaps[200:].copy(), services[200:], between)
    assert np.concatenate([half, rest]) == pytest.approx(waits, abs=1e-9)
    assert left == pytest.approx(work)


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_the_mean_time_is_pollaczek_and_khinchine_s(load: float) -> None:
    seconds = np.array([0.2, 1.0, 3.0])
    shares = np.array([0.5, 0.3, 0.2])
    rate = load / float(seconds @ shares)
    expected = float(pollaczek_khinchine(rate, Moments(seconds @ shares, seconds**2 @ shares)))
    found = simulate_fifo(lambda rng, n: rng.choice(seconds, n, p=shares), rate, 400_000, np.random.default_rng(1))
    half = found.system_time.high - found.system_time.value
    assert abs(found.system_time.value - expected) < 2 * half  # four standard errors: a chance of 1 in 16,000
    assert half < 0.05 * expected
    assert found.load == pytest.approx(load, rel=0.01)


def test_one_server_in_events_is_lindley_s() -> None:
    arrivals, services = drawn(2, 2000, 0.8)
    waits, _ = waiting_times(np.diff(arrivals, prepend=0.0), services)
    expected = arrivals + waits + services
    assert serve_by_servers(arrivals, services, 1) == pytest.approx(expected)
    assert serve_in_batch(arrivals, services, 1) == pytest.approx(expected)


def test_a_batch_without_slowing_is_so_many_servers() -> None:
    arrivals, services = drawn(3, 3000, 3.4)
    assert serve_in_batch(arrivals, services, 4) == pytest.approx(serve_by_servers(arrivals, services, 4))


def test_several_servers_follow_erlang() -> None:
    servers, rate = 3, 2.1
    arrivals, services = drawn(4, 120_000, rate)
    found = summarized(arrivals, services, serve_by_servers(arrivals, services, servers))
    terms = [rate**k / math.factorial(k) for k in range(servers)]
    last = rate**servers / math.factorial(servers) / (1 - rate / servers)
    waits = last / (sum(terms) + last)  # Erlang's C
    half = found.system_time.high - found.system_time.value
    assert abs(found.system_time.value - (1 + waits / (servers - rate))) < 2 * half
    assert half < 0.05
    assert found.load == pytest.approx(rate, rel=0.02)


@pytest.mark.parametrize("shape", ["exponential", "constant"])
def test_processor_sharing_does_not_depend_on_the_shape_of_the_service(shape: str) -> None:
    arrivals, services = drawn(5, 60_000, 0.6)
    if shape == "constant":
        services = np.ones_like(services)
    found = summarized(arrivals, services, serve_in_batch(arrivals, services, 10_000, lambda size: 1 / size))
    half = found.system_time.high - found.system_time.value
    assert abs(found.system_time.value - 1 / (1 - 0.6)) < 2 * half
    assert half < 0.2


def test_a_batch_by_hand() -> None:
    arrivals, services = np.array([0.0, 1.0, 1.5]), np.array([2.0, 2.0, 1.0])
    # from 1.0 on two share: each has half; the third waits until the first leaves at 3.0
    assert serve_in_batch(arrivals, services, 2, lambda size: 1 / size).tolist() == [3.0, 5.0, 5.0]


def test_simpy_serves_alike() -> None:
    simpy = pytest.importorskip("simpy")
    arrivals, services = drawn(6, 800, 2.5)
    ended = np.empty(len(arrivals))
    world = simpy.Environment()
    servers = simpy.Resource(world, capacity=3)

    def query(number: int) -> object:
        yield world.timeout(arrivals[number])
        with servers.request() as place:
            yield place
            yield world.timeout(services[number])
        ended[number] = world.now

    for number in range(len(arrivals)):
        world.process(query(number))
    world.run()
    assert serve_by_servers(arrivals, services, 3) == pytest.approx(ended)
    assert serve_in_batch(arrivals, services, 3) == pytest.approx(ended)


def test_what_cannot_be_simulated() -> None:
    arrivals, services = drawn(7, 30, 1.0)
    with pytest.raises(ConfigError, match="num_servers: is 0"):
        serve_by_servers(arrivals, services, 0)
    with pytest.raises(ConfigError, match="speed"):
        serve_in_batch(arrivals, services, 2, lambda size: 0.0)
    with pytest.raises(ConfigError, match="num_queries"):
        summarized(arrivals[:5], services[:5], serve_by_servers(arrivals[:5], services[:5], 1))
