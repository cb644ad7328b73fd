"""A split of the configured data: one function per kind of source, then holdout, long tail, few labels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoo.class_names import EXPECTED, first_unfit
from zoo.data.cifar import open_cifar, open_digits
from zoo.data.config import (
    DataConfig,
    Digits,
    Folder,
    Holdout,
    HubDataset,
    ListFiles,
    Memory,
    PartialLabels,
    Source,
    TorchvisionSource,
)
from zoo.data.dataset import ImageDataset, Split
from zoo.data.folder import open_folder
from zoo.data.hub import open_hub
from zoo.data.image_ids import are_listed, find_listed
from zoo.data.labels import OTHER_FORM, look_alike
from zoo.data.lists import open_list
from zoo.data.long_tail import draw_candidates, select_long_tail, select_subset
from zoo.data.memory import MemoryImages, Root
from zoo.data.stores import Opened
from zoo.data.table import open_parquet
from zoo.errors import DataError, is_printable
from zoo.files import is_dir, is_file
from zoo.image_list import ImageList

_OPENERS: dict[str, Callable[[Any, Split, Path | None], Opened]] = {
    "digits": open_digits,
    "cifar10": open_cifar,
    "cifar100": open_cifar,
    "folder": open_folder,
    "list": open_list,
    "parquet": open_parquet,
    "hub": open_hub,
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

    Rows are in the order of the source: files sorted by class and name for folders, by line for list files,
    by shard and row for parquet, the original files' for torchvision (for CIFAR see `zoo.data.cifar`). A long
    tail applies to `train` only and orders rows as `zoo.data.long_tail.select_long_tail` says; so do, for the
    rows it left, a subset, which keeps their order, and then partial labels.

    Class names may hold some that no training image has (a parquet file's metadata, a list's file of names).
    Objectives that learn classes refuse such data, naming them (`zoo.training.build_objective`), as a long
    tail does; others train on them. Probes never predict such a class: its test images count as wrong.

    Args:
        config: what to read.
        split: `train` or `test`.
        root: folder of the data, or the images of a program; None for embedded data or absolute paths.
        listed: the images that long tail and subset drew from the copy where a release was trained. Where
            they are not what is drawn from this copy, in order and pixel by pixel, they are searched in it.
        unlabelled: take images without classes too.

    Raises:
        DataError: naming what is missing or malformed, where it was looked for, and how to give it; for
            images without classes where these are needed; `OtherImages` where not all listed ones are there.
    """
    source = config.source
    found = _read(source, split if config.holdout is None else "train", root)
    tail, part, partial = (
        (config.long_tail, config.subset, config.partial_labels) if split == "train" else (None, None, None)
    )
    rows = _rows_of(config.holdout, found.labels, split)
    if len(rows) == 0:
        raise DataError(f"{source.kind}: the {split} split has no images")
    if not found.class_names and (not unlabelled or tail or part or partial):
        raise DataError(
            f"{source.kind}: the {len(rows):,} images of the {split} split have no labels, which are needed "
            "here: expected CLASS/IMAGE, in Python (image, label) for each. Without classes objectives such "
            "as moco can be trained, with --set 'evaluation=[]'"
        )
    settings: dict[str, Any] = {
        "name": data_name(source, root),
        "source": source.kind,
        "split": split,
        "long_tail": tail.model_dump() if tail else None,
        "partial_labels": None,
        **({"holdout": config.holdout.model_dump()} if config.holdout else {}),
        **({"content": source.sha256} if isinstance(source, Memory) else {}),
        **({"files": found.files} if found.files else {}),
        **found.origin,
        **({"subset": part.model_dump()} if part else {}),  # releases of before there was one lack the key
    }
    whole = ImageDataset(found.store, found.labels[rows], found.class_names, rows=rows, settings=settings)
    try:
        dataset, names = whole, whole.class_names
        if tail is not None:
            dataset = dataset.subset(select_long_tail(tail, dataset.labels, len(names), names))
        if part is not None:
            dataset = dataset.subset(select_subset(part, dataset.labels, len(names), names))
    except DataError:  # a list asks for no tail of other images than its own
        if listed is None:
            raise
        dataset = whole
    if listed is not None and not are_listed(dataset, listed):
        dataset = find_listed(whole, listed)
    return dataset if partial is None else _with_partial_labels(dataset, partial)


def _read(source: Source, split: Split, root: Root) -> Opened:
    """Read a split of a source, and make sure that the names which a release records can be written."""
    folder = Path(root) if isinstance(root, str | Path) else None
    if not isinstance(source, Memory):
        found = _OPENERS[source.kind](source, split, folder)
    elif isinstance(root, MemoryImages):
        found = root.opened(split)
    else:
        raise DataError(f"data: {source.name} were images in Python, expected the same ones as data")
    name, where = data_name(source, root), f" in {str(folder)!r}" if folder else ""
    if not is_printable(name):
        raise DataError(f"{source.kind}: found a folder called {name!r}, expected {EXPECTED}")
    place = first_unfit(found.class_names)
    if place is not None:
        called = found.class_names[place][:80]
        raise DataError(f"{source.kind}: found a class called {called!r}{where}, expected {EXPECTED}")
    twice = look_alike(found.class_names)
    if twice is not None:
        raise DataError(f'{source.kind}: found two classes "{twice}"{where}. {OTHER_FORM}')
    return found


def _rows_of(holdout: Holdout | None, labels: NDArray[np.int64], split: Split) -> NDArray[np.int64]:
    """Return the rows of a split, in order: all, or those in or out of what is held out, class by class."""
    if holdout is None or holdout.fraction in (0, 1):
        everything = holdout is None or (split == "test") == (holdout.fraction == 1)
        return np.arange(len(labels) if everything else 0)
    from torch import from_numpy

    from zoo.data.stratified import stratified_split

    if len(labels) and labels.min() < 0:
        raise DataError(
            "holdout: found images without labels, by which it is drawn: --set data.holdout.fraction=0"
        )
    parts = stratified_split(from_numpy(labels), holdout.fraction, holdout.seed)
    return parts[split == "test"].numpy()


def _with_partial_labels(dataset: ImageDataset, config: PartialLabels) -> ImageDataset:
    origin = config.model_dump()
    if config.kind == "grouped":
        origin["groups"] = len(config.groups)  # the names are the recipe's; cards and metrics need no list
    candidates = draw_candidates(config, dataset.labels, dataset.class_names)
    return dataset.with_candidates(candidates, origin=origin)


def data_name(source: Source, root: Root) -> str:
    """Name the data so that two folders, or two label columns of one, are told apart in a table."""
    if isinstance(source, Digits | TorchvisionSource):
        return source.kind
    if isinstance(source, Memory) or isinstance(root, MemoryImages):
        return str(getattr(source, "name", "images"))
    if isinstance(source, HubDataset):
        label = None if source.label == HubDataset.model_fields["label"].default else source.label
        return " ".join(part for part in (source.repo, source.config, label) if part)
    folder = Path(root).resolve().name if root is not None else source.kind
    return f"{folder} {source.label}" if source.kind == "parquet" else folder


def has_training_split(config: DataConfig, root: Root) -> bool:
    """Whether there are training images too: what somebody has may be a labelled batch to test on alone."""
    if config.holdout is not None:
        return config.holdout.fraction < 1
    if isinstance(root, MemoryImages):
        return "train" in root.splits
    source, base = config.source, Path() if root is None else Path(root)
    if isinstance(source, Folder):
        return is_dir(base / source.train)
    return is_file(base / source.train) if isinstance(source, ListFiles) else True
