"""Started by torchrun in tests/test_training_neighbors.py: what each rank sees of the neighbours.

Arguments: a folder, then overrides of the recipe.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from zoo.data import open_dataset
from zoo.errors import ZooError
from zoo.recipe import Recipe
from zoo.training.distributed import join
from zoo.training import RunFolder, build_objective, train
from zoo.training.neighbors import Neighbors

recipe = Recipe.load("cifar_resnet20.moco_v2_ft_digits_lt50", sys.argv[2:])
dataset = open_dataset(recipe.data, "train", None)
look = Neighbors.look


def said(self: Neighbors, done: int) -> dict[str, float]:
    found = look(self, done)
    line(f"rank {ranks.rank} {done} {json.dumps(found)}")
    return found


def line(text: str) -> None:
    sys.stdout.write(text + "\n")  # in one piece, between the other ranks' lines
    sys.stdout.flush()


Neighbors.look = said
with join("cpu") as ranks:
    try:
        run = RunFolder(Path(sys.argv[1]))
        train(build_objective(recipe, dataset), dataset, recipe, run, resume=False, ranks=ranks)
    except ZooError as error:
        line(f"rank {ranks.rank}: {error}")
