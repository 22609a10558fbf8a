"""Generators of data sets: rows drawn from a seed, or written by a model and checked."""
