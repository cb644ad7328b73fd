"""One reader for each kind of source, and a split of the configured data: read, held out, long-tailed."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable
from glob import glob
from pathlib import Path, PurePosixPath
from typing import Any

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
from zoo.data.dataset import Encoded, ImageDataset, ImageStore, Split, class_labels
from zoo.data.image_ids import find_listed
from zoo.data.long_tail import draw_candidates, select_long_tail, select_subset, stratified_split
from zoo.data.memory import Columns, MemoryImages, Root, columns_of
from zoo.errors import DataError, did_you_mean, few
from zoo.files import exists, is_dir, is_file, names_in, read_text
from zoo.images import CLASS_NAMES, ImageList, invalid_class_name

DIGITS_TRAIN_PER_CLASS = 125  # the smallest class has 174 images
CIFAR = {
    "cifar10": ("cifar-10-batches-py", "label"),
    "cifar100": ("cifar-100-python", "fine_label"),
}
"""The folder of torchvision's archive, and the column of labels in the Hub's parquet files."""

_MAX_LIST_BYTES = 1 << 30  # several times the list of the largest public data set
_IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # as torchvision
_NUMBER = re.compile(r"0|[1-9][0-9]*")  # `007` is text


def require_path(root: Path | None, given: str, what: str) -> Path:
    """Return the file or folder `given` in the data folder, or raise DataError naming what lies beside it."""
    if root is None and not Path(given).is_absolute():
        kind, _, _ = what.partition(":")
        raise DataError(f"{kind}: no data folder given; give the one that holds the data with --data DIR")
    path = Path(root or "", given)
    if not exists(path):
        beside = names_in(path.parent)
        hint = did_you_mean(path.name, beside) or f" There are: {few(beside) or 'no files'}"
        raise DataError(f'{what} "{given}", looked for {path}.{hint}')
    return path


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


def cifar_archive(kind: str, root: Path) -> Path:
    """Return where the unpacked archive of CIFAR is or would be: the folder itself, or one in it."""
    archive, _ = CIFAR[kind]
    return root if root.name == archive else root / archive


def _cifar_parquet(kind: str) -> Parquet:
    """Return the source that reads CIFAR's parquet files of the Hub."""
    return Parquet(train="train-*.parquet", test="test-*.parquet", image="img", label=CIFAR[kind][1])


def as_archive(source: Source) -> Source:
    """Return the source of CIFAR for a recipe that names its parquet files; others as they are."""
    kind = next((kind for kind in CIFAR if source == _cifar_parquet(kind)), None)
    return source if kind is None else TorchvisionSource.model_validate({"kind": kind})


def cifar_shards(root: Path, split: Split = "train") -> list[Path]:
    """Return CIFAR's parquet files of the Hub: in a folder, or in one in it that is called as there."""
    places = (root / name for name in ("", "data", "plain_text", "cifar100"))
    return next(filter(None, (split_files(place, f"{split}-*.parquet") for place in places)), [])


def open_cifar(source: TorchvisionSource, split: Split, root: Path | None) -> ImageDataset:
    """Return CIFAR-10 or CIFAR-100 out of torchvision's archive, or of the Hub's parquet files.

    The archive comes first, also if it is damaged, so that no run moves from one to the other unnoticed: rows
    are in the order of the files, by which a long tail and a subset draw.
    """
    from torchvision import datasets

    if root is None or not source.download:
        root = require_path(root, ".", f"{source.kind}: no folder")
    archive = cifar_archive(source.kind, root)
    if not is_dir(archive) and (shards := cifar_shards(root, split)):
        found = open_parquet(_cifar_parquet(source.kind), split, shards[0].parent)
        found.settings["files"] = ", ".join(file.name for file in shards)
        return found
    cls = datasets.CIFAR10 if source.kind == "cifar10" else datasets.CIFAR100
    try:  # the archive holds pickles: torchvision compares each one's checksum first
        data = cls(str(archive.parent), train=split == "train", download=source.download)
    except (RuntimeError, OSError) as error:
        raise DataError(
            f'{source.kind}: "{archive}" is not there or not whole: {" ".join(str(error).split())} Expected '
            "it, or train-*.parquet and test-*.parquet, in --data DIR, or data.source.download: true"
        ) from None
    names = [f"{source.kind}/{split}/{row}" for row in range(len(data.targets))]
    store = ImageStore(np.asarray(data.data), names, has_copies=True)
    return ImageDataset(store, data.targets, data.classes, settings={"files": archive.name})


# --- image files ----------------------------------------------------------------------------------------


def _is_visible(name: str) -> bool:
    """Return whether a file or folder is none of .git, .DS_Store, ._photo.jpg, __MACOSX and the like."""
    return not name.startswith(".") and name != "__MACOSX"


def folders_in(folder: Path) -> list[str]:
    """Return the sorted names of the visible folders in a folder."""
    return [name for name in names_in(folder) if _is_visible(name) and is_dir(folder / name)]


def images_in(folder: Path) -> list[str]:
    """Return the sorted names of the image files that lie directly in a folder."""
    return [name for name in names_in(folder) if _is_visible(name) and name.lower().endswith(_IMAGES)]


def image_files(folder: Path) -> list[str]:
    """Return the paths of all images below a folder, relative to it, by folder and name."""
    found = []
    for place, _, _ in sorted(os.walk(folder, followlinks=True)):
        inside = Path(place).relative_to(folder)
        if all(map(_is_visible, inside.parts)):
            found += [(inside / name).as_posix() for name in images_in(Path(place))]
    return found


def open_folder(source: Folder, split: Split, root: Path | None) -> ImageDataset:
    """Return a tree `CLASS/IMAGE` in torchvision's order, or images alone, which have no classes.

    Classes are the sorted names of the training split's folders; a test split has no others.
    """
    path = require_path(root, source.train if split == "train" else source.test, f"folder: no {split} folder")
    train, here = Path(root or "", source.train), folders_in(path)
    classes = folders_in(train) if is_dir(train) else here
    labels, names = class_labels(here, lambda row: f"folder: {path / here[row]}", of_training=classes)
    if not classes:
        paths = image_files(path)
        return ImageDataset(ImageStore(paths, paths, folder=path), np.full(len(paths), -1), [])
    inside = [image_files(path / name) for name in here]
    paths = [f"{name}/{image}" for name, images in zip(here, inside, strict=True) for image in images]
    return ImageDataset(ImageStore(paths, paths, folder=path), np.repeat(labels, [*map(len, inside)]), names)


def open_list(source: ListFiles, split: Split, root: Path | None) -> ImageDataset:
    """Return the images of a list file: lines "path label", or columns "path,label" if its name ends in .csv.

    Raises:
        DataError: for labels that are no classes, a first image that is not there.
    """
    folder = require_path(root, source.images, "list: no folder of images")
    file = require_path(root, source.train if split == "train" else source.test, f"list: no {split} list")
    (paths, labels), train = _read_list(file), Path(root or "", source.train)
    if not is_file(folder / paths[0]):  # a wrong folder would make every image an unreadable one
        raise DataError(f'list: {file.name} names "{paths[0]}", but there is no {folder / paths[0]}')
    trained = _read_list(train)[1] if split == "test" and is_file(train) else labels
    classes, names = class_labels(labels, lambda row: f'list: {file}: "{paths[row]}"', of_training=trained)
    return ImageDataset(ImageStore(paths, paths, folder=folder), classes, names)


def _read_list(file: Path) -> tuple[list[str], list[Any]]:
    """Return paths and labels: whole numbers where the first label is one, else text."""
    try:
        lines = [line.strip() for line in read_text(file, _MAX_LIST_BYTES).splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"list: {file} cannot be read as text: {error}") from None
    if file.suffix.lower() == ".csv":
        rows = [row for row in csv.reader(lines) if row != ["path", "label"]]
    else:
        rows = [line.rsplit(maxsplit=1) for line in lines]  # a path may contain spaces
    odd = next((row for row in rows if len(row) != 2), None)
    if odd or not rows:
        raise DataError(f'list: {file}: found "{" ".join(odd or [])[:80]}", expected a path and a label')
    labels: list[Any] = [label for _, label in rows]
    if _NUMBER.fullmatch(labels[0]):
        labels = [int(label) if _NUMBER.fullmatch(label) else label for label in labels]
    return [path for path, _ in rows], labels


# --- parquet files, read by Hugging Face `datasets` -----------------------------------------------------


def _patterns(name: str) -> list[str]:
    """Return patterns for the files of a split: train.parquet, train-*.parquet, or those in a folder."""
    is_pattern = name.endswith(".parquet") or "*" in name
    return [name] if is_pattern else [f"{name}.parquet", f"{name}-*.parquet", f"{name}/*.parquet"]


def split_files(folder: Path, name: str) -> list[Path]:
    """Return the parquet files of a split, a file name or a pattern in a folder, in the order of names."""
    found = {file for pattern in _patterns(name) for file in glob(pattern, root_dir=folder)}  # noqa: PTH207
    return [folder / file for file in sorted(found)]


def _load(files: list[Path], source: Parquet) -> Columns:
    try:
        from datasets import load_dataset
    except ImportError:
        raise DataError("parquet: needs the package datasets: pip install datasets") from None
    try:
        data = load_dataset("parquet", data_files=[*map(str, files)], split="train")
    except Exception as error:  # of arrow and of datasets, for damage and for files of other columns
        cause = " ".join(str(error.__cause__ or error).split())
        raise DataError(f"parquet: {few([*map(str, files)])} cannot be read: {cause}") from None
    return columns_of(data, f"parquet: {files[0]}", source.image, source.label)


def open_parquet(source: Parquet, split: Split, root: Path | None) -> ImageDataset:
    """Return the images that a split's parquet files hold; rows in the order of the files' names."""
    import pyarrow.parquet as pq

    folder = require_path(root, ".", "parquet: no folder")
    wanted = source.train if split == "train" else source.test
    files, trained = split_files(folder, wanted), split_files(folder, source.train)
    if not files:
        beside = few([name for name in names_in(folder) if name.endswith(".parquet")]) or "none"
        raise DataError(f'parquet: no "{wanted}" in {folder}, found {beside}; others: data.source.{split}')
    images, paths, labels, names = _load(files, source)
    places = [f"{file.name}#{row}" for file in files for row in range(pq.read_metadata(file).num_rows)]
    known_as = [path or place for path, place in zip(paths, places, strict=True)]
    store = ImageStore(images, known_as, tables=Encoded(files, source.image), has_copies=True)
    if labels is None:
        return ImageDataset(store, np.full(len(places), -1), [])
    of_training = _load(trained, source).labels if split == "test" and trained and names is None else None
    numbers, classes = class_labels(
        labels, lambda row: f"parquet: {folder}/{places[row]}", of_training=of_training, names=names
    )
    return ImageDataset(store, numbers, classes)


def open_hub(source: HubDataset, split: Split, root: Path | None) -> ImageDataset:
    """Return a split of a data set on the Hub, whose parquet files are fetched into its cache and read there.

    Where the Hub does not answer, what the cache has of the commit, or of the branch's last known one, is
    taken, which `datasets.load_dataset("org/name")` does not do.
    """
    from huggingface_hub import snapshot_download

    from zoo.hub.client import hub_errors

    names = {source.train, source.train if split == "train" else source.test}  # training names the classes
    needed = [str(PurePosixPath(source.config, each)) for name in names for each in _patterns(name)]
    where = f'Hub data set "{source.repo}"' + (f' at revision "{source.revision}"' if source.revision else "")
    with hub_errors(where, DataError):
        fetched = snapshot_download(
            source.repo,
            repo_type="dataset",
            revision=source.revision,
            allow_patterns=needed,
            library_name="zoo",
        )
    section = Parquet(train=source.train, test=source.test, label=source.label)
    opened = open_parquet(section, split, Path(fetched, source.config))
    opened.settings.update(hub_id=source.repo, hub_commit=Path(fetched).name, hub_folder=source.config)
    return opened


# --- a split of the configured data ---------------------------------------------------------------------

_READERS: dict[str, Callable[[Any, Split, Path | None], ImageDataset]] = {
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
    source = config.source if listed is None else as_archive(config.source)
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
    if listed is not None:
        return find_listed(whole, listed)
    dataset = whole
    if tail is not None:
        dataset = dataset.subset(select_long_tail(tail, dataset.labels, len(names), names))
    if part is not None:
        dataset = dataset.subset(select_subset(part, dataset.labels, len(names), names))
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
