"""GAP (arXiv 2510.25320): graph-based agent planning with parallel tool calls."""
