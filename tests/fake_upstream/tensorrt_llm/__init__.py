"""A small fake of TensorRT-LLM, with the part of Scaffolding that controllers and workers meet.

It behaves as release 1.2 and newer do where that matters to them, shortcomings included, and serves nothing.
"""

__version__ = "1.2.0"
