"""Workers: one engine a file."""
