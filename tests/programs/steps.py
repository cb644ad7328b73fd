"""Started by torchrun in tests/test_ranks.py: the real steps of every objective, on all ranks and on one.

Prints for each case the largest difference of losses, of what was observed and of states from one rank's, and
whether the ranks' states are the same bits. Encoders and heads have no BatchNorm.
"""

import math
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor

from tests.programs.tiny import norm_free
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
SHORT = (
    "training.epochs=3",
    "schedule.warmup_epochs=1",
    "training.batch_size=64",
    "training.drop_last=false",
    "training.device=cpu",
    "training.precision=fp32",
    "views.backend=tensor",
    "training.observe_every=2",
)
OWN = (  # means over a rank's own images; everything else is of the whole batch already
    *("train_accuracy", "disambiguation_accuracy", "target_confidence"),
    *("classification_loss", "contrast_loss"),
)
QUEUE = ("objective.queue_size=100",)


def cases() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield a name, a recipe and its changes."""
    plain = (*SHORT, "objective.head_batchnorm=false")
    moco, paco = "cifar_resnet20.moco_v2_ft_digits_lt50", "cifar_resnet20.paco_digits_lt50"
    ft = "objective.feature_transform.start_epoch=0"
    yield "moco", moco, (*plain, *QUEUE, "objective.key_groups=1", ft)
    yield "paco", paco, (*plain, *QUEUE, "objective.key_groups=1")
    yield "gpaco", "cifar_resnet20.gpaco_digits_lt50", (*plain, *QUEUE)
    yield "sup_con", "cifar_resnet20.sup_con_digits_lt50", (*plain, *QUEUE, "objective.key_groups=1")
    pico = "cifar_resnet20.pico_digits_q05"
    yield "pico", pico, (*plain, *QUEUE, "objective.key_groups=1", "objective.prototype_start=1")
    yield "simclr", "cifar_resnet20.simclr_digits_lt50", (*plain, "training.sync_batchnorm=false")
    moco_v3 = "cifar_resnet20.moco_v3_digits_lt50"  # whose heads always have BatchNorm, here of each row
    yield "moco_v3", moco_v3, (*SHORT, "training.sync_batchnorm=false")
    yield "margin", "cifar_resnet20.margin_digits_lt50", plain
    yield "bcl", "cifar_resnet20.bcl_digits_lt50", plain
    yield "classify", "cifar_resnet20.balanced_softmax_digits_lt50", SHORT


def build(recipe: Recipe) -> tuple[Objective, TrainLoader]:
    dataset = open_dataset(recipe.data, "train", None)
    with norm_free():
        objective = build_objective(recipe, dataset).double().train()
    return objective, open_loader(dataset, recipe, CPU)


def rows_of(batch: Batch, rows: slice) -> Batch:
    candidates = None if batch.candidates is None else batch.candidates[rows]
    views = tuple(view[rows].double() for view in batch.views)
    return Batch(views, batch.labels[rows], batch.index[rows], candidates)


def train(recipe: Recipe, ranks: Ranks) -> tuple[list[Tensor], dict[str, Tensor], list[float]]:
    """Return the whole batch's losses, the state after some steps, and what was observed in them."""
    objective, loader = build(recipe)
    stepper = Stepper(objective, recipe, loader.steps_per_epoch, CPU, ranks=ranks)
    losses, observed = [], []
    for step, batch in enumerate(loader.stream(0, STEPS)):
        each = len(batch.index) // ranks.size
        output = stepper(step, rows_of(batch, slice(ranks.rank * each, (ranks.rank + 1) * each)))
        losses.append(ranks.all_reduce(output.loss.detach() / ranks.size))
        for name, value in sorted(output.metrics.items()):
            mean = ranks.all_reduce(value.double() / ranks.size) if name in OWN else value
            observed.append(float(mean))
        if step == STEPS // 2:  # as after a resume
            stepper.load_state(stepper.state())
    row = stepper.observation.class_row({})  # of step 6: the others were forgotten with the state
    assert row is not None
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
    return losses, {**state["objective"], **moments}, observed


with join("cpu") as ranks:
    torch.set_num_threads(1)
    for case, name, changes in cases():
        if len(sys.argv) > 1 and case not in sys.argv[1:]:
            continue
        recipe = Recipe.load(name, changes)
        losses, state, observed = train(recipe, ranks)
        assert len(observed) > 20
        alone = train(recipe, ALONE) if ranks.rank == 0 else ([], {}, observed)
        expected, one, seen = alone[0], alone[1], torch.tensor(alone[2], dtype=torch.float64)
        dist.broadcast(seen, 0)
        observation = max(
            0.0 if math.isnan(a) and math.isnan(b) else abs(a - b) / (1 + abs(b))  # a group not in the batch
            for a, b in zip(observed, seen.tolist(), strict=True)
        )
        observation = float(ranks.gather(torch.tensor([observation])).max())
        everywhere = [ranks.gather(value.reshape(1, -1)) for value in state.values()]
        same = all(bool((each == each[:1]).all()) for each in everywhere)
        if ranks.rank == 0:
            loss = max(float((a - b).abs()) for a, b in zip(losses, expected, strict=True))
            apart = {key: float((state[key].double() - one[key].double()).abs().max()) for key in one}
            worst = max(apart, key=lambda key: apart[key])
            print(
                f"{case}: loss {loss:.1e} observed {observation:.1e} state {apart[worst]:.1e} ({worst}) "
                f"same {same}\n",
                end="",
                flush=True,
            )
