"""The host: connects controllers to workers."""
