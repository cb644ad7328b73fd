"""What a training looks at from time to time: the same images, as a release would see them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from zoo.data import ImageDataset, eval_images
from zoo.ranks import Ranks
from zoo.recipe import Recipe
from zoo.training.step import Stepper

_BATCH = 256
_KEEP = 256 << 20  # bytes of decoded images on the device, the same ones for every look; more are read anew


def is_due(every: int, done: int, stepper: Stepper) -> bool:
    """Whether to look after `done` steps: every so many epochs, and at the end."""
    return done % (every * stepper.steps_per_epoch) == 0 or done == stepper.steps


class Looked:
    """Training images in the recipe's evaluation view; they draw no random number.

    Args:
        dataset: the images.
        recipe: the evaluation view, and how many images fit into memory at once.
        device: of the training.
    """

    def __init__(self, dataset: ImageDataset, recipe: Recipe, device: torch.device) -> None:
        self._dataset, self._recipe, self._device = dataset.with_candidates(None), recipe, device
        self._kept: list[tuple[Tensor, Tensor]] = []

    def batches(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Yield images `[B, 3, S, S]` on the device and their labels `[B]`.

        Raises:
            DataError: when more images cannot be read than training may leave out.
        """
        if self._kept or not len(self._dataset):
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


def summed(sums: Tensor, ranks: Ranks) -> Tensor:
    """Add up all ranks' sums on the host, on each in the same order; all of them have to ask."""
    return sums.cpu() if ranks.alone else ranks.everywhere(sums).cpu().sum(dim=0)


def accuracies(hits: Tensor, seen: Tensor) -> dict[str, float]:
    """Return `accuracy` and `balanced_accuracy` in percent; of each class `[C]` right answers and images."""
    present = seen > 0
    return {
        "accuracy": 100 * float(hits.sum() / seen.sum()),
        "balanced_accuracy": 100 * float((hits[present] / seen[present]).mean()),
    }
