"""Judging a policy: intervals, paired tests."""
