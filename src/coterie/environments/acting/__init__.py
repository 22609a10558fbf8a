"""Environments in which an agent acts step by step, with thoughts, actions and answers in its text."""
