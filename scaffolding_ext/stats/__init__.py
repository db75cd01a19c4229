"""Statistics shared by algorithms and evaluation: intervals, resampling, tests."""
