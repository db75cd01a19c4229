"""Benchmarks: `python -m benchmarks.studies.demo --help`, from the root of the repository."""
