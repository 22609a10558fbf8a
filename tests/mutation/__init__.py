"""Behavioral faults: each is put into the running package and must turn a named test red."""
