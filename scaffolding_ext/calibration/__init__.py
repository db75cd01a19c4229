"""What calibrations leave, and how they run."""
