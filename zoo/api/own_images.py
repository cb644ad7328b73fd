"""A release's own images, out of whichever copy of its data set is at hand."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path

from zoo.data import DataConfig, ImageDataset, open_dataset
from zoo.data.contents import OtherImages, list_images
from zoo.data.dataset import Split
from zoo.data.elsewhere import from_archive
from zoo.image_list import ImageList
from zoo.release import Release
from zoo.training.progress import show_status


def source_here(release: Release, config: DataConfig, root: str | Path | None) -> DataConfig:
    """Return `config`, with the form that the data have in `root` where the release lists its images."""
    return from_archive(config, root) if release.images else config


def open_own(release: Release, config: DataConfig, split: Split, root: str | Path | None) -> ImageDataset:
    """Open a split of the data that a release names: its own images in their order, if they are there.

    Where they are listed and some are not there, it is other data, which is said and opened as it is.

    Raises:
        DataError: see `open_dataset`.
    """
    config = source_here(release, config, root)
    try:
        return open_dataset(config, split, root, release.images.get(split))
    except OtherImages as error:
        word = "trained" if split == "train" else "measured"
        warnings.warn(
            f"{release.name} was {word} on other images: {error}; what is measured now is of those here",
            stacklevel=2,
        )
        return open_dataset(config, split, root)


def list_splits(train_set: ImageDataset, test_set: ImageDataset | None) -> Mapping[str, ImageList]:
    """List the images that a release was trained and measured on; empty where `list_images` lists none."""
    if not train_set.has_copies:
        return {}
    with show_status("listing the images"):
        train = list_images(train_set)
        test = None if train is None or test_set is None else list_images(test_set)
    found = {"train": train, "test": test}
    return {split: each for split, each in found.items() if each is not None}
