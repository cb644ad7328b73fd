"""PaCo's whole training on long-tailed CIFAR-100, 400 epochs of 10,847 images, capture included: GPU only.

The target is a time, so there is no peer: the authors' script takes 46 to 62 minutes by estimate. One row is
float32 as the recipe has it, the other as `zoo sweep cifar100_lt` trains it. Images are synthetic; nothing of
what a step costs depends on what they show.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tests.benchmarks.epoch import CLASSES, RECIPE, Photos, sweeps
from tests.benchmarks.harness import Row, gate
from zoo.data import ImageDataset
from zoo.recipe import Recipe
from zoo.training import RunFolder, build_objective, train

MINUTES = 2.5
COUNTS = [int(500 * 0.01 ** (c / (CLASSES - 1))) for c in range(CLASSES)]  # 10,847 images


class Repeated(Photos):
    """As many images as rows, of few different ones."""

    def name(self, row: int) -> str:
        return str(row)

    def read(self, row: int) -> Image.Image:
        return super().read(row % len(self.arrays))


def rows(device: torch.device, changes: tuple[str, ...] = ()) -> Iterator[Row]:
    """Time runs as `zoo pretrain` does them, from building the model to the last checkpoint."""
    if device.type != "cuda" and not changes:
        return
    labels = np.repeat(np.arange(CLASSES), COUNTS)
    dataset = ImageDataset(Repeated(256), labels, [str(c) for c in range(CLASSES)], settings={"name": "p"})
    for chosen in (["training.compile=reduce-overhead"], sweeps()):
        yield _row(dataset, [*chosen, f"training.device={device.type}", *changes])


def _row(dataset: ImageDataset, changes: list[str]) -> Row:
    recipe = Recipe.load(RECIPE, changes)
    section = recipe.training
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run = RunFolder(Path(folder))
        trained = train(build_objective(recipe, dataset), dataset, recipe, run, resume=False)
        minutes = (time.perf_counter() - began) / 60
        losses = [row["loss"] for row in run.rows()]
    learned = gate("loss at the end, of its first row's", losses[-1] / losses[0], 0.9)
    return Row(
        f"{section.epochs}-epoch PaCo-R32 CIFAR-100-LT, {len(dataset):,} images, {section.precision}",
        "the time aimed at",
        minutes / MINUTES,
        1.0,
        f"{minutes:.2f} min",
        f"{MINUTES} min",
        learned,
        at_most=True,
        note=f"{', '.join(changes)}; {trained.images / trained.seconds:,.0f} images/s",
    )
