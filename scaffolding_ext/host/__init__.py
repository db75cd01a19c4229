"""Host that connects controllers to workers."""
