"""Evaluation of policies: intervals, paired tests, self-consistency, best of n."""
