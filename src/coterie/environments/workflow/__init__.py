"""Plans as graphs (GAP): which tasks there are, which wait for which, and what runs them side by side."""
