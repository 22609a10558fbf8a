"""Real data sets: where they come from, their typed rows, and how they get onto this machine."""
