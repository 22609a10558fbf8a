"""Recipes: a folder for each published system, whose `recipe.py` reads like its paper's algorithm."""
