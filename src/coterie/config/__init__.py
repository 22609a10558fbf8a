"""Validated settings. Each key is declared once with its meaning, default and source."""
