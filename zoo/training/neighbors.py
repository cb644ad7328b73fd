"""Nearest neighbours while training: how far an encoder that learns without labels has come."""

from __future__ import annotations

from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from zoo.data import ImageDataset
from zoo.data.stratified import stratified_split
from zoo.errors import DataError
from zoo.functional import knn_predict
from zoo.modules import evaluating
from zoo.objectives import Objective
from zoo.recipe import Recipe
from zoo.seeding import derive_seed
from zoo.training.looks import Looked, accuracies, is_due, summed
from zoo.training.step import Stepper

IMAGES = 10_000
"""Training images that are looked at, at most."""

K, TAU = 20, 0.07
"""Neighbours that vote and the temperature of their votes, those of the protocol `knn`."""


class Halves(NamedTuple):
    """Training images whose classes are known: those that vote, and those that are voted on."""

    voters: ImageDataset
    asked: ImageDataset


def halves(dataset: ImageDataset, recipe: Recipe) -> Halves | None:
    """Draw the images to look at, and divide them class by class; None where the recipe does not look.

    A function of the recipe's seed and of the labels. Images of no known class are left out; the only
    image of a class votes.

    Raises:
        DataError: if no two of the images are of one class.
    """
    section = recipe.training
    if section.knn_every is None:
        return None
    labels = torch.from_numpy(dataset.labels.copy())
    known = (labels >= 0).nonzero().flatten()
    generator = torch.Generator().manual_seed(derive_seed("neighbors", section.seed))
    drawn = torch.randperm(len(known), generator=generator)
    rows = known[drawn[:IMAGES]].sort().values
    voters, asked = stratified_split(labels[rows], 0.5, derive_seed("neighbors", section.seed))
    if not len(asked):
        found = "no class" if not len(known) else "no two of one class"
        raise DataError(
            f"training.knn_every: measures by the classes of the training images, of which {found} is known; "
            "expected null"
        )
    return Halves(dataset.subset(rows[voters].numpy()), dataset.subset(rows[asked].numpy()))


class Neighbors:
    """Lets training images vote on the classes of others, which the training itself never learns.

    What is looked at is what would be released: the moving average of the weights if there is one. Draws no
    random number and leaves the objective as it was. Every rank encodes all voters and asks for its share of
    the others; all of them have to look, and get the same figures, bit for bit.

    Args:
        images: the two halves.
        recipe: how often to look, the evaluation view, and how many images fit into memory at once.
        stepper: has the live state.
        device: of the training.

    Attributes:
        over: False; this ends no training.
    """

    over = False

    def __init__(self, images: Halves, recipe: Recipe, stepper: Stepper, device: torch.device) -> None:
        ranks = stepper.ranks
        own = range(len(images.asked))[ranks.rows(len(images.asked))]
        self._voters = Looked(images.voters, recipe, device)
        self._asked = Looked(images.asked.subset(own), recipe, device)
        self._classes, self._stepper = images.voters.num_classes, stepper
        self._every, self._device = recipe.training.knn_every, device

    def due(self, done: int) -> bool:
        """Whether to look after `done` steps: every so many epochs, and at the end."""
        assert self._every is not None
        return is_due(self._every, done, self._stepper)

    def look(self, done: int) -> dict[str, float]:
        """Return `knn_accuracy` and `knn_balanced_accuracy` in percent; nan where features are not finite.

        Raises:
            DataError: when more images cannot be read than training may leave out.
        """
        del done  # that of a best state is kept; here there is none
        objective, average = self._stepper.objective, self._stepper.average
        with nullcontext() if average is None else average.applied():
            found = self._measure(objective)
        return {f"knn_{name}": value for name, value in found.items()}

    def _measure(self, objective: Objective) -> dict[str, float]:
        hits, seen = torch.zeros(2, self._classes, dtype=torch.float64)
        with evaluating(objective.encoder), torch.no_grad():
            bank, classes = _encode(objective, self._voters)
            features, labels = _encode(objective, self._asked)
        if len(labels):  # a rank may have none
            seen += torch.bincount(labels, minlength=self._classes)
            if bank.isfinite().all() and features.isfinite().all():
                voted = knn_predict(bank, classes, features, k=K, tau=TAU, num_classes=self._classes)
                hits += torch.bincount(labels[voted.predictions == labels], minlength=self._classes)
            else:
                hits.fill_(torch.nan)
        sums = torch.cat([hits, seen]).to(self._device)  # where ranks can send it from
        return accuracies(*summed(sums, self._stepper.ranks).view(2, -1))


def _encode(objective: Objective, looked: Looked) -> tuple[Tensor, Tensor]:
    """Return features `[N, D]` on the device and labels `[N]` on the host."""
    features, labels = list[Tensor](), list[Tensor]()
    for images, targets in looked.batches():
        # not through a compiled call: a training looks too seldom to compile for it
        features.append(objective.encoder.forward(images).float())
        labels.append(targets.cpu())
    if not features:
        return torch.empty(0, 1), torch.empty(0, dtype=torch.int64)
    return torch.cat(features), torch.cat(labels)


def open_neighbors(
    images: Halves | None, recipe: Recipe, stepper: Stepper, device: torch.device
) -> Neighbors | None:
    """Return what looks at the neighbours while training; None where the recipe does not ask for it."""
    return None if images is None else Neighbors(images, recipe, stepper, device)
