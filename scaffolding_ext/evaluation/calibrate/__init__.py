"""Calibration runs, which write the files that the algorithms read."""
