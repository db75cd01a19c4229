"""Programs that arrive while others run: their arrivals, a simulated engine that serves them, and the figures."""
