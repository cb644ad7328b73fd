"""Started by torchrun in tests/test_ranks.py: the real steps of every objective, on all ranks and on one.

States are the same bits on all ranks; losses, states and what was observed are one rank's. Encoders and heads
have no BatchNorm.
"""

import torch
from torch import Tensor

from tests import test_training
from tests.objective_helpers import QUEUED, SETTINGS, WITH_TEACHER, norm_free
from zoo.data import Batch, TrainLoader, open_dataset
from zoo.modules.ranks import ALONE, Ranks
from zoo.objectives import Objective
from zoo.recipe import Recipe
from zoo.training import build_objective
from zoo.training.build import open_loader
from zoo.training.distributed import join
from zoo.training.step import Stepper

CPU = torch.device("cpu")
STEPS = 7  # an epoch has six, the last of 24 images: the queue wraps around
CHANGES = (
    *("training.epochs=3", "training.drop_last=false", "training.precision=fp32", "views.backend=tensor"),
    *("training.observe_every=2", "training.sync_batchnorm=false"),
)
OWN = (  # means over a rank's own images; everything else is of the whole batch already
    *("train_accuracy", "disambiguation_accuracy", "target_confidence"),
    *("classification_loss", "contrast_loss"),
)


def of_kind(kind: str) -> Recipe:
    """The recipe of an objective, without BatchNorm where it can be; MoCo v3's heads have it, of each row."""
    changes = ["objective.queue_size=100"] if kind in QUEUED else []
    changes += ["objective.key_groups=1"] if kind in WITH_TEACHER else []
    changes += ["objective.head_batchnorm=false"] if "head_batchnorm" in SETTINGS[kind] else []
    return test_training.recipe(kind, *CHANGES, *changes)


def build(recipe: Recipe) -> tuple[Objective, TrainLoader]:
    dataset = open_dataset(recipe.data, "train", None)
    with norm_free():
        objective = build_objective(recipe, dataset).double().train()
    return objective, open_loader(dataset, recipe, CPU)


def rows_of(batch: Batch, rows: slice) -> Batch:
    candidates = None if batch.candidates is None else batch.candidates[rows]
    views = tuple(view[rows].double() for view in batch.views)
    return Batch(views, batch.labels[rows], batch.index[rows], candidates)


def train(recipe: Recipe, ranks: Ranks) -> tuple[list[Tensor], dict[str, Tensor], Tensor]:
    """Return the whole batch's losses, the state after some steps, and what was observed in them."""
    objective, loader = build(recipe)
    stepper = Stepper(objective, recipe, loader.steps_per_epoch, CPU, ranks=ranks)
    losses, observed = [], []
    for step, drawn in enumerate(loader.stream(0, STEPS)):
        some = drawn.index % 3 == 0 if recipe.objective.name == "sup_con" else drawn.labels < 0
        batch = drawn._replace(labels=drawn.labels.masked_fill(some, -1))  # unequally many of each rank
        each = len(batch.index) // ranks.size
        output = stepper(step, rows_of(batch, slice(ranks.rank * each, (ranks.rank + 1) * each)))
        losses.append(ranks.all_reduce(output.loss.detach() / ranks.size))
        for name, value in sorted(output.metrics.items()):
            mean = ranks.all_reduce(value.double() / ranks.size) if name in OWN else value
            observed.append(float(mean))
        if step == STEPS // 2:  # as after a resume
            stepper.load_state(stepper.state())
    row = stepper.observation.class_row({})  # of step 6: the others were forgotten with the state
    observed.append(row.pop("looks"))
    for values in row.values():
        observed += [-1.0 if value is None else value for value in values or [0.0]]
    state = stepper.state()
    moments = {
        f"optimizer {number} {name}": value
        for number, values in state["optimizer"]["state"].items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }
    return losses, {**state["objective"], **moments}, torch.tensor(observed, dtype=torch.float64)


with join("cpu") as ranks:
    torch.set_num_threads(1)
    for case in test_training.RECIPES:
        recipe = of_kind(case)
        losses, state, observed = train(recipe, ranks)
        assert len(observed) > 20
        for key, value in {**state, "observed": observed.nan_to_num()}.items():
            everywhere = ranks.gather(value.reshape(1, -1))
            assert (everywhere == everywhere[:1]).all(), f"{case}: {key} differs between the ranks"
        if ranks.rank == 0:
            expected, one, seen = train(recipe, ALONE)
            limit = 1e-6 if case == "classify" else 1e-9  # logits are float32
            torch.testing.assert_close(losses, expected, rtol=0, atol=limit)
            torch.testing.assert_close(state, one, rtol=0, atol=1e-9)
            # in float32, and in six digits; NaN of a group that is not in the batch
            torch.testing.assert_close(observed, seen, rtol=2e-5, atol=2e-5, equal_nan=True)
            print(f"{case}: ok", flush=True)
