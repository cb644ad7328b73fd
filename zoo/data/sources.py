"""Readers for all kinds of sources; `open_dataset` applies holdout, long tail, subset and partial labels."""

from __future__ import annotations

import csv
import os
import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from glob import glob
from os.path import exists, isdir, realpath
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zoo.data import config as sections
from zoo.data.config import DataConfig, Folder, Holdout, ListFiles, Memory, Parquet, Source
from zoo.data.dataset import ImageDataset, ImageStore, Root, Split, find_listed, table_rows, to_dataset
from zoo.data.long_tail import draw_candidates, select_long_tail, select_subset, stratified_split
from zoo.errors import DataError, ZooWarning, did_you_mean, few
from zoo.files import list_names, read_text
from zoo.hub.names import cached_commit
from zoo.release.schema import CLASS_NAMES, invalid_class_name
from zoo.release.tensors import ImageList

CIFAR = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}  # torchvision's archives
_KNOWN = ("digits", *CIFAR)  # identified by name: every copy has the same images
_CIFAR_TABLES = {
    kind: Parquet(train="train-*.parquet", test="test-*.parquet", image="img", label=label)
    for kind, label in (("cifar10", "label"), ("cifar100", "fine_label"))
}
_NUMBER = re.compile(r"0|[1-9][0-9]*")  # `007` is text
_IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".jfif")
_NOT_READ = (".heic", ".heif", ".avif", ".gif", ".jxl", ".dng", ".cr2", ".nef", ".arw")


def open_digits(source: sections.Digits, split: Split, root: Path) -> ImageStore:
    """Return the digits, class by class: the first 125 of a fixed permutation to train, the rest to test."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    random = np.random.RandomState(0)  # all published results depend on this split
    part = slice(125) if split == "train" else slice(125, None)  # the smallest class has 174 images
    chosen = np.concatenate([random.permutation(np.flatnonzero(digits.target == c))[part] for c in range(10)])
    pixels = np.rint(digits.images[chosen] * (255 / 16)).astype(np.uint8)  # stored as 0..16
    names, labels = [f"digits/{row}" for row in chosen], digits.target[chosen].tolist()
    return ImageStore(pixels, names, labels, [str(c) for c in range(10)])


def as_archive(source: Source) -> Source:
    """Return CIFAR's source for a recipe that names CIFAR's parquet files; other sources unchanged."""
    kind = next((kind for kind, tables in _CIFAR_TABLES.items() if source == tables), None)
    return source if kind is None else sections.TorchvisionSource.model_validate({"kind": kind})


def cifar_archive(kind: str, root: Path) -> Path:
    """Return where CIFAR's unpacked archive is or would be: the folder itself, or a subfolder."""
    return root if root.name == CIFAR[kind] else root / CIFAR[kind]


def cifar_shards(root: Path, split: Split = "train") -> list[Path]:
    """Return the Hub's parquet files of CIFAR in a folder, or in a subfolder named as on the Hub."""
    places = (root / name for name in ("", "data", "plain_text", "cifar100"))
    return next(filter(None, (split_files(place, f"{split}-*.parquet") for place in places)), [])


def are_cifar_shards(shards: Sequence[Path], kind: str) -> bool:
    """Return whether parquet files have CIFAR's columns: other data sets use the same file names."""
    with suppress(Exception):  # no pyarrow, or a damaged file: reported when it is opened
        from pyarrow.parquet import read_schema

        return {_CIFAR_TABLES[kind].image, _CIFAR_TABLES[kind].label} <= {*read_schema(shards[0]).names}
    return bool(shards)


def open_cifar(source: sections.TorchvisionSource, split: Split, root: Path) -> ImageStore:
    """Return CIFAR-10 or CIFAR-100 from torchvision's archive, or from the Hub's parquet files.

    The archive takes precedence, even if it is damaged, so that runs never silently switch: the two have
    different row orders, and long tails and subsets are drawn by row.
    """
    from torchvision import datasets

    archive = cifar_archive(source.kind, root)
    if not isdir(archive) and (shards := cifar_shards(root, split)):
        store = open_parquet(_CIFAR_TABLES[source.kind], split, shards[0].parent)
        return replace(store, settings={"files": ", ".join(file.name for file in shards)})
    cls = datasets.CIFAR10 if source.kind == "cifar10" else datasets.CIFAR100
    try:  # the archive contains pickles: torchvision verifies their checksums first
        data = cls(str(archive.parent), train=split == "train", download=source.download)
    except (RuntimeError, OSError) as error:
        found = f'"{archive}" is not there or not whole: {" ".join(str(error).split())}'
        raise DataError(f"{found} Expected it in --data DIR, or data.source.download: true") from None
    names = [f"{source.kind}/{split}/{row}" for row in range(len(data.targets))]
    return ImageStore(data.data, names, data.targets, data.classes, {"files": archive.name}, has_copies=True)


def _is_visible(name: str) -> bool:
    """Whether a name is neither hidden nor system clutter: .git, .DS_Store, ._photo.jpg, __MACOSX, @eaDir."""
    return not name.startswith((".", "@eaDir")) and name != "__MACOSX"


def _is_image(name: str) -> bool:
    return _is_visible(name) and name.lower().endswith(_IMAGES)


def folders_in(folder: Path) -> list[str]:
    """Return the sorted names of the visible folders in a folder."""
    return [name for name in list_names(folder) if _is_visible(name) and isdir(folder / name)]


def has_image(folder: Path) -> bool:
    """Return whether a folder directly contains an image file."""
    return any(map(_is_image, list_names(folder)))


def image_files(folder: Path) -> list[str]:
    """Return the relative paths of all images below a folder, ordered as torchvision does."""
    found, above = list[tuple[str, list[str]]](), {str(folder): {*map(str, (folder.resolve() / "_").parents)}}
    for place, inner, names in os.walk(folder, followlinks=True):
        real = {name: realpath(f"{place}/{name}") for name in inner if _is_visible(name)}
        inner[:] = [name for name, target in real.items() if target not in above[place]]  # no loops of links
        above |= {f"{place}/{name}": above[place] | {real[name]} for name in inner}
        found.append((place, images := sorted(filter(_is_image, names))))
        rest = {*names} - {*images} if len(images) < len(names) else ()
        if other := {Path(name).suffix for name in rest if name.lower().endswith(_NOT_READ)}:
            warnings.warn(f"data: {few(sorted(other))} files are left out, expected e.g. .jpg", ZooWarning, 2)
    inside = [(f"{place}/"[len(f"{folder}/") :], names) for place, names in sorted(found)]
    return [place + name for place, names in inside for name in names]


def open_folder(source: Folder, split: Split, root: Path) -> ImageStore:
    """Return the images of `CLASS/IMAGE` in torchvision's order, or images without classes.

    Classes are the sorted names of the training split's folders; a test split may have no others.
    """
    path, train = root / getattr(source, split), root / source.train
    if not isdir(path):
        raise DataError(f'folder: no {split} folder "{path}".{did_you_mean(path.name, list_names(root))}')
    trained = train if isdir(train) else path
    classes = [] if has_image(trained) or has_image(path) else folders_in(trained)  # no image may be skipped
    if not classes:
        paths = image_files(path)
        return ImageStore(paths, paths, folder=path)
    files = {name: image_files(path / name) for name in folders_in(path)}
    paths = [f"{name}/{file}" for name, inside in files.items() for file in inside]
    labels = [name for name, inside in files.items() for _ in inside]
    return ImageStore(paths, paths, labels, classes, folder=path)


def open_list(source: ListFiles, split: Split, root: Path) -> ImageStore:
    """Return the images of a list file: lines "path label", or columns path,label if it is a .csv file.

    Labels are read as numbers if the first one is a number.
    """
    file = root / getattr(source, split)
    text = read_text(file, DataError, 1 << 30)  # several times the largest public list
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if file.suffix.lower() == ".csv":
        rows = [*csv.reader(lines, skipinitialspace=True)]
    else:
        rows = [line.rsplit(maxsplit=1) for line in lines]  # a path may contain spaces
    if rows and not {*"./"} & {*rows[0][0]} and not exists(root / rows[0][0]):  # a header
        rows = rows[1:]
    if odd := next((row for row in rows or [["nothing"]] if len(row) != 2), None):
        raise DataError(f'list: {file}: found "{" ".join(odd)[:80]}", expected a path and a label')
    paths, labels = [path for path, _ in rows], list[Any]([label for _, label in rows])
    if _NUMBER.fullmatch(labels[0]):
        labels = [int(label) if _NUMBER.fullmatch(label) else label for label in labels]
    return ImageStore(paths, paths, labels, folder=root)


def split_files(folder: Path, name: str) -> list[Path]:
    """Return the parquet files of a split (a name, file or pattern) in a folder, sorted by name."""
    is_pattern = name.endswith(".parquet") or "*" in name
    patterns = [name] if is_pattern else [f"{name}.parquet", f"{name}-*.parquet", f"{name}/*.parquet"]
    found = {file for pattern in patterns for file in glob(pattern, root_dir=folder)}  # noqa: PTH207
    return [folder / file for file in sorted(found)]


def open_parquet(source: Parquet, split: Split, root: Path) -> ImageStore:
    """Return the images in a split's parquet files, ordered by file name."""
    if not (files := split_files(root, getattr(source, split))):
        wanted, found = getattr(source, split), few(list_names(root)) or "nothing"
        raise DataError(f'parquet: no "{wanted}" (data.source.{split}) in {root}, found {found}')
    try:
        from datasets import load_dataset
        from pyarrow.parquet import read_metadata

        data = load_dataset("parquet", data_files=[*map(str, files)], split="train")
        names = [f"{file.name}#{row}" for file in files for row in range(read_metadata(file).num_rows)]
        store = table_rows(data, names, source.image, source.label, files)
    except Exception as error:  # from arrow or datasets: damaged files, columns of other types
        cause = " ".join(str(error.__cause__ or error).split())
        raise DataError(f"parquet: {few([*map(str, files)])} cannot be read as images: {cause}") from None
    facts = zip(("hub_id", "hub_commit"), cached_commit(root, "datasets") or (), strict=False)
    return replace(store, settings=dict(facts))


_READERS: dict[str, Callable[[Any, Split, Path], ImageStore]] = {
    **{"digits": open_digits, "cifar10": open_cifar, "cifar100": open_cifar},
    **{"folder": open_folder, "list": open_list, "parquet": open_parquet},
}


def open_dataset(
    config: DataConfig, split: Split, root: Root, listed: ImageList | None = None, *, unlabelled: bool = False
) -> ImageDataset:
    """Open one split of the configured data, including its selection of images and labels.

    Long tail, subset and partial labels apply to `train` only, in this order. Some classes may have no
    training image. `root` is the data folder, or images in memory. A release's `listed` images are found by
    content instead of being drawn. With `unlabelled`, data may lack classes.

    Raises:
        DataError: naming what is missing or malformed; `OtherImages` if listed images are missing.
    """
    source = config.source if listed is None else as_archive(config.source)
    found = _read(config, source, split if config.holdout is None else "train", root)
    dataset = found if config.holdout is None else found.subset(_rows_of(config.holdout, found, split))
    selection = (config.long_tail, config.subset, config.partial_labels)
    tail, part, partial = selection if split == "train" else (None, None, None)
    if len(found) and not found.class_names and (not unlabelled or tail or part or partial):
        lacking = f'data "{data_name(source, root)}": the images of the {split} split have no labels'
        raise DataError(f"{lacking}, expected CLASS/IMAGE alone in a folder, or (image, label) in Python")
    if len(dataset) == 0:
        why = ": no class has two, one of which could be held out" if len(found) and config.holdout else ""
        raise DataError(f"{source.kind}: the {split} split has no images{why}")
    optional = {"holdout": config.holdout, "subset": part}  # absent if unused, as in older releases
    settings = {
        "name": data_name(source, root),
        "source": source.kind,
        "split": split,
        "long_tail": tail.model_dump() if tail else None,
        "partial_labels": None,
        **{key: section.model_dump() for key, section in optional.items() if section},
        **({} if source.kind in _KNOWN or as_archive(source) != source else {"content": found.sample_hash}),
        **found.settings,
    }
    dataset = replace(dataset, settings=settings)
    if listed is not None:
        return find_listed(dataset, listed)
    if tail is not None:
        dataset = dataset.subset(select_long_tail(tail, dataset.labels, dataset.num_classes))
    if part is not None:
        dataset = dataset.subset(select_subset(part, dataset.labels, dataset.num_classes))
    if partial is None:
        return dataset
    origin = partial.model_dump() | ({"groups": len(partial.groups)} if partial.kind == "grouped" else {})
    candidates = draw_candidates(partial, dataset.labels, dataset.class_names)
    return dataset.with_candidates(candidates, origin=origin)


def _read(config: DataConfig, source: Source, split: Split, root: Root) -> ImageDataset:
    """Return a split of a source; DataError if a release cannot record its name or class names."""
    if isinstance(source, Memory):
        if split not in (sets := getattr(root, "sets", {})):
            raise DataError(f'{source.name}: found no part "{split}", expected it in Python as data')
        found: ImageDataset = sets[split]
    else:
        if not isinstance(root, str | Path) and source.kind != "digits":
            raise DataError(f"{source.kind}: no data folder given: --data DIR")
        if Path(given := getattr(source, split, "")).is_absolute():
            raise DataError(f'data.source.{split}: found "{given}", expected a place inside --data DIR')
        folder, read = Path(root if isinstance(root, str | Path) else ""), _READERS[source.kind]
        store = trained = read(source, split, folder)
        is_open = isinstance(source, Parquet) or store.class_names is None  # classes depend on `train`
        if split == "test" and is_open and has_training_split(config, root):
            trained = read(source, "train", folder)
        found = to_dataset(store, trained, source.kind)
    if (place := invalid_class_name(names := [data_name(source, root), *found.class_names])) is not None:
        raise DataError(f"{source.kind}: found the name {names[place][:80]!r}, expected {CLASS_NAMES}")
    return found


def _rows_of(holdout: Holdout, whole: ImageDataset, split: Split) -> NDArray[np.int64]:
    """Return the ascending rows of a split under a holdout; repeated rows of an image are dropped."""
    is_test, fraction = split == "test", holdout.fraction
    if not 0 < fraction < 1 or (whole.labels < 0).any():  # without labels there is no share of each class
        return np.arange(len(whole) if is_test == (fraction == 1) else 0)
    rows = np.unique(np.array(whole.store.first_rows(), dtype=np.int64))
    return rows[stratified_split(whole.labels[rows], fraction, holdout.seed)[is_test]]


def data_name(source: Source, root: Root) -> str:
    """Return a name for the data that distinguishes folders and, for parquet, label columns."""
    if source.kind in (*_KNOWN, "memory"):
        return str(getattr(source, "name", source.kind))
    place = Path(root).resolve() if isinstance(root, str | Path) else Path(source.kind)
    name, *_ = cached_commit(place, "datasets") or [place.name]
    return f"{name} {source.label}" if isinstance(source, Parquet) else name


def has_training_split(config: DataConfig, root: Root) -> bool:
    """Return whether the data have training images, not only a labelled test split."""
    if config.holdout is not None:
        return config.holdout.fraction < 1
    source = config.source
    if isinstance(source, Memory):
        return "train" in getattr(root, "sets", {})
    if isinstance(source, Parquet):
        return bool(split_files(Path(str(root)), source.train))
    return not isinstance(source, Folder | ListFiles) or exists(Path(str(root), source.train))
