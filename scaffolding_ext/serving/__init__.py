"""The OpenAI-compatible front: any stack over any worker, with limits, accounting and cancellation."""
