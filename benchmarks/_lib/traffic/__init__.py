"""Concurrent programs: arrivals, a simulated engine that serves them, and figures."""
