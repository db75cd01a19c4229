"""Compares finished runs."""
