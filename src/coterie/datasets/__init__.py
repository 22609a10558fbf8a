"""Real data sets: catalogue, typed rows, and loading from the hub and from files."""
