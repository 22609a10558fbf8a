"""Agents with tools whose plan is a graph of parallel calls (GAP)."""
