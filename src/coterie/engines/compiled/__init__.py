"""Llama-shaped models on CPU by loops that numba compiles, over pages of keys and values."""
