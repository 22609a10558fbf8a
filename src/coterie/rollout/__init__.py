"""Rollouts: concurrent episodes that grow trees of turns through an engine."""
