"""A split of the configured data: read from its source, then holdout, long tail, few and partial labels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoo.data import readers
from zoo.data.config import DataConfig, Folder, Holdout, ListFiles, Memory, Source, TorchvisionSource
from zoo.data.dataset import ImageDataset, Split
from zoo.data.image_ids import find_listed
from zoo.data.long_tail import draw_candidates, select_long_tail, select_subset, stratified_split
from zoo.data.memory import MemoryImages, Root
from zoo.errors import DataError
from zoo.files import exists, is_dir
from zoo.release.schema import CLASS_NAMES, invalid_class_name
from zoo.release.tensors import ImageList

_READERS: dict[str, Callable[[Any, Split, Path | None], ImageDataset]] = {
    "digits": readers.open_digits,
    "cifar10": readers.open_cifar,
    "cifar100": readers.open_cifar,
    "folder": readers.open_folder,
    "list": readers.open_list,
    "parquet": readers.open_parquet,
    "hub": readers.open_hub,
}


def open_dataset(
    config: DataConfig,
    split: Split,
    root: Root,
    listed: ImageList | None = None,
    *,
    unlabelled: bool = False,
) -> ImageDataset:
    """Open one split of the configured data.

    Rows are in the order of the source. Long tail, few labels and partial labels apply to `train` only, in
    this order. Class names may hold some that no training image has; objectives that learn classes refuse
    such data.

    Args:
        config: what to read.
        split: `train` or `test`.
        root: folder of the data, or the images of a program; None for embedded data or absolute paths.
        listed: the images that a release was trained on, searched by their content where others are drawn.
        unlabelled: take images without classes too.

    Raises:
        DataError: naming what is missing or malformed; `OtherImages` where not all listed ones are there.
    """
    source = config.source if listed is None else from_archive(config.source, root)
    found = _read(source, split if config.holdout is None else "train", root)
    whole = found.subset(_rows_of(config.holdout, found.labels, split))
    names, tail, part, partial = found.class_names, config.long_tail, config.subset, config.partial_labels
    if split == "test":
        tail = part = partial = None
    if len(whole) == 0:
        raise DataError(f"{source.kind}: the {split} split has no images")
    if not names and (not unlabelled or tail or part or partial):
        raise DataError(
            f"{source.kind}: the {len(whole):,} images of the {split} split have no labels, which are needed "
            "here: CLASS/IMAGE, in Python (image, label) for each; moco needs none: --set 'evaluation=[]'"
        )
    whole.settings = {
        "name": data_name(source, root),
        "source": source.kind,
        "split": split,
        "long_tail": tail.model_dump() if tail else None,
        "partial_labels": None,
        **({"holdout": config.holdout.model_dump()} if config.holdout else {}),
        **({"content": source.sha256} if isinstance(source, Memory) else {}),
        **found.settings,
        **({"subset": part.model_dump()} if part else {}),  # releases of before there was one lack the key
    }
    dataset = whole
    try:
        if tail is not None:
            dataset = dataset.subset(select_long_tail(tail, dataset.labels, len(names), names))
        if part is not None:
            dataset = dataset.subset(select_subset(part, dataset.labels, len(names), names))
    except DataError:  # a list asks for no tail of other images than its own
        if listed is None:
            raise
        dataset = whole
    if listed is not None:
        dataset = find_listed(dataset, whole, listed)
    if partial is None:
        return dataset
    origin = partial.model_dump()
    if partial.kind == "grouped":
        origin["groups"] = len(partial.groups)  # the names are the recipe's; cards and metrics need no list
    return dataset.with_candidates(draw_candidates(partial, dataset.labels, names), origin=origin)


def _read(source: Source, split: Split, root: Root) -> ImageDataset:
    """Return a split of a source, all of whose names a release can record."""
    if not isinstance(source, Memory):
        found = _READERS[source.kind](source, split, Path(root) if isinstance(root, str | Path) else None)
    elif isinstance(root, MemoryImages) and split in root.sets:
        found = root.sets[split]
    else:
        raise DataError(f"{source.name}: found no images to {split} on, expected them in Python as data")
    names = [data_name(source, root), *found.class_names]
    if (place := invalid_class_name(names)) is not None:
        what = "class" if place else "folder"
        raise DataError(f"{source.kind}: found a {what} called {names[place][:80]!r}, expected {CLASS_NAMES}")
    return found


def _rows_of(holdout: Holdout | None, labels: NDArray[np.int64], split: Split) -> NDArray[np.int64]:
    """Return the rows of a split, in order: all, or those in or out of what is held out, class by class."""
    fraction = holdout.fraction if holdout else split == "test"
    if not 0 < fraction < 1 or (labels < 0).any():  # without labels there is no share of each class
        return np.arange(len(labels) if (split == "test") == (fraction == 1) else 0)
    from torch import from_numpy

    assert holdout is not None
    parts = stratified_split(from_numpy(labels.copy()), fraction, holdout.seed)
    return parts[split == "test"].numpy()


def data_name(source: Source, root: Root) -> str:
    """Return a name for the data that tells two folders, or two label columns of one, apart."""
    if source.kind in ("digits", "cifar10", "cifar100"):
        return source.kind
    if isinstance(source, Memory) or isinstance(root, MemoryImages):
        return str(getattr(source, "name", "images"))
    words = [Path(root).resolve().name if root is not None else source.kind]
    if source.kind == "hub":
        words = [source.repo, source.config or ""]
    return " ".join(filter(None, (*words, getattr(source, "label", None))))


def has_training_split(config: DataConfig, root: Root) -> bool:
    """Return whether there are training images too, and not a labelled test part alone."""
    if config.holdout is not None:
        return config.holdout.fraction < 1
    if isinstance(root, MemoryImages):
        return "train" in root.sets
    source = config.source
    return not isinstance(source, Folder | ListFiles) or exists(Path(root or "", source.train))


def as_archive(source: Source) -> Source:
    """Return the source of CIFAR for a recipe that names its parquet files; others as they are."""
    kind = next((kind for kind in readers.CIFAR if source == readers.cifar_parquet(kind)), None)
    return source if kind is None else TorchvisionSource.model_validate({"kind": kind})


def from_archive(source: Source, root: Root) -> Source:
    """Return CIFAR's archive where it lies in a folder in place of the parquet files that `source` names.

    The images are the same, their order is not: for those whose content is listed.
    """
    found = as_archive(source)
    if found is source or not isinstance(root, str | Path) or readers.cifar_shards(Path(root)):
        return source
    return found if is_dir(readers.cifar_archive(found.kind, Path(root))) else source
