"""Agents with plans as graphs of tasks, which run in parallel (GAP)."""
