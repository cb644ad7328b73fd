"""Recipes: everything that decides what a training produces, with a default for what most have in common."""

from zoo.recipe.recipe import Recipe

__all__ = ["Recipe"]
