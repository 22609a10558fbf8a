"""Passages that agents search: corpora and their indexes, a server that searches them, and the tool that asks it."""
