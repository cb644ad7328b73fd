"""What is said before a training on a GPU whose recipe leaves off what would make its steps faster there."""

from __future__ import annotations

from contextlib import suppress

import timm
import torch

from zoo.errors import RecipeError
from zoo.objectives import OBJECTIVES, Objective
from zoo.training.optim import FUSED
from zoo.training.overrides import as_overrides
from zoo.training.recipe import Recipe


def advice(recipe: Recipe, device: torch.device) -> str | None:
    """Name the keys that are off and mostly make a GPU's steps faster; None: there is nothing to say.

    It is said to whoever leaves `cuda_graph` off where it could be on: shipped recipes do, because they are
    for CPUs too, and a graph's steps are no others. A recipe that chooses another precision than fp32, or a
    GPU without bf16, is told of the graph alone.
    """
    section = recipe.training
    if device.type != "cuda" or section.cuda_graph or not _can_be_captured(recipe):
        return None
    found = ["--set training.cuda_graph=true, with the same mathematics, above all for small networks"]
    if section.precision == "fp32" and torch.cuda.is_bf16_supported(False):  # not if emulated, which is slow
        found.append("--set training.precision=bf16, with rounding of its own")
    return f"mostly faster on a GPU: {'; '.join(found)}"


def _can_be_captured(recipe: Recipe) -> bool:
    """Whether schema, optimizer and objective allow `cuda_graph`, as far as is known before a first step."""
    if OBJECTIVES[recipe.objective.name].constants is Objective.constants:
        return False
    with suppress(RecipeError, ValueError):  # an optimizer that timm does not know is refused elsewhere
        Recipe.from_yaml(recipe.to_yaml(), recipe.name, as_overrides({"training.cuda_graph": True}))
        return timm.optim.get_optimizer_class(recipe.optimizer.name, bind_defaults=False) in FUSED
    return False
