"""Inference servers as one engine: a pool of child processes or of external servers."""
