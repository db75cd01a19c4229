"""What votes share: samples, and what each weighs."""
