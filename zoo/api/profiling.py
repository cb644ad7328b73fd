"""`zoo pretrain --profile`: what one step of a recipe costs on this machine."""

from __future__ import annotations

import json
from pathlib import Path

from zoo.data import open_dataset
from zoo.data.any_data import Data, own_root
from zoo.errors import RecipeError, TrainingError
from zoo.files import write_text, writing
from zoo.recipe import Recipe
from zoo.recipe.overrides import Overrides
from zoo.training import build_objective, cpu_threads, learns_without_labels, stages
from zoo.training.facts import hardware
from zoo.training.profile import Profile, describe, profile
from zoo.training.progress import show_status
from zoo.training.stages import beginning


def profile_step(
    recipe: Recipe | str | Path,
    *,
    out: str | Path,
    data: Data = None,
    overrides: Overrides = (),
) -> tuple[Profile, list[str]]:
    """Measure what a recipe's step costs, and where its time goes; nothing is trained or released.

    Args:
        recipe: a shipped recipe's name, a file, or a `Recipe`.
        out: folder for `profile.json` and `operations.txt` (torch's own table).
        data: the folder with the data, for sources that need one.
        overrides: see `pretrain`.

    Returns:
        The profile, and the same in words.

    Raises:
        ZooError: for anything wrong with recipe or data.
    """
    recipe, out = Recipe.load(recipe, overrides), Path(out)
    if not stages(recipe):
        raise RecipeError(f"{recipe.name}: a method that trains nothing has no step to measure")
    recipe = beginning(recipe)  # of a method its first training, which is most of it
    root = own_root(data, recipe.data)
    with writing(f'folder of the profile "{out}"', TrainingError):
        out.mkdir(parents=True, exist_ok=True)  # before the minute that measuring may take
    dataset = open_dataset(recipe.data, "train", root, unlabelled=learns_without_labels(recipe))
    with (
        cpu_threads(recipe.training.threads),
        show_status(f"measuring steps of {recipe.name}"),
    ):
        found = profile(build_objective(recipe, dataset), dataset, recipe)
        where = hardware(found.device)
    lines = describe(found, recipe)
    facts = {
        "recipe": recipe.name,
        "recipe_sha256": recipe.sha256,
        "hardware": where,
        "step_seconds": found.step,
        "steps_measured": found.steps,
        "images": found.images,
        "parts_seconds": found.parts,
        "peak_memory_bytes": found.memory,
    }
    with writing(f'folder of the profile "{out}"', TrainingError):
        write_text(out / "profile.json", json.dumps(facts, indent=2) + "\n")
        write_text(out / "operations.txt", found.operations + "\n")
    return found, [f"{recipe.name} on {where}", *lines]
