"""Periodic evaluation on training images: early stopping, and kNN accuracy for objectives without labels.

Rank 0 evaluates the weights that would be released. Nothing draws a random number or changes the objective.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.backbones import evaluating
from zoo.data import ImageDataset, eval_images
from zoo.data.batches import derive_seed
from zoo.data.long_tail import stratified_split
from zoo.errors import DataError
from zoo.functional import class_means, knn_predict
from zoo.modules import l2_normalize, released_state
from zoo.modules.ranks import Ranks
from zoo.objectives import Classify, Objective
from zoo.recipe import Recipe
from zoo.training.progress import show_images
from zoo.training.step import Stepper

IMAGES = 10_000  # at most, for the kNN accuracy


def split_validation(dataset: ImageDataset, recipe: Recipe) -> tuple[ImageDataset, ImageDataset | None]:
    """Split a recipe's training images into training and validation; None without early stopping.

    The split depends only on seed and labels. About `validation_fraction` of each class is held out: at least
    one image of a class with two, none of a class with one. Both parts keep the order.
    """
    section = recipe.training.early_stopping
    if section is None:
        return dataset, None
    seed = derive_seed("validation", recipe.training.seed)
    rest, held = stratified_split(dataset.labels, section.validation_fraction, seed)
    first = np.array(dataset.store.first_rows())[dataset.rows]
    rest = rest[~np.isin(first[rest], first[held])]  # copies of an image never fall on both sides
    if not len(held):
        raise DataError("training.early_stopping: each class has a single training image, expected null")
    return dataset.subset(rest), dataset.subset(held)


def split_neighbors(dataset: ImageDataset, recipe: Recipe) -> tuple[ImageDataset, ImageDataset]:
    """Draw at most `IMAGES` labelled images; return those that vote and those that are classified.

    Half of each class votes, and so does a class's only image. The draw depends only on seed and labels.
    """
    known, seed = np.flatnonzero(dataset.labels >= 0), derive_seed("neighbors", recipe.training.seed)
    drawn = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed)).numpy()
    rows = np.sort(known[drawn[:IMAGES]])
    voters, queries = stratified_split(dataset.labels[rows], 0.5, seed)
    if not len(queries):
        raise DataError("training.knn_every: found no two images of one class, expected null")
    return dataset.subset(rows[voters]), dataset.subset(rows[queries])


class Monitor:
    """Evaluates the live objective every few epochs, and keeps the best state for early stopping.

    With `training.early_stopping` it measures the classifier (encoder and centers, before a method's final
    step) on the validation split, and `best` is the best state, the earlier one of equals; otherwise kNN.
    """

    def __init__(
        self, training: ImageDataset, validation: ImageDataset | None, recipe: Recipe, stepper: Stepper
    ) -> None:
        self.best: dict[str, Any] | None = None
        self.waited = 0
        self._recipe, self._stepper = recipe, stepper
        self._stopping = section = recipe.training.early_stopping
        self._every = (recipe.training.knn_every or 1) if section is None else section.every
        parts = split_neighbors(training, recipe) if validation is None else (validation,)
        self._parts = [part.with_candidates(None) for part in parts]

    @property
    def should_stop(self) -> bool:
        """Whether early stopping ends the training now."""
        return self._stopping is not None and self.waited >= self._stopping.patience

    def due(self, done: int) -> bool:
        """Whether to evaluate after `done` steps: every few epochs and at the end."""
        return done % (self._every * self._stepper.steps_per_epoch) == 0 or done == self._stepper.steps

    def evaluate(self, done: int) -> dict[str, float]:
        """Return accuracies in percent after `done` steps, for the record; all ranks must call it."""
        objective, ema = self._stepper.objective, self._stepper.ema
        with nullcontext() if ema is None else ema.applied():
            found = self._stepper.ranks.broadcast_from_first(lambda: self._measure(objective))
            if self._stopping is None:
                return {f"knn_{name}": value for name, value in found.items()}
            value = found[self._stopping.metric]
            if self.best is None or self._score(value) > self._score(self.best["value"]):
                weights = {name: tensor.cpu().clone() for name, tensor in released_state(objective).items()}
                self.best, self.waited = {"step": done, "value": value, "weights": weights}, 0
            else:
                self.waited += 1
        return {f"validation_{name}": value for name, value in found.items()}

    def _score(self, value: float) -> float:
        assert self._stopping is not None
        return -math.inf if math.isnan(value) else -value if self._stopping.metric == "loss" else value

    def _measure(self, objective: Objective) -> dict[str, float]:
        encoded = [encode(objective.encoder, part, self._recipe) for part in self._parts]
        if self._stopping is None:
            (bank, classes), (features, labels) = encoded
            count = self._parts[0].num_classes
            found = knn_predict(bank, classes, features, num_classes=count)
            return _accuracies(found, labels, count)
        centers, ((features, labels),) = objective.centers(), encoded
        assert centers is not None  # the recipe's schema allows no other objective
        logits = F.linear(features, centers.weight.float(), centers.bias.float()).cpu()
        loss = float(F.cross_entropy(logits, labels))
        return {**_accuracies(logits.argmax(dim=1), labels, logits.shape[1]), "loss": loss}

    def state(self) -> dict[str, Any]:
        """Return the state to save."""
        return {"best": self.best, "waited": self.waited}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.best, self.waited = state["best"], int(state["waited"])


def encode(
    encoder: nn.Module, images: ImageDataset, recipe: Recipe, progress: Callable[[int], object] = int
) -> tuple[Tensor, Tensor]:
    """Return features `[N, D]` on the encoder's device and labels `[N]` on the host."""
    batches = eval_images(
        *(images, recipe.views.eval, recipe.data.mean, recipe.data.std),
        batch_size=min(256, recipe.training.batch_size),
        device=next(encoder.parameters()).device,
        workers=recipe.views.workers,
    )
    encoded = []
    with evaluating(encoder), torch.no_grad():
        for x, labels in batches:
            # the uncompiled forward: another batch size would be compiled for a single pass
            encoded.append((type(encoder).forward(encoder, x).float(), labels.cpu()))
            progress(len(labels))
    return torch.cat([features for features, _ in encoded]), torch.cat([labels for _, labels in encoded])


def start_from_means(objective: Objective, images: ImageDataset, recipe: Recipe, ranks: Ranks) -> None:
    """Initialise the classifier with each class's mean features, scaled to unit length."""
    assert isinstance(objective, Classify)  # the recipe's schema allows no other
    with show_images("class means", len(images)) as progress:
        features, labels = encode(objective.encoder, images, recipe, progress)
    weight = l2_normalize(class_means(features, labels.to(features.device), images.num_classes))
    begun = {"weight": weight, "bias": 0 * weight[:, 0], "running_norm": features.norm(dim=1).mean()}
    objective.classifier.load_state_dict(begun, strict=False)  # not all heads have a bias or `running_norm`
    ranks.average_([*objective.classifier.state_dict().values()])


def _accuracies(predictions: Tensor, labels: Tensor, num_classes: int) -> dict[str, float]:
    """Return accuracy and balanced accuracy in percent, the latter over the classes that have images."""
    hits = (predictions == labels).double()
    recall = class_means(hits[:, None], labels, num_classes)[torch.unique(labels)]
    return {"accuracy": 100 * float(hits.mean()), "balanced_accuracy": 100 * float(recall.mean())}
