"""Recordings: samples and chains of real models, read from the logs that people have or drawn from a stack."""
