"""The record: tasks and their secrets, turns, trees, views, rows, credit, and a run's store."""
