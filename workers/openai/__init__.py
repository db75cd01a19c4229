"""Parts of the worker over OpenAI-compatible servers."""
