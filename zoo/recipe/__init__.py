"""Recipes: everything that determines the result of a training, with defaults."""

from zoo.recipe.recipe import Recipe

__all__ = ["Recipe"]
