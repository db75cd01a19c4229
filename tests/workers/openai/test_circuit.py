"""The circuit opens after failures in a row, and closes again when one request gets through."""

import pytest

from scaffolding_ext.errors import EngineError
from scaffolding_ext.testing import FakeClock
from scaffolding_ext.workers.openai.connection import Circuit


def test_it_opens_after_failures_in_a_row_only():
    circuit = Circuit(3, 10.0, FakeClock())
    for _ in range(2):
        circuit.failed("no answer")
    circuit.succeeded()
    for _ in range(2):
        circuit.failed("no answer")
    circuit.check()
    circuit.failed("no answer")
    with pytest.raises(EngineError, match=r"failed 3 times in a row.*for 10 s more.*no answer"):
        circuit.check()


def test_after_the_pause_one_request_tries_and_decides():
    clock = FakeClock()
    circuit = Circuit(1, 10.0, clock)
    circuit.failed("reset")
    clock.advance(10.0)
    circuit.check()
    with pytest.raises(EngineError):  # the others wait for that one
        circuit.check()
    circuit.failed("reset again")
    clock.advance(9.0)
    with pytest.raises(EngineError, match="reset again"):
        circuit.check()
    clock.advance(1.0)
    circuit.check()
    circuit.succeeded()
    circuit.check()
    assert not circuit.is_open
