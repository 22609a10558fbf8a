"""Inference servers: a pool of our own children or of servers that already run, as one engine."""
