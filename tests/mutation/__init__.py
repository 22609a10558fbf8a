"""Runs tests against copies of the package that have a fault in them; see ``tests/mutants``."""
