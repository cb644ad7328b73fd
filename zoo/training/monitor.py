"""Evaluation while training: early stopping on held-out images, and nearest neighbours without a classifier.

What is looked at is what would be released: the EMA of the weights if there is one, in the evaluation view.
Nothing here draws a random number or changes the objective. Rank 0 looks, and all ranks get its figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from zoo.data import ImageDataset, eval_images
from zoo.data.stratified import stratified_split
from zoo.errors import DataError
from zoo.functional import knn_predict
from zoo.modules import APART, KeyQueue, evaluating
from zoo.objectives import Objective
from zoo.recipe import Recipe
from zoo.recipe.sections import EarlyStoppingSection
from zoo.seeding import derive_seed
from zoo.training.step import Stepper

IMAGES = 10_000
"""Training images whose neighbours are looked at, at most."""
K, TAU = 20, 0.07
"""Neighbours that vote and the temperature of their votes, those of the protocol `knn`."""
_BATCH = 256
_KEEP = 256 << 20  # bytes of decoded images on the device, the same ones for every look; more are read anew


class Parts(NamedTuple):
    """The training images of a recipe.

    Attributes:
        training: of which batches, class counts and candidates are.
        validation: held out for early stopping; None where the recipe has none.
    """

    training: ImageDataset
    validation: ImageDataset | None


def split_validation(dataset: ImageDataset, recipe: Recipe) -> Parts:
    """Divide a recipe's training images; a function of its seed and of their labels.

    Of each class about `validation_fraction` is held out: at least one image where there are two, none of a
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


class Halves(NamedTuple):
    """Training images whose classes are known: those that vote, and those that are voted on."""

    voters: ImageDataset
    queries: ImageDataset


def split_neighbors(dataset: ImageDataset, recipe: Recipe) -> Halves | None:
    """Draw the images to look at, and halve them class by class; None where the recipe does not look.

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
    voters, queries = stratified_split(labels[rows], 0.5, derive_seed("neighbors", section.seed))
    if not len(queries):
        found = "no class" if not len(known) else "no two of one class"
        raise DataError(
            f"training.knn_every: measures by the classes of the training images, of which {found} is known; "
            "expected null"
        )
    return Halves(dataset.subset(rows[voters].numpy()), dataset.subset(rows[queries].numpy()))


class Images:
    """Training images in the recipe's evaluation view, kept in memory where there is room."""

    def __init__(self, dataset: ImageDataset, recipe: Recipe, device: torch.device) -> None:
        self._dataset, self._recipe, self._device = dataset.with_candidates(None), recipe, device
        self._kept: list[tuple[Tensor, Tensor]] = []

    def batches(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Yield images `[B, 3, S, S]` on the device and their labels `[B]`.

        Raises:
            DataError: for images that cannot be read.
        """
        if self._kept:
            return self._kept
        recipe, section = self._recipe, self._recipe.training
        batches = eval_images(
            self._dataset,
            recipe.views.eval,
            recipe.data.mean,
            recipe.data.std,
            batch_size=min(_BATCH, section.batch_size // section.accumulate),
            device=self._device,
            workers=recipe.views.workers,
            split="train",
        )
        if len(self._dataset) * 3 * 4 * recipe.views.eval.size**2 <= _KEEP:
            self._kept = list(batches)
            return self._kept
        return batches


class Monitor:
    """Looks at the live objective from time to time.

    Args:
        stepper: has the live state.
        every: epochs between looks; there is one at the end in any case.
    """

    def __init__(self, stepper: Stepper, every: int) -> None:
        self._stepper, self._every = stepper, every

    @property
    def over(self) -> bool:
        """Whether training ends here."""
        return False

    def due(self, done: int) -> bool:
        """Whether to look after `done` steps."""
        return done % (self._every * self._stepper.steps_per_epoch) == 0 or done == self._stepper.steps

    def look(self, done: int) -> dict[str, float]:
        """Return what to record of the state after `done` steps; all ranks have to look.

        Raises:
            DataError: for images that cannot be read.
        """
        objective, ema = self._stepper.objective, self._stepper.ema
        with nullcontext() if ema is None else ema.applied():
            with evaluating(objective.encoder), torch.no_grad():
                found = self._stepper.ranks.from_first(lambda: self._measure(objective))
            return self._take(objective, found, done)

    def _measure(self, objective: Objective) -> dict[str, float]:
        raise NotImplementedError

    def _take(self, objective: Objective, found: dict[str, float], done: int) -> dict[str, float]:
        raise NotImplementedError


class Neighbors(Monitor):
    """Lets training images vote on the classes of others, which the training itself never learns."""

    def __init__(self, images: Halves, recipe: Recipe, stepper: Stepper, device: torch.device) -> None:
        super().__init__(stepper, recipe.training.knn_every or 1)
        self._voters, self._queries = (Images(half, recipe, device) for half in images)
        self._classes = images.voters.num_classes

    def _measure(self, objective: Objective) -> dict[str, float]:
        """Return accuracies in percent; nan where features are not finite."""
        (bank, classes), (features, labels) = (
            _encode(objective, images) for images in (self._voters, self._queries)
        )
        hits = torch.full((self._classes,), torch.nan, dtype=torch.float64)
        if bank.isfinite().all() and features.isfinite().all():
            predicted = knn_predict(bank, classes, features, k=K, tau=TAU, num_classes=self._classes)
            hits = torch.bincount(labels[predicted.predictions == labels], minlength=self._classes)
        return _accuracies(hits, torch.bincount(labels, minlength=self._classes))

    def _take(self, objective: Objective, found: dict[str, float], done: int) -> dict[str, float]:
        return {f"knn_{name}": value for name, value in found.items()}


class Best(NamedTuple):
    """The best state so far.

    Attributes:
        step: after which it was there.
        value: of the recipe's metric.
        weights: all of the objective's state but queue and key encoder, on the host.
    """

    step: int
    value: float
    weights: dict[str, Tensor]


class EarlyStopping(Monitor):
    """Looks at the validation part, and keeps the best state: of equals the earlier.

    Images are classified as a release would: by encoder and centers. A method that changes the trained
    classifier afterwards (`zoo.training.post_hoc`) does so after this.

    Attributes:
        best: so far; None before the first look.
        waited: looks without a better one since then.
    """

    def __init__(
        self,
        section: EarlyStoppingSection,
        validation: ImageDataset,
        recipe: Recipe,
        stepper: Stepper,
        device: torch.device,
    ) -> None:
        super().__init__(stepper, section.every)
        self.best: Best | None = None
        self.waited = 0
        self._section, self._count = section, len(validation)
        self._images = Images(validation, recipe, device)

    @property
    def over(self) -> bool:
        """Whether training ends here."""
        return self.waited >= self._section.patience

    def _measure(self, objective: Objective) -> dict[str, float]:
        """Return accuracies in percent and `loss`, the mean cross-entropy in nats."""
        centers = objective.centers()
        assert centers is not None  # the recipe's schema allows no other objective
        weight, bias = centers.weight.float(), centers.bias.float()
        hits, seen, loss = torch.zeros(len(weight)), torch.zeros(len(weight)), 0.0
        for images, targets in self._images.batches():
            labels = targets.to(weight.device)
            # not through a compiled call: a training looks too seldom to compile for it
            logits = F.linear(objective.encoder.forward(images).float(), weight, bias)
            right = labels[logits.argmax(dim=1) == labels]
            hits += torch.bincount(right, minlength=len(weight)).cpu()
            seen += torch.bincount(labels, minlength=len(weight)).cpu()
            loss += float(F.cross_entropy(logits, labels, reduction="sum"))
        return {**_accuracies(hits, seen), "loss": loss / float(seen.sum())}

    def _take(self, objective: Objective, found: dict[str, float], done: int) -> dict[str, float]:
        value = found[self._section.metric]
        if self.best is None or self._score(value) > self._score(self.best.value):
            weights = {name: value.cpu().clone() for name, value in _released(objective).items()}
            self.best, self.waited = Best(done, value, weights), 0
        else:
            self.waited += 1
        return {f"validation_{name}": value for name, value in found.items()}

    def _score(self, value: float) -> float:
        """Return what is larger for the better of two; nothing is worse than nan."""
        if math.isnan(value):
            return -math.inf
        return -value if self._section.metric == "loss" else value

    def apply(self) -> None:
        """Put the best state into the objective."""
        assert self.best is not None  # there is a look at the end
        self._stepper.objective.load_state_dict(self.best.weights, strict=False)

    def facts(self, done: int) -> dict[str, Any]:
        """Return what the release says about it; `done` steps were behind when training ended."""
        assert self.best is not None
        return stopping_facts(self._section, self.best, self._count, done, self._stepper.steps_per_epoch)

    def state(self) -> dict[str, Any]:
        """Return all that `load_state` needs."""
        return {"best": None if self.best is None else self.best._asdict(), "waited": self.waited}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.best = None if state["best"] is None else Best(**state["best"])
        self.waited = int(state["waited"])


def stopping_facts(
    section: EarlyStoppingSection, best: Best, images: int, done: int, steps_per_epoch: int
) -> dict[str, Any]:
    """Return what a release says about early stopping.

    Args:
        section: the recipe's `training.early_stopping`.
        best: the state that is released.
        images: of the validation part.
        done: steps that were behind when training ended.
        steps_per_epoch: batches in one pass over the data.
    """
    return {
        "validation_fraction": section.validation_fraction,
        "validation_images": images,
        "metric": section.metric,
        "best_value": round(best.value, 4) if math.isfinite(best.value) else None,
        "best_epoch": best.step // steps_per_epoch,
        "stopped_at_epoch": done // steps_per_epoch,
        "chosen_on": "the validation part, put aside from the training images",
    }


def _encode(objective: Objective, images: Images) -> tuple[Tensor, Tensor]:
    """Return features `[N, D]` on the device and labels `[N]` on the host."""
    features, labels = list[Tensor](), list[Tensor]()
    for batch, targets in images.batches():
        features.append(objective.encoder.forward(batch).float())  # not through a compiled call, as above
        labels.append(targets.cpu())
    return torch.cat(features), torch.cat(labels)


def _accuracies(hits: Tensor, seen: Tensor) -> dict[str, float]:
    """Return both accuracies in percent; of each class `[C]` right answers and images."""
    hits, seen = hits.double(), seen.double()
    present = seen > 0
    return {
        "accuracy": 100 * float(hits.sum() / seen.sum()),
        "balanced_accuracy": 100 * float((hits[present] / seen[present]).mean()),
    }


def _released(objective: Objective) -> dict[str, Tensor]:
    """Return the state that a release is made of, without the bulk of it: queue, key encoder, teachers."""
    others = tuple(
        f"{name}." for name, module in objective.named_modules() if isinstance(module, (*APART, KeyQueue))
    )
    return {name: value for name, value in objective.state_dict().items() if not name.startswith(others)}
