"""The engine behind HuggingFaceWorker: continuous batching of a transformers model in this process."""
