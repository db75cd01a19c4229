"""Live votes beside simulated ones: the speed that looks at an engine tell, and a machine that changes its pace."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks._lib.lab import Lab
from benchmarks._lib.load_programs import RecordedVote
from benchmarks.studies import live_load
from benchmarks.studies.live_load import CELLS, FULL, IN_TIME, PACE_LOOKS, Bench, Pace, Served, Speed

STEP, TOKEN, READ = 0.001, 0.0002, 0.00005  # seconds of a step, and what each token adds
PLACES = 4


def looks(num: int, slower: float = 1.0, first: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)) -> list[list[float]]:
    """Looks at an engine whose batch changes from look to look."""
    seen = [list(first)]
    for number in range(num):
        steps, tokens, read = 10 + number % 3, 40 + 7 * (number % 5), 5 * (number % 2)
        busy = slower * (STEP * steps + TOKEN * tokens + READ * read)
        seen.append([*np.add(seen[-1], (steps, tokens, read, busy)).tolist()])
    return seen


def test_looks_tell_the_seconds_of_steps_and_tokens() -> None:
    seen = looks(50)
    speed = Speed.of(seen)
    assert speed.step == pytest.approx(STEP)
    assert speed.token == pytest.approx(TOKEN + READ * seen[-1][2] / seen[-1][1])  # prompts are spread over the tokens
    assert speed.tokens_a_second(8) == pytest.approx(8 / (speed.step + 8 * speed.token))


def test_work_stretches_where_the_machine_is_slower() -> None:
    even = looks(PACE_LOOKS)
    seen = [*even, *looks(PACE_LOOKS, 3.0, tuple(even[-1]))[1:]]
    run = {"looks": seen, "arrivals": [0.0], "votes": [{"seconds": 8.0}]}  # the last four go a third as fast
    pace = Pace.of(run, Speed(STEP, TOKEN + READ * seen[-1][2] / seen[-1][1]))
    times = np.array([0.0, 2.0, 4.0, 7.0, 8.0, 9.5])
    assert pace.done_by(times) == pytest.approx([0.0, 2.0, 4.0, 5.0, 4 + 4 / 3, 4 + 4 / 3 + 1.5], rel=0.02)
    assert pace.times_of(pace.done_by(times)) == pytest.approx(times)


def test_an_even_machine_serves_as_at_the_mean_speed_and_deadlines_hold() -> None:
    seen = looks(2 * PACE_LOOKS)
    votes = [RecordedVote([0] * 8, [100 + each] * 8, [True] * 8) for each in range(10)]
    run: dict[str, Any] = {
        "looks": seen,
        "arrivals": np.arange(10.0).tolist(),
        "votes": [{"seconds": 5.0} for _ in votes],
    }
    mean, paced = (Served.simulated(FULL, run, votes, PLACES, None, is_paced) for is_paced in (False, True))
    assert paced.seconds == pytest.approx(mean.seconds, rel=0.1)
    assert mean.correct.all()
    assert mean.decoded.tolist() == [8 * (100 + each) for each in range(10)]
    within = 0.9 * float(mean.seconds.min())
    cut = Served.simulated(IN_TIME[0], run, votes, PLACES, within)
    assert (cut.seconds <= within).all()
    assert (cut.decoded < mean.decoded).all()


def test_no_two_cells_are_stored_under_one_name() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS)


def test_a_run_shorter_than_the_time_between_two_looks_tells_the_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(live_load, "LOOK_EVERY", 3600.0)
    with Lab({"generation": "tinylm/draft"}, max_batch_size=8) as lab:
        bench = Bench(lab, 8, 2)
        run = bench.run(FULL, bench.questions, np.zeros(2))
    assert len(run["looks"]) == 2
    assert Speed.of(run["looks"]).alone > 0
