"""What the workers of several engines share: tasks read and checked, streams, sampling defaults, lowered requests."""
