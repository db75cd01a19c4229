"""Allocation rules, which stop sampling a vote: an interface (`base`), and one rule or small family per file."""
