"""OpenAI-compatible server: any stack over any worker, with limits, accounting and cancellation."""
