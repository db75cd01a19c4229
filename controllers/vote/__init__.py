"""Votes: sampling, weights and the rules that end a vote early."""
