"""Runs a stack over a data set and keeps a record of every sample."""
