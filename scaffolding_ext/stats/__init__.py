"""Statistics that several algorithms and the evaluation share: intervals, resampling, power, tests."""
