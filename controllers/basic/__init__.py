"""Controllers that run no algorithm of their own, or compose others."""
