"""Periodic evaluation on training images: early stopping, and kNN accuracy for objectives without labels.

What is evaluated is what would be released: the EMA of the weights if there is one, in the evaluation view.
Nothing here draws a random number or changes the objective. Rank 0 evaluates for all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.data import ImageDataset, eval_images
from zoo.data.long_tail import stratified_split
from zoo.errors import DataError
from zoo.functional import knn_predict
from zoo.modules import APART, KeyQueue, evaluating
from zoo.objectives import Objective
from zoo.recipe import Recipe
from zoo.seeding import derive_seed

if TYPE_CHECKING:
    from zoo.training.step import Stepper

IMAGES = 10_000
"""Most training images of the kNN accuracy."""
K, TAU = 20, 0.07
"""Neighbours and temperature of their votes, those of the protocol `knn`."""
_BATCH = 256
_KEEP = 256 << 20  # bytes of decoded images on the device; more are decoded again for every evaluation


def split_validation(dataset: ImageDataset, recipe: Recipe) -> tuple[ImageDataset, ImageDataset | None]:
    """Return the training and the validation part of a recipe's training images; None without early stopping.

    A function of the recipe's seed and of the labels. Of each class about `validation_fraction` is held out:
    at least one image of two, none of a class of one. Both parts keep the order of `dataset`.

    Raises:
        DataError: if no class has two images.
    """
    section = recipe.training.early_stopping
    if section is None:
        return dataset, None
    labels = torch.from_numpy(dataset.labels.copy())
    seed = derive_seed("validation", recipe.training.seed)
    rest, held = stratified_split(labels, section.validation_fraction, seed)
    if not len(held):
        raise DataError(
            f"training.early_stopping: each of the {dataset.num_classes} classes has a single training "
            "image, so none can be held out; expected null"
        )
    return dataset.subset(rest.numpy()), dataset.subset(held.numpy())


def split_neighbors(dataset: ImageDataset, recipe: Recipe) -> tuple[ImageDataset, ImageDataset]:
    """Draw at most `IMAGES` labelled images; return those that vote and those that are classified by them.

    Half of each class votes, and so does the only image of a class. A function of the recipe's seed and of
    the labels.

    Raises:
        DataError: if no two of the images are of one class.
    """
    seed = derive_seed("neighbors", recipe.training.seed)
    labels = torch.from_numpy(dataset.labels.copy())
    known = (labels >= 0).nonzero().flatten()
    drawn = torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))
    rows = known[drawn[:IMAGES]].sort().values
    voters, queries = stratified_split(labels[rows], 0.5, seed)
    if not len(queries):
        raise DataError(
            "training.knn_every: found no two training images of one class, by which it measures; "
            "expected null"
        )
    return dataset.subset(rows[voters].numpy()), dataset.subset(rows[queries].numpy())


class Monitor:
    """Evaluates the live objective every few epochs, and keeps the best state where the recipe stops early.

    With `training.early_stopping` it measures the classifier (encoder and centers, before a method's closing
    step) on the validation part; with `training.knn_every` kNN accuracy. No recipe has both.

    Args:
        training: images of the training part.
        validation: held out; None without early stopping.
        recipe: with either of the two.
        stepper: has the live state.
        device: of the training.

    Attributes:
        best: the best state so far, of equal ones the earlier, as `{"step", "value", "weights"}`; None before
            the first evaluation, and always without early stopping.
        waited: evaluations since then.
    """

    def __init__(
        self,
        training: ImageDataset,
        validation: ImageDataset | None,
        recipe: Recipe,
        stepper: Stepper,
        device: torch.device,
    ) -> None:
        self.best: dict[str, Any] | None = None
        self.waited = 0
        self._recipe, self._stepper, self._device = recipe, stepper, device
        self._stopping = section = recipe.training.early_stopping
        self._every = (recipe.training.knn_every or 1) if section is None else section.every
        parts = split_neighbors(training, recipe) if validation is None else (validation,)
        self._parts = [part.with_candidates(None) for part in parts]
        self._kept: dict[int, list[tuple[Tensor, Tensor]]] = {}

    @property
    def over(self) -> bool:
        """Whether early stopping ends the training here."""
        return self._stopping is not None and self.waited >= self._stopping.patience

    def due(self, done: int) -> bool:
        """Whether to evaluate after `done` steps: every few epochs and at the end."""
        return done % (self._every * self._stepper.steps_per_epoch) == 0 or done == self._stepper.steps

    def evaluate(self, done: int) -> dict[str, float]:
        """Return what to record of the state after `done` steps, accuracies in percent; all ranks call it.

        Raises:
            DataError: when an image cannot be read.
        """
        objective, ema = self._stepper.objective, self._stepper.ema
        prefix = "knn" if self._stopping is None else "validation"
        with nullcontext() if ema is None else ema.applied():
            with evaluating(objective.encoder), torch.no_grad():
                found = self._stepper.ranks.from_first(lambda: self._measure(objective))
            if self._stopping is not None:
                self._compare(found[self._stopping.metric], self._stopping.metric, objective, done)
        return {f"{prefix}_{name}": value for name, value in found.items()}

    def _measure(self, objective: Objective) -> dict[str, float]:
        encoded = [_encode(objective, self._batches(part)) for part in range(len(self._parts))]
        if self._stopping is None:
            (bank, classes), (features, labels) = encoded
            return neighbor_accuracy(bank, classes, features, labels, self._parts[0].num_classes)
        centers = objective.centers()
        assert centers is not None  # the recipe's schema allows no other objective
        ((features, labels),) = encoded
        logits = F.linear(features, centers.weight.float(), centers.bias.float()).cpu()
        loss = float(F.cross_entropy(logits, labels))
        return {**_accuracies(logits.argmax(dim=1), labels, logits.shape[1]), "loss": loss}

    def _compare(self, value: float, metric: str, objective: Objective, done: int) -> None:
        def score(value: float) -> float:
            return -math.inf if math.isnan(value) else -value if metric == "loss" else value

        if self.best is None or score(value) > score(self.best["value"]):
            weights = {name: tensor.cpu().clone() for name, tensor in _released(objective).items()}
            self.best, self.waited = {"step": done, "value": value, "weights": weights}, 0
        else:
            self.waited += 1

    def _batches(self, part: int) -> Iterable[tuple[Tensor, Tensor]]:
        """Return images `[B, 3, S, S]` on the device with their labels `[B]`, kept where there is room."""
        if part in self._kept:
            return self._kept[part]
        recipe, section, dataset = self._recipe, self._recipe.training, self._parts[part]
        batches = eval_images(
            dataset,
            recipe.views.eval,
            recipe.data.mean,
            recipe.data.std,
            batch_size=min(_BATCH, section.batch_size // section.accumulate),
            device=self._device,
            workers=recipe.views.workers,
            split="train",
        )
        if len(dataset) * 3 * 4 * recipe.views.eval.size**2 > _KEEP:
            return batches
        return self._kept.setdefault(part, list(batches))

    def state(self) -> dict[str, Any]:
        """Return all that `load_state` needs."""
        return {"best": self.best, "waited": self.waited}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.best, self.waited = state["best"], int(state["waited"])


def stopping_facts(
    recipe: Recipe, best: Mapping[str, Any], images: int, done: int, steps_per_epoch: int
) -> dict[str, Any]:
    """Return what a release records of early stopping.

    Args:
        recipe: with `training.early_stopping`.
        best: `Monitor.best`, the state that is released.
        images: in the validation part.
        done: steps of the training.
        steps_per_epoch: of the training.
    """
    section = recipe.training.early_stopping
    assert section is not None
    return {
        "validation_fraction": section.validation_fraction,
        "validation_images": images,
        "metric": section.metric,
        "best_value": round(best["value"], 4) if math.isfinite(best["value"]) else None,
        "best_epoch": best["step"] // steps_per_epoch,
        "stopped_at_epoch": done // steps_per_epoch,
        "chosen_on": "the validation part, put aside from the training images",
    }


def neighbor_accuracy(
    bank: Tensor, bank_labels: Tensor, features: Tensor, labels: Tensor, num_classes: int
) -> dict[str, float]:
    """Return `accuracy` and `balanced_accuracy` of kNN in percent; NaN where features are not finite.

    Args:
        bank: features that vote `[N, D]`.
        bank_labels: their classes `[N]`.
        features: to be classified `[M, D]`.
        labels: their classes `[M]`.
        num_classes: how many there are.
    """
    if not (bank.isfinite().all() and features.isfinite().all()):
        return {"accuracy": math.nan, "balanced_accuracy": math.nan}
    found = knn_predict(bank, bank_labels, features, k=K, tau=TAU, num_classes=num_classes)
    return _accuracies(found.predictions, labels, num_classes)


def _encode(objective: Objective, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return features `[N, D]` on the device and labels `[N]` on the host."""
    features, labels = list[Tensor](), list[Tensor]()
    for images, targets in batches:
        # `forward`, not the compiled call: another batch size would be compiled for a single pass
        features.append(objective.encoder.forward(images).float())
        labels.append(targets.cpu())
    return torch.cat(features), torch.cat(labels)


def _accuracies(predictions: Tensor, labels: Tensor, num_classes: int) -> dict[str, float]:
    """Return both accuracies in percent, the balanced one over the classes that have images."""
    hits = torch.bincount(labels[predictions == labels], minlength=num_classes).double()
    seen = torch.bincount(labels, minlength=num_classes).double()
    return {
        "accuracy": 100 * float(hits.sum() / seen.sum()),
        "balanced_accuracy": 100 * float((hits / seen)[seen > 0].mean()),
    }


def _released(objective: Objective) -> dict[str, Tensor]:
    """Return the state that a release is made of: without queues, key encoders and teachers."""
    others = tuple(
        f"{name}." for name, module in objective.named_modules() if isinstance(module, (*APART, KeyQueue))
    )
    return {name: value for name, value in objective.state_dict().items() if not name.startswith(others)}
