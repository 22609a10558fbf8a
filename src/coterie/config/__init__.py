"""Validated settings: declared once with meaning, default and source, read from ``key=value``."""
