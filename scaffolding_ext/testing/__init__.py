"""What outsiders test with: doubles of a worker, a clock and a server, and what every controller and worker must do."""

from scaffolding_ext.testing.doubles import FakeClock, Gate, Reply, ScriptedWorker, float32_tolerance

__all__ = ["FakeClock", "Gate", "Reply", "ScriptedWorker", "float32_tolerance"]
