"""OpenAI-compatible server: any stack over any worker, with limits, accounting and cancellation."""

from scaffolding_ext.serving.app import Front
from scaffolding_ext.serving.served_stack import ServedStack
from scaffolding_ext.serving.settings import Limits

__all__ = ["Front", "Limits", "ServedStack"]
