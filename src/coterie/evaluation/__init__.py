"""Judging a policy: answer metrics, intervals and tests, benchmarks."""
