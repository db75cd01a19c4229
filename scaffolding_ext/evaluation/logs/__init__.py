"""Recordings of real models' samples and chains, read from logs or drawn from a stack."""
