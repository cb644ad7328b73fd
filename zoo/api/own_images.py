"""A release's own images, out of whichever copy of its data set is at hand."""

from __future__ import annotations

from collections.abc import Mapping

from zoo.data import DataConfig, ImageDataset, open_dataset
from zoo.data.dataset import Split
from zoo.data.image_ids import OtherImages, list_images
from zoo.data.memory import Root
from zoo.data.sources import from_archive
from zoo.errors import DataError
from zoo.image_list import ImageList
from zoo.release import Release


def open_own(release: Release, config: DataConfig, split: Split, root: Root) -> ImageDataset:
    """Open a split of the data that a release names: where it lists its images these, in their order.

    Raises:
        DataError: see `open_dataset`; where the images are listed also for a copy that lacks some of them, or
            whose classes have other names.
    """
    images = release.images
    if not images:
        return open_dataset(config, split, root)
    word = "trained" if split == "train" else "measured"
    try:
        found = open_dataset(from_archive(config, root), split, root, images.get(split))
    except OtherImages as error:
        raise DataError(
            f"{release.name} was {word} on other images: {error}. Data that are not its own are given as a "
            "spec, e.g. --data cifar100:DIR"
        ) from None
    if found.class_names != release.class_names:
        ours, theirs = (", ".join(names[:3]) for names in (found.class_names, release.class_names))
        raise DataError(
            f"{release.name} was {word} on these images with {len(release.class_names)} classes called "
            f"{theirs}, ..., found {len(found.class_names)} called {ours}, ..."
        )
    return found


def list_splits(train_set: ImageDataset, test_set: ImageDataset | None) -> Mapping[str, ImageList]:
    """List the images that a release was trained and measured on; empty where `list_images` lists none."""
    train = list_images(train_set)
    test = None if train is None or test_set is None else list_images(test_set)
    found = {"train": train, "test": test}
    return {split: each for split, each in found.items() if each is not None}
