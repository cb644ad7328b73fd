"""A part of the training images that no batch has, and what the classifier makes of it while training."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from zoo.data import ImageDataset
from zoo.data.stratified import stratified_split
from zoo.errors import DataError
from zoo.modules import evaluating
from zoo.objectives import Objective
from zoo.ranks import Ranks
from zoo.recipe import Recipe
from zoo.seeding import derive_seed
from zoo.training.looks import Looked, accuracies, summed


class Parts(NamedTuple):
    """The training images of a recipe.

    Attributes:
        training: of which batches, class counts and candidates are.
        validation: put aside for early stopping; None where the recipe has none.
    """

    training: ImageDataset
    validation: ImageDataset | None


def put_aside(dataset: ImageDataset, recipe: Recipe) -> Parts:
    """Divide a recipe's training images; a function of its seed and of their labels.

    Of each class about `validation_fraction` is put aside: at least one image where there are two, none of a
    class of one. Both parts keep the order of `dataset`.

    Raises:
        DataError: if no class has two images.
    """
    section = recipe.training.early_stopping
    if section is None:
        return Parts(dataset, None)
    labels = torch.from_numpy(dataset.labels.copy())
    seed = derive_seed("validation", recipe.training.seed)
    rest, held = stratified_split(labels, section.validation_fraction, seed)
    if not len(held):
        raise DataError(
            f"training.early_stopping: each of the {dataset.num_classes} classes has a single training "
            "image, so none can be put aside; expected null"
        )
    return Parts(dataset.subset(rest.numpy()), dataset.subset(held.numpy()))


class Validation:
    """Classifies the images put aside as a release would: its encoder, its centers, its evaluation view.

    A method that changes the trained classifier afterwards (`zoo.training.post_hoc`) does so after this.

    Draws no random number and leaves the objective as it was. Each rank classifies its share; all of them
    have to ask, and get the same figures, bit for bit.

    Args:
        dataset: the images.
        recipe: the evaluation view, and how many images fit into memory at once.
        device: of the training.
        ranks: that share the work.

    Attributes:
        images: how many there are on all ranks.
    """

    def __init__(self, dataset: ImageDataset, recipe: Recipe, device: torch.device, ranks: Ranks) -> None:
        self.images = len(dataset)
        own = range(len(dataset))[ranks.rows(len(dataset))]
        self._looked = Looked(dataset.subset(own), recipe, device)
        self._device, self._ranks = device, ranks

    def measure(self, objective: Objective) -> dict[str, float]:
        """Return `accuracy` and `balanced_accuracy` in percent and `loss`, the mean cross-entropy in nats.

        Raises:
            DataError: when more images cannot be read than training may leave out.
        """
        centers = objective.centers()
        assert centers is not None  # the recipe's schema allows no other objective
        weight, bias = centers.weight.float(), centers.bias.float()
        classes = len(weight)
        # right answers of each class, images of each class, sum of the losses
        sums = torch.zeros(2 * classes + 1, dtype=torch.float64, device=self._device)
        hits, seen, loss = sums[:classes], sums[classes:-1], sums[-1:]
        with evaluating(objective.encoder), torch.no_grad():
            for images, targets in self._looked.batches():
                labels = targets.to(self._device)
                # not through a compiled call: a training looks too seldom to compile for it
                logits = F.linear(objective.encoder.forward(images).float(), weight, bias)
                right = (logits.argmax(dim=1) == labels).double()
                hits.index_add_(0, labels, right)
                seen.index_add_(0, labels, torch.ones_like(right))
                loss += F.cross_entropy(logits, labels, reduction="sum").double()
        sums = summed(sums, self._ranks)
        hits, seen, loss = sums[:classes], sums[classes:-1], sums[-1]
        return {**accuracies(hits, seen), "loss": float(loss / seen.sum())}
