"""A curve of each objective's first losses that must not move when behaviour should not.

In double precision: single sums differ between processors, and after four steps by a hundredth.

After a change that is meant to move them: `python -m tests.test_loss_curves` writes them anew; say why in the
commit.
"""

import json
import tempfile
from pathlib import Path

import pytest

from zoo import catalog
from zoo.data import open_dataset
from zoo.recipe import Recipe
from zoo.training import RunFolder, build_objective, train
from zoo.training.precision import encoders
from zoo.training.stages import first_stage

FILE = Path(__file__).with_name("loss_curves.json")
CHANGES = (
    "training.epochs=2",
    "training.batch_size=64",
    "training.log_every=1",
    "training.device=cpu",
    "training.threads=1",
    "training.drop_last=true",  # 5 steps an epoch with the long tail
    "schedule.warmup_epochs=0",
)
STEPS = 8  # the second epoch is in: FT begins there, and PiCO's warm-up ends
TOLERANCE = 1e-4
NAMES = catalog.list_recipes("*digits*")


def losses(name: str) -> list[float]:
    changes = [*CHANGES]
    if "_ft_" in name:
        changes.append("objective.feature_transform.start_epoch=1")
    if "pico" in name:  # as short an epoch as the others'
        changes.append("data.long_tail={profile: exponential, imbalance: 50.0, seed: 0, max_per_class: 125}")
        changes.append("objective.prototype_start=1")
    recipe = first_stage(Recipe.load(name, changes))  # of a method the first training
    dataset = open_dataset(recipe.data, "train", None)
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        objective = build_objective(recipe, dataset).double()
        for encoder in encoders(objective):
            encoder.register_forward_pre_hook(lambda _, images: tuple(view.double() for view in images))
        train(objective, dataset, recipe, run, resume=False)
        return [row["loss"] for row in run.rows()[:STEPS]]


@pytest.mark.parametrize("name", NAMES)
def test_losses_are_those_of_before(name: str) -> None:
    # views are made in single precision, and rows of metrics are means in it
    assert losses(name) == pytest.approx(json.loads(FILE.read_text())[name], rel=TOLERANCE)


if __name__ == "__main__":
    FILE.write_text(json.dumps({name: losses(name) for name in NAMES}, indent=1) + "\n")
