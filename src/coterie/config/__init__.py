"""Validated settings, each declared once with meaning, default and source."""
