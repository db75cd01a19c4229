"""Rules that decide when a chain of thought has thought enough; `base` has their interface."""
