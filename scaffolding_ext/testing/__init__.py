"""Public test tools: doubles of a worker, a clock and a server, and the contracts of controllers and workers."""

from scaffolding_ext.testing.doubles import FakeClock, Gate, Reply, ScriptedWorker

__all__ = ["FakeClock", "Gate", "Reply", "ScriptedWorker"]
