"""Where images come from: one function per kind of source, each returning images, labels and class names."""

from __future__ import annotations

import logging
import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoo.class_names import EXPECTED, first_unfit
from zoo.data.cifar import open_cifar
from zoo.data.config import (
    DataConfig,
    Digits,
    Folder,
    Holdout,
    HubDataset,
    ListFiles,
    LongTail,
    Memory,
    PartialLabels,
    Source,
    Subset,
    TorchvisionSource,
)
from zoo.data.dataset import ImageDataset, ImageStore, Split
from zoo.data.hub import open_hub
from zoo.data.image_files import first_image, is_visible, warn_of_endings
from zoo.data.image_ids import are_listed, find_listed
from zoo.data.list_files import open_list
from zoo.data.long_tail import select_long_tail
from zoo.data.memory import MemoryImages, Root
from zoo.data.parquet import open_parquet
from zoo.data.partial_labels import draw_candidates, read_candidates
from zoo.data.paths import fetching, require_path, require_root
from zoo.data.stores import ArrayStore, FileStore, Opened
from zoo.data.subset import select_subset
from zoo.errors import DataError, ZooWarning, did_you_mean, is_printable
from zoo.files import is_dir, is_file, names_in
from zoo.image_list import ImageList
from zoo.launch import rank

DIGITS_TRAIN_PER_CLASS = 125  # the smallest class has 174 images


LOG = logging.getLogger("zoo.data")


def open_digits(source: Digits, split: Split, root: Path | None) -> Opened:
    """Return the digits, class by class: of a fixed permutation, 125 to train, the rest to test."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    random = np.random.RandomState(0)  # the split is part of every published figure
    rows = []
    for c in range(10):
        members = random.permutation(np.flatnonzero(digits.target == c))
        rows.append(
            members[:DIGITS_TRAIN_PER_CLASS] if split == "train" else members[DIGITS_TRAIN_PER_CLASS:]
        )
    chosen = np.concatenate(rows)
    pixels = np.rint(digits.images[chosen] * (255 / 16)).astype(np.uint8)  # stored as 0..16
    return Opened(
        ArrayStore(pixels, "digits", chosen, has_copies=False),
        digits.target[chosen],
        [str(c) for c in range(10)],
    )


def open_fashion_mnist(source: TorchvisionSource, split: Split, root: Path | None) -> Opened:
    """Return Fashion-MNIST as torchvision reads it."""
    from torchvision.datasets import FashionMNIST

    if root is None or not source.download:
        root = require_root(root, source.kind)
    inside = "FashionMNIST"
    if root.name == inside:  # the folder of the data set itself was given
        root = root.parent
    try:
        with fetching(root / inside, download=source.download):
            data = FashionMNIST(str(root), train=split == "train", download=source.download)
    except (RuntimeError, OSError) as error:
        raise DataError(
            f'{source.kind}: {" ".join(str(error).split())} Looked for "{inside}" in {root}. Give the '
            "folder that holds it with --data DIR, or set data.source.download: true"
        ) from None
    return Opened(
        ArrayStore(np.asarray(data.data), f"{source.kind}/{split}"),
        np.asarray(data.targets, dtype=np.int64),
        data.classes,
    )


def open_folder(source: Folder, split: Split, root: Path | None) -> Opened:
    """Return an ImageFolder tree, hidden files left out; its classes are the sorted names of the folders.

    They are the training split's, where there is one: a test split may lack some, as a class of one
    photograph has none to test on. A training split whose images lie in no class folders has no classes.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS, has_file_allowed_extension, make_dataset

    base = require_root(root, "folder")
    given = source.train if split == "train" else source.test
    key = f'data.source.{split}, in a spec "folder:DIR?{split}=NAME"'
    path = require_path(base, given, "folder", f"{split} folder", key)

    others: Counter[str] = Counter()

    def is_image(file: str) -> bool:
        # not as a Path: of millions of files that takes seconds
        names = file[len(str(path)) :].split(os.sep)  # noqa: PTH206
        if not all(map(is_visible, names)):
            return False
        if has_file_allowed_extension(file, IMG_EXTENSIONS):
            return True
        others[os.path.splitext(names[-1])[1].lower() or "none"] += 1  # noqa: PTH122
        return False

    train = Path(base, source.train)
    if split == "train" and not _folders_in(path) and first_image(path) is not None:
        paths = [name for name in names_in(path) if is_image(str(path / name))]
        warn_of_endings(others, path, "folder")
        return Opened(FileStore(path, paths), np.full(len(paths), -1, dtype=np.int64), [])
    classes = folders = _class_folders(path)
    if split == "test" and is_dir(train):
        classes = _class_folders(train)
        unknown = sorted(set(folders) - set(classes))
        if unknown:
            raise DataError(
                f'folder: class "{unknown[0]}" of {path} is not among the {len(classes)} of {train}.'
                f"{did_you_mean(unknown[0], classes)}"
            )
    for name in names_in(path):
        if not is_visible(name) and name not in _KNOWN_HIDDEN and first_image(path / name) is not None:
            LOG.warning("folder: %s is left out, as hidden folders are, though it holds images", path / name)
    places = {name: place for place, name in enumerate(classes)}
    try:
        here = {name: places[name] for name in folders}
        samples = make_dataset(str(path), here, is_valid_file=is_image, allow_empty=True)
    except (RuntimeError, OSError) as error:
        raise DataError(f"folder: {path}: {' '.join(str(error).split())}") from None
    with_images = {place for _, place in samples}
    empty = [name for name in classes if places[name] not in with_images]
    names = ", ".join(f'"{name}"' for name in empty[:5]) + (", ..." if len(empty) > 5 else "")
    if empty and (split == "train" or not samples):
        raise DataError(
            f"folder: {path}: found no image in the class folder {names}, expected files that end in "
            f"{', '.join(IMG_EXTENSIONS)}"
        )
    if empty and rank() == 0:
        warnings.warn(
            f"folder: {path} has no image of {len(empty)} of the {len(classes)} classes ({names}): what is "
            "measured on it is over the others",
            ZooWarning,
            stacklevel=2,
        )
    warn_of_endings(others, path, "folder")
    paths = [Path(file).relative_to(path).as_posix() for file, _ in samples]
    return Opened(FileStore(path, paths), np.array([place for _, place in samples], dtype=np.int64), classes)


def _class_folders(path: Path) -> list[str]:
    """Return the sorted names of a split's classes."""
    names = _folders_in(path)
    if not names:
        raise DataError(f"folder: found no class folder in {path}, expected {path.name}/CLASS/IMAGE")
    return names


def _folders_in(path: Path) -> list[str]:
    return [name for name in names_in(path) if is_visible(name) and is_dir(path / name)]


_KNOWN_HIDDEN = frozenset({".ipynb_checkpoints", ".git", "__MACOSX"})
"""Folders that programs make, whose images are copies."""


def _open_nothing(source: Memory, split: Split, root: Path | None) -> Opened:
    raise DataError(
        f"data: {source.name} were images of a Python program, expected the same ones as data, in Python"
    )


OPENERS: dict[
    str,
    Callable[[Any, Split, Path | None], Opened | tuple[ImageStore, NDArray[np.int64], Sequence[str]]],
] = {
    "digits": open_digits,
    "cifar10": open_cifar,
    "cifar100": open_cifar,
    "fashion_mnist": open_fashion_mnist,
    "folder": open_folder,
    "list": open_list,
    "parquet": open_parquet,
    "hub": open_hub,
    "memory": _open_nothing,
}


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


_PLACES = {
    "folder": "its folders",
    "list": "it in the lists, or in the file of class names",
    "parquet": "it in the files",
}
"""What has to be renamed for another name of a class, by the kind of source."""


def _check_names(source: Source, root: Path | None, class_names: Sequence[str]) -> None:
    """Make sure that the names that a release records can be written and shown, before any training."""
    where = "" if root is None else f" in {str(root)!r}"
    name = data_name(source, root)
    if not is_printable(name):
        raise DataError(
            f"{source.kind}: the data are called {name!r}, expected words in UTF-8 without control "
            "characters; rename the folder"
        )
    place = first_unfit(class_names)
    if place is not None:
        raise DataError(
            f"{source.kind}: found a class called {class_names[place][:80]!r}{where}, expected {EXPECTED}; "
            f"rename {_PLACES.get(source.kind, 'it')}"
        )


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
    folder = None if root is None or isinstance(root, MemoryImages) else Path(root)
    part_read: Split = split if config.holdout is None else "train"
    if isinstance(root, MemoryImages) and isinstance(source, Memory):
        found = root.opened(part_read)
    else:
        found = Opened(*OPENERS[source.kind](source, part_read, folder))
    store, labels, class_names, files, origin = found
    _check_names(source, folder, class_names)
    tail = config.long_tail if split == "train" else None
    part = config.subset if split == "train" else None
    partial = config.partial_labels if split == "train" else None
    settings: dict[str, Any] = {
        "name": data_name(source, root),
        "source": source.kind,
        "split": split,
        "long_tail": tail.model_dump() if tail else None,
        "partial_labels": None,
        **({"holdout": config.holdout.model_dump()} if config.holdout else {}),
        **({"content": source.sha256} if isinstance(source, Memory) else {}),
        **({"files": files} if files else {}),
        **origin,
        **({"subset": part.model_dump()} if part else {}),  # releases of before there was one lack the key
    }
    rows = _rows_of(config.holdout, labels, split)
    if len(rows) == 0:
        raise DataError(f"{source.kind}: the {split} split has no images")
    if not class_names and (not unlabelled or tail or part or partial):
        why = (
            "long_tail, subset and partial_labels draw by class" if unlabelled else "classes are needed here"
        )
        raise DataError(
            f"{source.kind}: the {len(rows):,} images of the {split} split have no labels, and "
            f"{why}: expected CLASS/IMAGE, in Python (image, label) for each. Without classes objectives "
            "such as moco can be trained, with --set 'evaluation=[]'"
        )
    whole = ImageDataset(store, labels[rows], class_names, rows=rows, settings=settings)
    try:
        dataset = _selected(whole, tail, part)
    except DataError:  # a list asks for no tail of other images than its own
        if listed is None:
            raise
        dataset = whole
    if listed is not None and not are_listed(dataset, listed):
        dataset = find_listed(whole, listed)
    return dataset if partial is None else _with_partial_labels(dataset, partial, folder)


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


def _selected(dataset: ImageDataset, tail: LongTail | None, part: Subset | None) -> ImageDataset:
    if tail is not None:
        kept = select_long_tail(tail, dataset.labels, dataset.num_classes, dataset.class_names)
        dataset = dataset.subset(kept)
    if part is not None:
        kept = select_subset(part, dataset.labels, dataset.num_classes, dataset.class_names)
        dataset = dataset.subset(kept)
    return dataset


def _with_partial_labels(dataset: ImageDataset, config: PartialLabels, root: Path | None) -> ImageDataset:
    origin = config.model_dump()
    if config.kind == "file":
        candidates = read_candidates(require_path(root, config.path, "partial_labels", "file"))
    else:
        candidates = draw_candidates(config, dataset.labels, dataset.class_names)
    if config.kind == "grouped":
        origin["groups"] = len(config.groups)  # the names are the recipe's; cards and metrics need no list
    return dataset.with_candidates(candidates, origin=origin)
