"""The command line: ``coterie --help``."""
