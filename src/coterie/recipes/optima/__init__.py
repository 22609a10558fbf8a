"""Optima (arXiv 2410.08115): iterative training of agents that communicate effectively and briefly."""
