"""Stacks as models of other evaluation harnesses; each module needs the harness that it is for."""
