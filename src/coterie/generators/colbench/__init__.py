"""Rows in the form of ColBench's Backend Programming: drawn, written, and checked."""
