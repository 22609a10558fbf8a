"""Clusters that hold a run's servers and ranks."""
