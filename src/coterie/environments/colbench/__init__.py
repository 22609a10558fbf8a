"""ColBench's Backend Programming: checks of its rows, and a writer of new ones."""
