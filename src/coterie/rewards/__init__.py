"""Rewards: named floats on nodes of trees, from outcomes, tokens and likelihoods."""
