"""Recipes: each a published system as one file that reads like its paper's algorithm."""
