"""How long chains take by arithmetic, counted by hand."""

from __future__ import annotations

from benchmarks._lib.schedule import Latency, ScheduledChunk, scheduled_ends
from scaffolding_ext.protocol.meta import TokenCounts


def test_a_call_costs_a_pass_for_each_decoded_token_and_one_to_score() -> None:
    model = Latency(pass_s=2.0, token_s=0.5)
    assert model.of(TokenCounts(decoded=3, prefilled=4, reused=9)) == 8.0
    assert model.of(TokenCounts(decoded=0, prefilled=4)) == 4.0


def test_the_schedule_in_step_waits_for_the_slowest_and_asynchronous_chains_do_not() -> None:
    draft, target = Latency(1.0, 0.0), Latency(4.0, 0.5)
    chunks = [
        ScheduledChunk(chain=0, turn=0, draft_tokens=2, target_tokens=3, seconds_waited=0.0),
        ScheduledChunk(chain=1, turn=0, draft_tokens=2, target_tokens=0, seconds_waited=0.0),
        ScheduledChunk(chain=0, turn=1, draft_tokens=2, target_tokens=0, seconds_waited=0.0),
        ScheduledChunk(chain=1, turn=1, draft_tokens=4, target_tokens=0, seconds_waited=0.0),
        ScheduledChunk(chain=1, turn=2, draft_tokens=2, target_tokens=0, seconds_waited=0.0),
    ]
    # Two tokens are drafted and scored in 2 + (4 + 1) = 7, four in 4 + (4 + 2) = 10; the target writes three in 12.
    assert scheduled_ends(chunks, draft, target, in_step=False) == [7 + 12 + 7, 7 + 10 + 7]
    # At the second turn all wait for the chain that the target wrote: until 7 + 12 + 7.
    assert scheduled_ends(chunks, draft, target, in_step=True) == [26, 26 + 7]
