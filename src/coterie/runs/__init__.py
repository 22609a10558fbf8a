"""Run folders, the loop over stages, roles, and evaluation."""
