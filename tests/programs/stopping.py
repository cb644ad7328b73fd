"""Started by torchrun in tests/test_ranks_stopping.py: what each rank ends with, of a run stopped in between.

Arguments: a folder, then overrides of the recipe.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from zoo.data import open_dataset
from zoo.errors import Interrupted
from zoo.ranks import Ranks
from zoo.recipe import Recipe
from zoo.training.distributed import join
from zoo.training import RunFolder, Trained, build_objective, train
from zoo.training.stopping import Stopping

folder, overrides = Path(sys.argv[1]), sys.argv[2:]
recipe = Recipe.load("cifar_resnet20.ce_digits_lt50", overrides)
dataset = open_dataset(recipe.data, "train", None)
look = Stopping.look


def line(text: str) -> None:
    sys.stdout.write(text + "\n")  # in one piece, between the other ranks' lines
    sys.stdout.flush()


def say(rank: int, name: str, trained: Trained) -> None:
    state = trained.objective.state_dict()
    digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in state.values())).hexdigest()
    line(f"rank {rank} {name}: {digest} {trained.steps} {json.dumps(trained.stopping)}")


def stopped(self: Stopping, done: int) -> dict[str, float]:
    raise Interrupted("stopped while looking")


def once(recipe: Recipe, name: str, ranks: Ranks, *, resume: bool = False) -> Trained:
    objective = build_objective(recipe, dataset)
    return train(objective, dataset, recipe, RunFolder(folder / name), resume=resume, ranks=ranks)


with join("cpu") as ranks:
    say(ranks.rank, "whole", once(recipe, "a", ranks))
    Stopping.look = lambda self, done: (look if done < 12 else stopped)(self, done)
    try:
        once(recipe, "b", ranks)
    except Interrupted:
        Stopping.look = look
    say(ranks.rank, "again", once(recipe, "b", ranks, resume=True))
