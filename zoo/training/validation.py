"""A part of the training images that no batch has, and what the classifier makes of it while training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.data import ImageDataset, eval_images
from zoo.data.stratified import stratified_split
from zoo.errors import DataError
from zoo.modules import evaluating
from zoo.objectives import Objective
from zoo.ranks import Ranks
from zoo.seeding import derive_seed
from zoo.training.recipe import Recipe

_BATCH = 256
_KEEP = 256 << 20  # bytes of decoded images on the device, the same ones for every look; more are read anew


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
        self._dataset = dataset.with_candidates(None).subset(own)
        self._recipe, self._device, self._ranks = recipe, device, ranks
        self._kept: list[tuple[Tensor, Tensor]] = []

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
            for images, targets in self._kept or self._batches():
                labels = targets.to(self._device)
                # not through a compiled call: a training looks too seldom to compile for it
                logits = F.linear(objective.encoder.forward(images).float(), weight, bias)
                right = (logits.argmax(dim=1) == labels).double()
                hits.index_add_(0, labels, right)
                seen.index_add_(0, labels, torch.ones_like(right))
                loss += F.cross_entropy(logits, labels, reduction="sum").double()
        return _figures(self._together(sums), classes)

    def _batches(self) -> Iterable[tuple[Tensor, Tensor]]:
        recipe, section = self._recipe, self._recipe.training
        batches = eval_images(
            self._dataset,
            recipe.views.eval,
            recipe.data.mean,
            recipe.data.std,
            batch_size=min(_BATCH, section.batch_size // section.accumulate),
            device=self._device,
            workers=recipe.views.workers,
            max_bad_images=recipe.data.max_bad_images,
            split="train",
        )
        if len(self._dataset) * 3 * 4 * recipe.views.eval.size**2 <= _KEEP:
            self._kept = list(batches)
            return self._kept
        return batches

    def _together(self, sums: Tensor) -> Tensor:
        """Add up all ranks' sums, each in the same order."""
        return sums.cpu() if self._ranks.alone else self._ranks.everywhere(sums).cpu().sum(dim=0)


def _figures(sums: Tensor, classes: int) -> dict[str, float]:
    hits, seen, loss = sums[:classes], sums[classes:-1], sums[-1]
    present = seen > 0
    return {
        "accuracy": 100 * float(hits.sum() / seen.sum()),
        "balanced_accuracy": 100 * float((hits[present] / seen[present]).mean()),
        "loss": float(loss / seen.sum()),
    }
