"""How many tokens each type of question may think for, so that accuracy and waiting balance.

Reference: Ozbas and Bastopcu, "Queueing-Aware Optimization of Reasoning Tokens for Accuracy-Latency Trade-offs in LLM
Servers", arXiv 2601.10274.
"""
