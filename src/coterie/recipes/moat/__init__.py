"""MOAT (arXiv 2509.09629): alternating alignment of a planner and a grounder."""
