"""CIFAR-10 and CIFAR-100: the archives that torchvision reads, or the Hub's parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zoo.data.config import Parquet, Source, TorchvisionSource
from zoo.data.dataset import Split
from zoo.data.parquet import ParquetStore, check_shards, open_parquet, parquet_schema
from zoo.data.paths import fetching, require_root
from zoo.data.stores import ArrayStore, Opened
from zoo.errors import DataError
from zoo.files import is_dir, names_in

if TYPE_CHECKING:
    from torchvision.datasets import CIFAR10

TRAIN, TEST = "train-*.parquet", "test-*.parquet"
IMAGES = {"train": 50_000, "test": 10_000}
SIZE = (32, 32)
_DOWNLOAD = "data.source.download: true"


class Copy(NamedTuple):
    """How a data set's repository on the Hub is laid out, e.g. uoft-cs/cifar100.

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


def open_cifar(source: TorchvisionSource, split: Split, root: Path | None) -> Opened:
    """Return CIFAR-10 or CIFAR-100 from the data folder.

    The archive's folder comes first where both it and parquet files are there: also if it is damaged, so
    that no run moves from one to the other unnoticed. Parquet files lie in the data folder itself, or in the
    folder that they have in the repository. Where they are nothing is downloaded; a damaged archive alone is
    downloaded again if the source says so.

    Rows are in the order of the files. That of the archive is the literature's; a long tail and a subset draw
    by row, so parquet files in another order give as many images of each class, but other ones.

    Raises:
        DataError: naming what is missing, damaged or not this data set, and where it was looked for.
    """
    copy = COPIES[source.kind]
    if root is None or not source.download:
        root = require_root(root, source.kind)
    if root.name != copy.archive and not is_dir(root / copy.archive):
        found = parquet_folders(root, copy)
        if len(found) > 1:
            raise DataError(
                f"{source.kind}: found parquet files in {' and in '.join(map(str, found))}, expected them in "
                "one folder; give that one with --data DIR"
            )
        if found:
            try:
                return _from_parquet(source.kind, copy, split, found[0])
            except DataError as error:
                raise DataError(f"{source.kind}: {error}") from None
    return _from_archive(source, copy, split, root)


def _from_archive(source: TorchvisionSource, copy: Copy, split: Split, root: Path) -> Opened:
    """Read, or download, the archive; its files hold pickles, and each one's checksum is compared first."""
    from torchvision import datasets

    cls = datasets.CIFAR10 if source.kind == "cifar10" else datasets.CIFAR100
    folder = root.parent if root.name == copy.archive else root
    archive = folder / copy.archive
    present = is_dir(archive)
    others = parquet_folders(folder, copy) if present else []
    download = source.download and not others
    try:
        with fetching(archive, download=download):
            data = cls(str(folder), train=split == "train", download=download)
    except (RuntimeError, OSError) as error:
        words = " ".join(str(error).split())
        if download:
            what = f'the archive could not be downloaded to "{folder}": {words.rstrip(".")}'
        elif isinstance(error, OSError):
            what = f'the archive\'s folder "{archive}" cannot be read: {words.rstrip(".")}'
        elif present:
            what = f'the archive\'s folder "{archive}" is not whole: {_damage(archive, cls)}'
        else:
            what = "no images found"
        raise DataError(f"{source.kind}: {what}. {_remedy(source, copy, archive, others)}") from None
    return Opened(
        ArrayStore(np.asarray(data.data), f"{source.kind}/{split}"),
        np.asarray(data.targets, dtype=np.int64),
        data.classes,
        copy.archive,
    )


def _damage(archive: Path, cls: type[CIFAR10]) -> str:
    """Say which of the archive's files are missing, and which are not the published ones."""
    from torchvision.datasets.utils import check_integrity

    names = [str(name) for name in names_in(archive)]
    sums = {str(name): str(md5) for name, md5 in [*cls.train_list, *cls.test_list]}
    sums[str(cls.meta["filename"])] = str(cls.meta["md5"])
    missing = [name for name in sums if name not in names]
    if len(missing) == len(sums):
        return f"it has none of the {len(sums)} files {', '.join(sums)}"
    try:
        damaged = [
            name for name in sums if name in names and not check_integrity(str(archive / name), sums[name])
        ]
    except OSError as error:
        return str(error)
    told = [f"without {', '.join(missing)}"] if missing else []
    told += [f"another checksum than the published one: {', '.join(damaged)}"] if damaged else []
    return "; ".join(told)


def _remedy(source: TorchvisionSource, copy: Copy, archive: Path, others: Sequence[Path]) -> str:
    """Say what can be done where the archive cannot be read."""
    if others:
        files = f"the parquet files in {' or in '.join(map(str, others))}"
        return f'To read {files}, move "{archive}" away and give their folder with --data DIR'
    if is_dir(archive) and not source.download:
        return "Put the whole archive there, give another folder with --data DIR, or set " + _DOWNLOAD
    unknown = [name for name in names_in(archive.parent) if name.endswith(".parquet")]
    beside = f" (there are {', '.join(unknown[:4])}: of other names)" if unknown else ""
    return (
        f'Looked for "{copy.archive}" in {archive.parent}, and for "{TRAIN}" and "{TEST}", the files of its '
        f"Hub repository{beside}. Give the folder that holds one of them with --data DIR"
        + ("" if source.download else f", or set {_DOWNLOAD}")
    )


def parquet_folders(root: Path, copy: Copy) -> list[Path]:
    """Return the folders that have parquet files of the Hub's names."""
    return [
        folder
        for folder in (root, root / copy.folder, root / "data")
        if any(fnmatchcase(name, TRAIN) or fnmatchcase(name, TEST) for name in names_in(folder))
    ]


def _from_parquet(kind: str, copy: Copy, split: Split, folder: Path) -> Opened:
    pattern = TRAIN if split == "train" else TEST
    names = [name for name in names_in(folder) if fnmatchcase(name, pattern)]
    check_shards([folder / name for name in names])
    if names:
        _check_columns(kind, copy, folder / names[0])
    section = Parquet(train=TRAIN, test=TEST, image="img", label=copy.label)
    store, labels, class_names = open_parquet(section, split, folder)
    counts = np.bincount(labels, minlength=copy.classes)
    of_each, found = IMAGES[split] // copy.classes, len(class_names)
    if found != copy.classes or (counts != of_each).any():
        odd = int(np.argmax(counts != of_each))
        raise DataError(
            f"{folder}: found {len(labels):,} images of {found} classes, {counts[odd]} of class {odd}, in "
            f"{', '.join(names)}; the data set's {split} split has {IMAGES[split]:,}, {of_each} of each of "
            f"{copy.classes} classes"
        )
    _check_images(store, folder)
    return Opened(store, labels, class_names, ", ".join(names))


def _check_columns(kind: str, copy: Copy, file: Path) -> None:
    present = parquet_schema(file).names
    if copy.label not in present:
        other = next((name for name, each in COPIES.items() if name != kind and each.label in present), None)
        if other is not None:
            raise DataError(
                f"{file} has the columns {', '.join(present)}, which are those of {other}; expected "
                f'"{copy.label}". Give the folder of {kind} with --data DIR, or set data.source.kind: {other}'
            )


def _check_images(store: ParquetStore, folder: Path) -> None:
    """Refuse copies that lost something: nothing measured on them can be put beside published figures."""
    lossy = store.first_lossy()
    if lossy is not None:
        raise DataError(
            f'{folder}: image "{store.name(lossy)}" is compressed with loss, so its pixels are not those of '
            "the data set; read such files with data.source.kind: parquet, under a name of their own"
        )
    size = store.size(0)
    if size != SIZE:
        raise DataError(
            f'{folder}: image "{store.name(0)}" has {size[0]} x {size[1]} pixels, expected {SIZE[0]} x '
            f"{SIZE[1]}; read such files with data.source.kind: parquet"
        )
