"""Stopping rules on recorded chains: read them, play every rule and setting, choose one, and draw the frontier."""
