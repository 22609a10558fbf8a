"""Optima (arXiv 2410.08115): agents learn to talk shorter and better."""
