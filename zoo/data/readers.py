"""One reader for each kind of source: a split's images by row, their labels and the names of the classes."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Any

import numpy as np

from zoo.data.config import Digits, Folder, HubDataset, ListFiles, Parquet, TorchvisionSource
from zoo.data.dataset import Encoded, ImageDataset, ImageStore, Split
from zoo.data.labels import class_labels
from zoo.errors import DataError, did_you_mean, few
from zoo.files import exists, is_dir, is_file, names_in, read_text

DIGITS_TRAIN_PER_CLASS = 125  # the smallest class has 174 images
IMAGES = {"train": 50_000, "test": 10_000}  # of CIFAR
CIFAR = {
    "cifar10": ("cifar-10-batches-py", "label"),
    "cifar100": ("cifar-100-python", "fine_label"),
}
"""The folder of torchvision's archive, and the column of labels in the Hub's parquet files."""

_MAX_LIST_BYTES = 1 << 30  # several times the list of the largest public data set
_HEADERS = {"path", "file", "filename", "file_name", "filepath", "image", "image_path", "image_id"}
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


def cifar_parquet(kind: str) -> Parquet:
    """Return the source that reads CIFAR's parquet files of the Hub."""
    return Parquet(train="train-*.parquet", test="test-*.parquet", image="img", label=CIFAR[kind][1])


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
        found = open_parquet(cifar_parquet(source.kind), split, shards[0].parent)
        sizes = (len(found), found.num_classes)
        expected = (IMAGES[split], int(source.kind.removeprefix("cifar")))
        if sizes != expected:
            raise DataError(f"{source.kind}: {root}: found {sizes} images and classes, expected {expected}")
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


def is_visible(name: str) -> bool:
    """Return whether a file or folder is none of .git, .DS_Store, ._photo.jpg, __MACOSX and the like."""
    return not name.startswith(".") and name != "__MACOSX"


def folders_in(folder: Path) -> list[str]:
    """Return the sorted names of the visible folders in a folder."""
    return [name for name in names_in(folder) if is_visible(name) and is_dir(folder / name)]


def has_image(folder: Path) -> bool:
    """Return whether an image file lies directly in a folder."""
    from torchvision.datasets.folder import is_image_file

    return any(is_visible(name) and is_image_file(name) for name in names_in(folder))


def image_files(folder: Path, classes: Mapping[str, int] | None = None) -> list[tuple[str, int]]:
    """Return path and class of the images in a folder, at any depth, in torchvision's order: by folder, name.

    `classes` numbers the folders in it that are read; None: all images, without a class (-1).
    """
    from torchvision.datasets.folder import is_image_file, make_dataset

    top = len(str(folder / "x")) - 1

    def is_valid(path: str) -> bool:  # by strings: millions of paths would take minutes
        return is_image_file(path) and all(map(is_visible, path[top:].split(os.sep)))  # noqa: PTH206

    found = make_dataset(str(folder), classes or {"": -1}, is_valid_file=is_valid, allow_empty=True)
    return [(path[top:].replace(os.sep, "/"), label) for path, label in found]


def open_folder(source: Folder, split: Split, root: Path | None) -> ImageDataset:
    """Return an ImageFolder tree; its classes are the sorted names of the training split's folders, if any.

    A test split may lack some of them, and has no others.
    """
    path = require_path(root, source.train if split == "train" else source.test, f"folder: no {split} folder")
    train, here = Path(root or "", source.train), folders_in(path)
    classes = folders_in(train) if is_dir(train) else here
    labels, names = class_labels(here, lambda row: f"folder: {path / here[row]}", names=classes)
    places = dict(zip(here, labels.tolist(), strict=True))
    found = image_files(path, places or None) if places or not classes else []
    paths = [each for each, _ in found]
    return ImageDataset(ImageStore(paths, paths, folder=path), [label for _, label in found], names)


def open_list(source: ListFiles, split: Split, root: Path | None) -> ImageDataset:
    """Return the images of a list file: lines "path label", or columns "path,label" if its name ends in .csv.

    The label of a line begins after its last tab, or without one after its last space. The first row of a CSV
    file may be a header.

    Raises:
        DataError: for an image with two labels, labels that are no classes, a first image that is not there.
    """
    folder = require_path(root, source.images, "list: no folder of images")
    file = require_path(root, source.train if split == "train" else source.test, f"list: no {split} list")
    (paths, labels), train = _read_list(file), Path(root or "", source.train)
    if not is_file(folder / paths[0]):  # a wrong folder would make every image an unreadable one
        raise DataError(f'list: {file.name} names "{paths[0]}", but there is no {folder / paths[0]}')
    names = None
    if source.class_names is not None:
        names = _lines(require_path(root, source.class_names, "list: no file of class names"))
    trained = _read_list(train)[1] if split == "test" and is_file(train) else labels
    where = [f'list: {file}: "{path}"' for path in paths]
    classes, class_names = class_labels(labels, where.__getitem__, of_training=trained, names=names)
    return ImageDataset(ImageStore(paths, paths, folder=folder), classes, class_names)


def _read_list(file: Path) -> tuple[list[str], list[Any]]:
    """Return paths and labels: whole numbers where the first label is one, else text."""
    lines = [line.strip() for line in _lines(file)]
    if file.suffix.lower() == ".csv":
        rows = [*csv.reader(lines, skipinitialspace=True)]
        rows = rows[1:] if rows and rows[0][:1] and rows[0][0].strip().lower() in _HEADERS else rows
    else:  # a path may contain spaces
        rows = [[*line.rpartition("\t" if "\t" in line else " ")[::2]] for line in lines]
    paths, labels, known = list[str](), list[Any](), dict[str, str]()
    for row in rows:
        cells = [cell.strip() for cell in row]
        if not any(cells):
            continue
        if len(cells) != 2 or not all(cells):
            raise DataError(f'list: {file}: found "{",".join(cells)[:80]}", expected a path and a label')
        path, label = cells
        if known.setdefault(path, label) != label:
            raise DataError(
                f'list: {file}: "{path}" has the labels "{known[path]}" and "{label}", expected one'
            )
        paths.append(path)
        labels.append(label)
    if not paths:
        raise DataError(f"list: {file} names no images")
    if _NUMBER.fullmatch(labels[0]):
        labels = [int(label) if _NUMBER.fullmatch(label) else label for label in labels]
    return paths, labels


def _lines(file: Path) -> list[str]:
    try:
        return read_text(file, _MAX_LIST_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"list: {file} cannot be read as text: {error}") from None


# --- parquet files, read by Hugging Face `datasets` -----------------------------------------------------


def _patterns(name: str) -> list[str]:
    """Return patterns for the files of a split: train.parquet, train-*.parquet, or those in a folder."""
    is_pattern = name.endswith(".parquet") or "*" in name
    return [name] if is_pattern else [f"{name}.parquet", f"{name}-*.parquet", f"{name}/*.parquet"]


def split_files(folder: Path, name: str) -> list[Path]:
    """Return the parquet files of a split, a file name or a pattern in a folder, in the order of names."""
    found = {file for pattern in _patterns(name) for file in glob(pattern, root_dir=folder)}  # noqa: PTH207
    return [folder / file for file in sorted(found)]


def features_of(file: Path) -> Any:
    """Return the columns of a parquet file, `datasets.Features`; raise DataError where it cannot be read."""
    try:
        import pyarrow.parquet as pq
        from datasets import Features
    except ImportError:
        raise DataError("parquet: needs the package datasets: pip install datasets") from None
    with _reading(file):
        return Features.from_arrow_schema(pq.read_schema(file))


@contextmanager
def _reading(*files: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of arrow and of datasets, for damage and for columns of other types
        cause = " ".join(str(error.__cause__ or error).split())
        raise DataError(f"parquet: {few([*map(str, files)])} cannot be read as images: {cause}") from None


def columns_of(features: Mapping[str, Any], where: str, image: str, label: str) -> tuple[str, str | None]:
    """Return the column of images and that of labels: `image` and `label`, else the only one of its type.

    Labels are in a column of class labels, else of whole numbers or text; None: there is none.

    Raises:
        DataError: for no image column, or several columns that could be meant.
    """
    kinds = {name: _kind(feature) for name, feature in features.items()}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    labels = labels or [name for name, kind in kinds.items() if kind.startswith(("int", "uint", "string"))]
    for key, name, found, default in (("image", image, images, "img"), ("label", label, labels, "label")):
        if name in kinds:
            found[:] = [name]
        elif name != default or len(found) > 1 or not images:
            hint = did_you_mean(name, kinds)
            raise DataError(f'{where}: no {key} "{name}", expected {key}= one of {", ".join(kinds)}.{hint}')
    return images[0], next(iter(labels), None)


def _kind(feature: Any) -> str:
    """Return "Image" for encoded images in any form, "ClassLabel", or a type such as "int64"."""
    if isinstance(feature, dict):
        return "Image" if "bytes" in feature else "struct"
    kind = feature.dtype if type(feature).__name__ == "Value" else type(feature).__name__
    return "Image" if kind in ("binary", "large_binary") else str(kind).removeprefix("large_")


def open_parquet(source: Parquet, split: Split, root: Path | None, *, linked: bool = True) -> ImageDataset:
    """Return a split's images; rows in the order of the files' names.

    Images may lie in files of their own, which the table names, where it is `linked`.
    """
    folder = require_path(root, ".", "parquet: no folder")
    wanted = source.train if split == "train" else source.test
    files, trained = split_files(folder, wanted), split_files(folder, source.train)
    if not files:
        beside = few([name for name in names_in(folder) if name.endswith(".parquet")]) or "none"
        raise DataError(f'parquet: no "{wanted}" in {folder}, found {beside}; others: data.source.{split}')
    features = {file: features_of(file) for file in (*files, *trained)}
    image, label = columns_of(features[files[0]], f"parquet: {files[0]}", source.image, source.label)
    known = [getattr(each.get(label), "names", None) for each in features.values()]
    if any(names != known[0] for names in known):  # the same number would mean another class
        raise DataError(
            f'parquet: files of {folder} name other classes in "{label}", expected the same in all'
        )
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = _read_tables(files, image, label)
    places = [f"{file.name}#{row}" for file in files for row in range(pq.read_metadata(file).num_rows)]
    paths = pc.struct_field(table[image], "path").to_pylist()
    store = ImageStore(
        table[image] if linked else pc.struct_field(table[image], "bytes"),
        [path or place for path, place in zip(paths, places, strict=True)],
        folder=files[0].parent,
        tables=Encoded(files, image),
        has_copies=True,
    )
    if label is None:
        return ImageDataset(store, np.full(len(places), -1), [])
    labels = of_training = table[label].to_pylist()
    if split == "test" and trained and not known[0]:
        of_training = _read_tables(trained, None, label)[label].to_pylist()
    where = [f'parquet: "{label}" of {folder}/{place}' for place in places]
    numbers, names = class_labels(labels, where.__getitem__, of_training=of_training, names=known[0])
    return ImageDataset(store, numbers, names)


def _read_tables(files: Sequence[Path], image: str | None, label: str | None) -> Any:
    """Return columns of all files, mapped from the cache of `datasets`; images are {bytes, path}."""
    from datasets import Image, load_dataset

    with _reading(*files):
        columns = [*dict.fromkeys(filter(None, (image, label)))]
        data = load_dataset("parquet", data_files=[*map(str, files)], columns=columns, split="train")
        data = data.cast_column(image, Image(decode=False)) if image else data
        return data.with_format("arrow")[:]


def open_hub(source: HubDataset, split: Split, root: Path | None) -> ImageDataset:
    """Return a split of a data set on the Hub, whose parquet files are fetched into its cache and read there.

    Where the Hub does not answer, what the cache has of the commit, or of the branch's last known one, is
    taken, which `datasets.load_dataset("org/name")` does not do.
    """
    from huggingface_hub import snapshot_download

    from zoo.hub.client import hub_errors

    where = f'Hub data set "{source.repo}"' + (f' at revision "{source.revision}"' if source.revision else "")
    wanted = source.train if split == "train" else source.test
    tops = ["", "*/"] if source.config is None else ["" if source.config == "." else f"{source.config}/"]
    needed = [f"{top}{each}" for top in tops for name in {source.train, wanted} for each in _patterns(name)]
    with hub_errors(where, DataError):  # the training split says what the classes are
        fetched = snapshot_download(
            source.repo,
            repo_type="dataset",
            revision=source.revision,
            allow_patterns=needed,
            library_name="zoo",
        )
    snapshot = Path(fetched)
    places = (path for path in (snapshot, *sorted(snapshot.rglob("*"))) if path.name != wanted)
    found = [each.relative_to(snapshot).as_posix() for each in places if split_files(each, wanted)]
    inside = source.config or next(iter(found), ".")
    if inside not in found or (source.config is None and len(found) > 1):
        raise DataError(
            f'{where}: found parquet files of "{wanted}" in {", ".join(found) or "no folder"}, expected one: '
            f"data.source.config and .{split}; other formats: revision refs/convert/parquet"
        )
    section = Parquet(train=source.train, test=source.test, label=source.label or "label")
    opened = open_parquet(section, split, snapshot / inside, linked=False)  # no file of this machine
    opened.settings.update(hub_id=source.repo, hub_commit=snapshot.name, hub_folder=inside)
    return opened
