"""Environments that agents act in. Each is a pure function of its state; tasks come from explicit seeds."""
