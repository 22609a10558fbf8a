"""Statistics of scores of policies."""
