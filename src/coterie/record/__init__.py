"""Record of a run: tasks with secrets, turns, trees, views, rows, credit, and the store."""
