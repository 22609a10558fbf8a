"""Rollouts: episodes that grow trees of turns through an engine, all in flight at once."""
