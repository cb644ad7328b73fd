"""Data sets with a published split: scikit-learn's digits, and CIFAR as an archive or in parquet files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import numpy as np

from zoo.data.config import DataConfig, Digits, Parquet, Source, TorchvisionSource
from zoo.data.dataset import Split
from zoo.data.folder import require_root
from zoo.data.stores import ArrayStore, Opened
from zoo.data.table import open_parquet, split_files
from zoo.errors import DataError
from zoo.files import is_dir, names_in
from zoo.locks import turn

DIGITS_TRAIN_PER_CLASS = 125  # the smallest class has 174 images
TRAIN, TEST = "train-*.parquet", "test-*.parquet"
IMAGES = {"train": 50_000, "test": 10_000}


def open_digits(source: Digits, split: Split, root: Path | None) -> Opened:
    """Return the digits, class by class: of a fixed permutation, 125 to train, the rest to test."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    random = np.random.RandomState(0)  # the split is part of every published figure
    part = slice(DIGITS_TRAIN_PER_CLASS) if split == "train" else slice(DIGITS_TRAIN_PER_CLASS, None)
    chosen = np.concatenate([random.permutation(np.flatnonzero(digits.target == c))[part] for c in range(10)])
    pixels = np.rint(digits.images[chosen] * (255 / 16)).astype(np.uint8)  # stored as 0..16
    store = ArrayStore(pixels, "digits", chosen, has_copies=False)
    return Opened(store, digits.target[chosen], [str(c) for c in range(10)])


class Copy(NamedTuple):
    """How CIFAR's repository on the Hub is laid out, e.g. uoft-cs/cifar100.

    Attributes:
        archive: the folder that torchvision's archive unpacks to.
        folder: of the parquet files, in the repository.
        label: their column.
        classes: how many there are, all of the same number of images.
    """

    archive: str
    folder: str
    label: str
    classes: int

    def archive_in(self, root: Path) -> Path:
        """Return where the unpacked archive is or would be: the folder itself, or one in it."""
        return root if root.name == self.archive else root / self.archive

    def parquet_in(self, root: Path) -> Path | None:
        """Return the folder that has parquet files of the Hub's names."""
        for folder in (root, root / self.folder, root / "data"):
            if any(fnmatchcase(name, TRAIN) or fnmatchcase(name, TEST) for name in names_in(folder)):
                return folder
        return None


COPIES = {
    "cifar10": Copy("cifar-10-batches-py", "plain_text", "label", 10),
    "cifar100": Copy("cifar-100-python", "cifar100", "fine_label", 100),
}


def as_archive(source: Source) -> Source:
    """Return the source of CIFAR for a recipe that names its parquet files; others as they are."""
    for kind, copy in COPIES.items():
        if source == Parquet(train=TRAIN, test=TEST, image="img", label=copy.label):
            return TorchvisionSource.model_validate({"kind": kind})
    return source


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


def open_cifar(source: TorchvisionSource, split: Split, root: Path | None) -> Opened:
    """Return CIFAR-10 or CIFAR-100 from the data folder.

    The archive's folder comes first where both it and parquet files are there, also if it is damaged, so
    that no run moves from one to the other unnoticed. Parquet files lie in the data folder itself, or in the
    folder that they have in the repository. Where they are nothing is downloaded.

    Rows are in the order of the files. That of the archive is the literature's; a long tail and a subset draw
    by row, so parquet files in another order give as many images of each class, but other ones.

    Raises:
        DataError: naming what is missing, damaged or not this data set, and where it was looked for.
    """
    from torchvision import datasets

    copy = COPIES[source.kind]
    if root is None or not source.download:
        root = require_root(root, source.kind)
    archive = copy.archive_in(root)
    present = is_dir(archive)
    parquet = None if present else copy.parquet_in(root)
    if parquet is not None:
        return _from_parquet(source.kind, copy, split, parquet)
    cls = datasets.CIFAR10 if source.kind == "cifar10" else datasets.CIFAR100
    try:
        with _one_by_one(archive) if source.download else ExitStack():
            # its files hold pickles: torchvision compares each one's checksum first
            data = cls(str(archive.parent), train=split == "train", download=source.download)
    except (RuntimeError, OSError) as error:
        what = f"not whole, by the published checksums: {error}" if present else f"not there: {error}"
        others = [name for name in names_in(archive.parent) if name.endswith(".parquet")]
        named = f" (found {', '.join(others[:4])}: of other names)" if others else ""
        download = "" if source.download else ", or set data.source.download: true"
        raise DataError(
            f'{source.kind}: "{archive}" is {" ".join(what.split())} Expected it, or the Hub\'s "{TRAIN}" '
            f'and "{TEST}"{named}, in the folder that --data gives{download}'
        ) from None
    store = ArrayStore(np.asarray(data.data), f"{source.kind}/{split}")
    return Opened(store, np.asarray(data.targets, dtype=np.int64), data.classes, copy.archive)


@contextmanager
def _one_by_one(archive: Path) -> Iterator[None]:
    """Let one process after another fetch the archive: whoever waited finds it there."""
    with ExitStack() as held:
        with suppress(OSError):  # where nothing can be written there is nothing to wait for
            held.enter_context(turn(archive.with_name(f".{archive.name}.lock")))
        yield


def _from_parquet(kind: str, copy: Copy, split: Split, folder: Path) -> Opened:
    """Read the Hub's files; what was measured on other images cannot be put beside published figures."""
    section = Parquet(train=TRAIN, test=TEST, image="img", label=copy.label)
    try:
        found = open_parquet(section, split, folder)
    except DataError as error:
        raise DataError(f"{kind}: {error}") from None
    each = IMAGES[split] // copy.classes
    counts = np.bincount(found.labels, minlength=copy.classes)
    if len(counts) != copy.classes or (counts != each).any():
        raise DataError(
            f"{kind}: {folder}: found {len(found.labels):,} images of {len(counts)} classes, the {split} "
            f"split has {each} of each of {copy.classes}"
        )
    if not found.store.has_copies(np.arange(len(found.labels))):
        raise DataError(
            f"{kind}: {folder}: found images that are compressed with loss, so not the data set's pixels; "
            "expected lossless ones, or data.source.kind: parquet"
        )
    files = ", ".join(file.name for file in split_files(folder, TRAIN if split == "train" else TEST))
    return found._replace(files=files)
