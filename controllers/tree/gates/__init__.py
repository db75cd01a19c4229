"""Branches on one prefix: what they may share, which verdicts they can do without, and what that saves.

Reference: Sekar, "RKSC: Reasoning-Aware KV Cache Sharing and Confident Early Exit for Multi-Step LLM Inference", arXiv
2606.09937.
"""
