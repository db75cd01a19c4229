"""Training of the embedded models: chains of thought, tokenizer, batches, optimiser and the command."""
