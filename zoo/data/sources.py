"""A split of the configured data: read from its source, then holdout, long tail, few and partial labels."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from zoo.data.config import (
    DataConfig,
    Digits,
    Folder,
    Holdout,
    HubDataset,
    ListFiles,
    Memory,
    Parquet,
    Source,
    TorchvisionSource,
)
from zoo.data.dataset import ImageDataset, ImageStore, Split
from zoo.data.folder import open_folder, open_list, require_path
from zoo.data.image_ids import find_listed
from zoo.data.labels import OTHER_FORM, composed
from zoo.data.long_tail import draw_candidates, select_long_tail, select_subset, stratified_split
from zoo.data.memory import MemoryImages, Root
from zoo.data.table import open_hub, open_parquet, split_files
from zoo.errors import DataError, few, is_printable
from zoo.files import is_dir, is_file, names_in
from zoo.images import CLASS_NAMES, ImageList, invalid_class_name
from zoo.locks import turn

DIGITS_TRAIN_PER_CLASS = 125  # the smallest class has 174 images
TRAIN, TEST = "train-*.parquet", "test-*.parquet"
IMAGES = {"train": 50_000, "test": 10_000}  # of CIFAR


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
    by shard and row for parquet, the original files' for CIFAR. Long tail, few labels and partial labels
    apply to `train` only, in this order, and as `zoo.data.long_tail` says.

    Class names may hold some that no training image has (a parquet file's metadata, a list's file of names).
    Objectives that learn classes refuse such data; probes never predict such a class.

    Args:
        config: what to read.
        split: `train` or `test`.
        root: folder of the data, or the images of a program; None for embedded data or absolute paths.
        listed: the images that a release was trained on: where this copy's draw has others, these are
            searched in it by their content.
        unlabelled: take images without classes too.

    Raises:
        DataError: naming what is missing or malformed, where it was looked for, and how to give it;
            `OtherImages` where not all listed ones are there.
    """
    source = config.source
    found = _read(source, split if config.holdout is None else "train", root)
    tail, part, partial = (
        (config.long_tail, config.subset, config.partial_labels) if split == "train" else (None, None, None)
    )
    whole = found.subset(_rows_of(config.holdout, found.labels, split))
    if len(whole) == 0:
        raise DataError(f"{source.kind}: the {split} split has no images")
    if not whole.class_names and (not unlabelled or tail or part or partial):
        raise DataError(
            f"{source.kind}: the {len(whole):,} images of the {split} split have no labels, which are needed "
            "here: expected CLASS/IMAGE, in Python (image, label) for each. Without classes objectives such "
            "as moco can be trained, with --set 'evaluation=[]'"
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
    dataset, names = whole, whole.class_names
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
    """Read a split of a source, and make sure that the names which a release records can be written."""
    folder = Path(root) if isinstance(root, str | Path) else None
    if not isinstance(source, Memory):
        found = _OPENERS[source.kind](source, split, folder)
    elif isinstance(root, MemoryImages):
        found = root.opened(split)
    else:
        raise DataError(f"data: {source.name} were images in Python, expected the same ones as data")
    where, names = f" in {str(folder)!r}" if folder else "", found.class_names
    if not is_printable(data_name(source, root)):
        raise DataError(
            f"{source.kind}: found a folder called {data_name(source, root)!r}, expected {CLASS_NAMES}"
        )
    place = invalid_class_name(names)
    if place is not None:
        raise DataError(
            f"{source.kind}: found a class called {names[place][:80]!r}{where}, expected {CLASS_NAMES}"
        )
    if len({composed(name) for name in names}) < len(set(names)):
        seen: dict[str, str] = {}
        twice = next(name for name in names if seen.setdefault(composed(name), name) != name)
        raise DataError(f'{source.kind}: found two classes "{twice}"{where}. {OTHER_FORM}')
    return found


def _rows_of(holdout: Holdout | None, labels: NDArray[np.int64], split: Split) -> NDArray[np.int64]:
    """Return the rows of a split, in order: all, or those in or out of what is held out, class by class."""
    if holdout is None or holdout.fraction in (0, 1):
        everything = holdout is None or (split == "test") == (holdout.fraction == 1)
        return np.arange(len(labels) if everything else 0)
    from torch import from_numpy

    if len(labels) and labels.min() < 0:
        raise DataError(
            "holdout: found images without labels, by which it is drawn; expected CLASS/IMAGE, or a recipe "
            "with data.holdout.fraction 0"
        )
    parts = stratified_split(from_numpy(labels.copy()), holdout.fraction, holdout.seed)
    return parts[split == "test"].numpy()


def data_name(source: Source, root: Root) -> str:
    """Name the data so that two folders, or two label columns of one, are told apart in a table."""
    if isinstance(source, Digits | TorchvisionSource):
        return source.kind
    if isinstance(source, Memory) or isinstance(root, MemoryImages):
        return str(getattr(source, "name", "images"))
    if isinstance(source, HubDataset):
        return " ".join(filter(None, (source.repo, source.config, source.label)))
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


# --- data sets with a published split -------------------------------------------------------------------


def open_digits(source: Digits, split: Split, root: Path | None) -> ImageDataset:
    """Return the digits, class by class: of a fixed permutation, 125 to train, the rest to test."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    random = np.random.RandomState(0)  # the split is part of every published figure
    part = slice(DIGITS_TRAIN_PER_CLASS) if split == "train" else slice(DIGITS_TRAIN_PER_CLASS, None)
    chosen = np.concatenate([random.permutation(np.flatnonzero(digits.target == c))[part] for c in range(10)])
    pixels = np.rint(digits.images[chosen] * (255 / 16)).astype(np.uint8)  # stored as 0..16
    store = ImageStore(pixels, [f"digits/{row}" for row in chosen])
    return ImageDataset(store, digits.target[chosen], [str(c) for c in range(10)])


class Copy(NamedTuple):
    """CIFAR on disk: the archive's folder; the folder and label column of the Hub's files; its classes."""

    archive: str
    folder: str
    label: str
    classes: int

    def archive_in(self, root: Path) -> Path:
        """Return where the unpacked archive is or would be: the folder itself, or one in it."""
        return root if root.name == self.archive else root / self.archive

    def parquet_in(self, root: Path) -> Path | None:
        """Return the folder that has parquet files of the Hub's names, e.g. those of uoft-cs/cifar100."""
        for folder in (root, root / self.folder, root / "data"):
            if split_files(folder, TRAIN) or split_files(folder, TEST):
                return folder
        return None

    def parquet(self) -> Parquet:
        """Return the source that reads those files."""
        return Parquet(train=TRAIN, test=TEST, image="img", label=self.label)


COPIES = {
    "cifar10": Copy("cifar-10-batches-py", "plain_text", "label", 10),
    "cifar100": Copy("cifar-100-python", "cifar100", "fine_label", 100),
}


def as_archive(source: Source) -> Source:
    """Return the source of CIFAR for a recipe that names its parquet files; others as they are."""
    kind = next((kind for kind, copy in COPIES.items() if source == copy.parquet()), None)
    return source if kind is None else TorchvisionSource.model_validate({"kind": kind})


def from_archive(config: DataConfig, root: object) -> DataConfig:
    """Return the same data out of torchvision's archive, if that is what lies in a folder for parquet files.

    The images are the same, their order is not: for those whose content is listed.
    """
    wanted = config.source
    if not isinstance(root, str | Path) or not isinstance(wanted, Parquet):
        return config
    for kind, copy in COPIES.items():
        there = copy.label == wanted.label and is_dir(copy.archive_in(Path(root)))
        if there and not split_files(Path(root), wanted.train):
            return config.model_copy(update={"source": TorchvisionSource.model_validate({"kind": kind})})
    return config


def open_cifar(source: TorchvisionSource, split: Split, root: Path | None) -> ImageDataset:
    """Return CIFAR-10 or CIFAR-100 out of torchvision's archive, or of the Hub's parquet files.

    The archive comes first where both are there, also if it is damaged, so that no run moves from one to the
    other unnoticed: rows are in the order of the files, by which a long tail and a subset draw.

    Raises:
        DataError: naming what is missing, damaged or not this data set, and where it was looked for.
    """
    from torchvision import datasets

    copy = COPIES[source.kind]
    if root is None or not source.download:
        root = require_path(root, ".", source.kind)
    archive = copy.archive_in(root)
    present = is_dir(archive)
    parquet = None if present else copy.parquet_in(root)
    if parquet is not None:
        return _from_parquet(source.kind, copy, split, parquet)
    cls = datasets.CIFAR10 if source.kind == "cifar10" else datasets.CIFAR100
    try:
        with ExitStack() as held:
            if source.download:  # by one process after another: whoever waited finds it there
                with suppress(OSError):  # where nothing can be written there is nothing to wait for
                    held.enter_context(turn(archive.with_name(f".{archive.name}.lock")))
            # its files hold pickles: torchvision compares each one's checksum first
            data = cls(str(archive.parent), train=split == "train", download=source.download)
    except (RuntimeError, OSError) as error:
        state = "not whole, by the published checksums" if present else "not there"
        others = [name for name in names_in(root) if name.endswith(".parquet")]
        named = f" (found {few(others)}: of other names)" if others else ""
        raise DataError(
            f'{source.kind}: "{archive}" is {state}: {" ".join(str(error).split())} Expected it, or '
            f'"{TRAIN}" and "{TEST}"{named}, in the folder that --data gives, or data.source.download: true'
        ) from None
    names = [f"{source.kind}/{split}/{row}" for row in range(len(data.targets))]
    store = ImageStore(np.asarray(data.data), names, has_copies=True)
    return ImageDataset(store, data.targets, data.classes, settings={"files": copy.archive})


def _from_parquet(kind: str, copy: Copy, split: Split, folder: Path) -> ImageDataset:
    """Read the Hub's files; what was measured on other images cannot be put beside published figures."""
    try:
        found = open_parquet(copy.parquet(), split, folder)
    except DataError as error:
        raise DataError(f"{kind}: {error}") from None
    if (
        found.class_counts.tolist() != [IMAGES[split] // copy.classes] * copy.classes
        or not found.has_copies()
    ):
        raise DataError(
            f"{kind}: {folder}: found {len(found):,} images of {found.num_classes} classes, or some that are "
            f"compressed with loss; expected the data set's {IMAGES[split]:,} of {copy.classes}, lossless; "
            "others are data.source.kind: parquet"
        )
    found.settings["files"] = ", ".join(
        file.name for file in split_files(folder, TRAIN if split == "train" else TEST)
    )
    return found


_OPENERS: dict[str, Callable[[Any, Split, Path | None], ImageDataset]] = {
    "digits": open_digits,
    "cifar10": open_cifar,
    "cifar100": open_cifar,
    "folder": open_folder,
    "list": open_list,
    "parquet": open_parquet,
    "hub": open_hub,
}
