"""Decisions as plain functions: numpy and scipy only, no input or output, no async."""
