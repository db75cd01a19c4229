"""What controllers share in which a small model drafts and a large one takes over."""
