"""What runs requests, and what comes back of them."""
