"""Token budgets per type of question that balance accuracy and waiting.

Reference: Ozbas and Bastopcu, "Queueing-Aware Optimization of Reasoning Tokens for Accuracy-Latency Trade-offs in LLM
Servers", arXiv 2601.10274.
"""
