"""Replay settings on a recording: what each would have answered and cost, which one to use, and what that promises."""
