"""What is settled before the first step: device, threads, batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

import torch

from zoo.data import ImageDataset, TrainLoader
from zoo.errors import RecipeError, did_you_mean
from zoo.modules import has_batchnorm
from zoo.objectives import Objective
from zoo.ranks import ALONE, Ranks
from zoo.recipe import Recipe
from zoo.recipe.sections import TrainingSection

LOG = logging.getLogger("zoo.training")
DEVICES: tuple[str, ...] = get_args(TrainingSection.model_fields["device"].annotation)
_FEW = 8  # images, of which BatchNorm's mean and variance are mostly chance


def pick_device(wanted: str, where: str = "training.device") -> torch.device:
    """Resolve a device by its word: "auto", "cpu" or "cuda".

    Args:
        wanted: the word.
        where: whose it is, for the error.

    Raises:
        RecipeError: for any other word, or if a GPU is asked for and there is none.
    """
    if not isinstance(wanted, str):
        raise RecipeError(f"{where}: found {wanted!r}, expected one of {', '.join(DEVICES)}.")
    if wanted not in DEVICES:
        hint = f".{did_you_mean(wanted, DEVICES)}"
        if wanted.startswith("cuda:"):
            hint = "; CUDA_VISIBLE_DEVICES chooses among several GPUs"
        raise RecipeError(f'{where}: found "{wanted}", expected one of {", ".join(DEVICES)}{hint}')
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise RecipeError(f'{where}: found "cuda", but torch sees no GPU here; use "auto" or "cpu"')
    return torch.device("cuda" if available and wanted != "cpu" else "cpu")


@contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Let torch compute with `count` threads inside the block; None leaves its default."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def place(objective: Objective, recipe: Recipe, device: torch.device) -> None:
    """Move an objective to the device and the memory format in which the recipe trains it."""
    layout = torch.channels_last if recipe.training.channels_last else torch.contiguous_format
    objective.to(device).to(memory_format=layout).train()


def open_loader(
    dataset: ImageDataset, recipe: Recipe, device: torch.device, ranks: Ranks = ALONE
) -> TrainLoader:
    """Prepare the recipe's training batches, of which each rank has its rows."""
    return TrainLoader(
        dataset,
        recipe.views,
        mean=recipe.data.mean,
        std=recipe.data.std,
        batch_size=recipe.training.batch_size,
        drop_last=recipe.training.drop_last,
        seed=recipe.training.seed,
        device=device,
        image_size=recipe.data.image_size,
        rank=ranks.rank,
        world_size=ranks.size,
        sampling=recipe.training.sampling,
    )


def require_batches(objective: Objective, images: int, recipe: Recipe, ranks: Ranks = ALONE) -> None:
    """Refuse batches that the ranks do not divide, and such as leave BatchNorm a single image.

    Warns of batches of a few images, and of such as are larger than the data.

    Raises:
        RecipeError: naming the batch size.
    """
    section, found = recipe.training, f"training.batch_size: found {recipe.training.batch_size}"
    batch = min(section.batch_size, images)
    last = 0 if section.drop_last else images % section.batch_size
    if batch % ranks.size or last % ranks.size:
        size = (
            f"a last batch of {last} of the {images} images" if last % ranks.size else f"batches of {batch}"
        )
        raise RecipeError(
            f"{found}, which makes {size}, expected what the {ranks.size} ranks divide; change it, or set "
            "training.drop_last: true"
        )
    batchnorm = has_batchnorm(objective)
    if batchnorm and 1 in (batch // ranks.size, last // ranks.size):
        raise RecipeError(
            f"{found}, which leaves BatchNorm a single image of the {images} images on {ranks.size} rank(s), "
            "expected at least two; change it, or set training.drop_last: true"
        )
    if section.drop_last or ranks.rank != 0:
        return
    few = batchnorm and 1 < last < min(_FEW, section.batch_size)
    if section.batch_size > images:
        LOG.warning(
            "training.batch_size %d is more than the %d training images: each step takes all of them%s",
            section.batch_size,
            images,
            "; to BatchNorm so few are mostly chance" if few else "",
        )
    elif few:
        LOG.warning(
            "the last batch of every epoch has %d of the %d images: to BatchNorm so few are mostly chance, "
            "and such steps can throw a training off; training.drop_last: true leaves them out",
            last,
            images,
        )
