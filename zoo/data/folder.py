"""Image files: in a folder for each class, alone, or named by lists, as ImageNet-LT and Places-LT come."""

from __future__ import annotations

import csv
import os
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from zoo.data.config import Folder, ListFiles
from zoo.data.dataset import ImageDataset, ImageStore, Split
from zoo.data.labels import class_labels, nearest_class
from zoo.errors import DataError, ZooWarning, did_you_mean, few
from zoo.files import exists, is_dir, is_file, names_in, read_text
from zoo.launch import rank

_MOST = 1000  # entries of one folder that are looked at: it may have millions
_MAX_LIST_BYTES = 1 << 30  # several times the list of the largest public data set
_HEADERS = {"path", "file", "filename", "file_name", "filepath", "image", "image_path", "image_id"}
_NUMBER = re.compile(r"0|[1-9][0-9]*")  # `007` is text
_NO_CLASS = re.compile(r"-[0-9]+|[-+]?[0-9]+\.[0-9]*")


def require_path(root: Path | None, given: str, kind: str, what: str = "data folder") -> Path:
    """Return the file or folder `given`, relative to the data folder unless absolute.

    Raises:
        DataError: naming `what` is missing and what lies beside it, or that no data folder was given.
    """
    if root is None and not Path(given).is_absolute():
        raise DataError(f"{kind}: no data folder given; give the one that holds the data with --data DIR")
    path = Path(root or "", given)
    if not exists(path):
        beside = names_in(path.parent)
        hint = did_you_mean(path.name, beside) or f" There are: {few(beside) or 'no files'}"
        raise DataError(f'{kind}: no {what} "{given}", looked for {path}.{hint}')
    return path


def is_visible(name: str) -> bool:
    """Whether that is none of .ipynb_checkpoints, .git, .DS_Store, ._photo.jpg, __MACOSX and the like."""
    return not name.startswith(".") and name != "__MACOSX"


def folders_in(folder: Path) -> list[str]:
    """Return the sorted names of the visible folders in a folder."""
    return [name for name in names_in(folder) if is_visible(name) and is_dir(folder / name)]


def first_image(folder: Path) -> Path | None:
    """Return an image file that lies directly in a folder; None: there is none that is seen soon."""
    from torchvision.datasets.folder import IMG_EXTENSIONS

    with suppress(OSError, ValueError), os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, _MOST) if is_visible(entry.name)]
        images = (folder / name for name in names if name.lower().endswith(IMG_EXTENSIONS))
        return next(filter(is_file, images), None)
    return None


def image_files(folder: Path) -> list[str]:
    """Return the images in a folder at any depth, as paths relative to it, in torchvision's order.

    That is by folder, then by name. Links are followed. Hidden files and folders are left out; so are files
    of other endings than torchvision's for images, with a warning that counts them.

    Raises:
        DataError: for a folder that may not be read.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS

    def refuse(error: OSError) -> NoReturn:
        raise DataError(f'images: the folder "{error.filename}" cannot be read: {error.strerror}')

    found: list[tuple[str, str]] = []
    endings = Counter[str]()
    for place, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        folders[:] = filter(is_visible, folders)
        for name in filter(is_visible, files):
            if name.lower().endswith(IMG_EXTENSIONS):
                found.append((place, name))
            else:
                endings[Path(name).suffix.lower() or "none"] += 1
    if endings and rank() == 0:
        counts = ", ".join(f"{ending} {number}" for ending, number in endings.most_common(6))
        told = f"{folder}: files of other endings are left out: {endings.total():,} ({counts})"
        warnings.warn(told, ZooWarning, stacklevel=2)
    top = len(str(folder)) + 1  # strings: of millions of files, paths would take minutes
    return ["/".join(filter(None, (place[top:].replace(os.sep, "/"), name))) for place, name in sorted(found)]


def open_folder(source: Folder, split: Split, root: Path | None) -> ImageDataset:
    """Return an ImageFolder tree, hidden files left out; its classes are the sorted names of the folders.

    They are the training split's, where there is one: a test split may lack some, as a class of one
    photograph has none to test on. A training split whose images lie in no class folders has no classes.

    Raises:
        DataError: for a missing folder, a class without training images, or a test class without its
            training class.
    """
    path = require_path(root, source.train if split == "train" else source.test, "folder", f"{split} folder")
    train, here = Path(root or "", source.train), folders_in(path)
    paths = image_files(path)
    store = ImageStore(paths, paths, folder=path)
    if split == "train" and not here and paths:
        return ImageDataset(store, np.full(len(paths), -1), [])
    classes = folders_in(train) if split == "test" and is_dir(train) else here
    places = {name: place for place, name in enumerate(classes)}
    unknown = next((name for name in here if name not in places), None)
    if unknown is not None:
        raise DataError(
            f'folder: class "{unknown}" of {path} is not among the {len(classes)} of {train}.'
            f"{nearest_class(unknown, classes)}"
        )
    labelled = [(places[name.split("/")[0]], row) for row, name in enumerate(paths) if "/" in name]
    labelled.sort()  # class by class: "b/deep" comes after "b-c"
    present = {label for label, _ in labelled}
    empty = [name for name, place in places.items() if place not in present]
    if not present or (empty and split == "train"):
        raise DataError(f"folder: found no image in {path}/{empty[0] if empty else 'CLASS'}, expected some")
    if empty and rank() == 0:
        warnings.warn(
            f"folder: {path} has no image of {len(empty)} of the {len(classes)} classes ({few(empty)}): what "
            "is measured on it is over the others",
            ZooWarning,
            stacklevel=2,
        )
    labels, rows = zip(*labelled, strict=True)
    return ImageDataset(store, labels, classes, rows=rows)


def open_list(source: ListFiles, split: Split, root: Path | None) -> ImageDataset:
    """Return the images of a list file: lines "path label", or columns "path,label" if its name ends in .csv.

    Labels are numbers from 0 to the largest one of the training list, without gaps, or text: then the
    classes are the training list's words in sorted order, or in the order of the file of class names. `007`
    is text. The label of a line begins after its last tab, or without one after its last space. The first row
    of a CSV file may be a header whose first column is called "path", "file", "image" or the like.

    Raises:
        DataError: naming the list and the line, for an image that is not there or has two labels, and for
            labels that are no classes.
    """
    folder = require_path(root, source.images, "list", "folder of images")
    file = require_path(root, source.train if split == "train" else source.test, "list", f"{split} list")
    lines = _lines(file)
    number, first, _ = lines[0]
    if not is_file(folder / first):  # a wrong folder would make every image an unreadable one
        windows = ": the list has the backslashes of Windows, expected /" if "\\" in first else ""
        raise DataError(
            f'list: {file.name} line {number} names "{first}", but there is no {folder / first}{windows}'
        )
    train = Path(root or "", source.train)
    trained = _lines(train) if split == "test" and is_file(train) else lines
    labels = [label for _, _, label in trained]
    numbers = {label for label in labels if isinstance(label, int)}
    missing = next(c for c in range(len(numbers) + 1) if c not in numbers)
    if missing < len(numbers) and (split == "train" or trained is not lines):
        cause = "; they begin at 1: subtract 1 from each" if missing == 0 and 1 in numbers else ""
        raise DataError(
            f"list: {train}: no image of class {missing}, expected labels 0 to {max(numbers)} without gaps"
            f"{cause}"
        )
    names = None
    if source.class_names is not None:
        names = _rows(require_path(root, source.class_names, "list", "file of class names"))
    classes, class_names = class_labels(
        [label for _, _, label in lines],
        lambda row: f"list: {file} line {lines[row][0]}",
        of_training=labels,
        names=names,
    )
    paths = [path for _, path, _ in lines]
    return ImageDataset(ImageStore(paths, paths, folder=folder), classes, class_names)


def _lines(file: Path) -> list[tuple[int, str, Any]]:
    """Return the number of each line, its image's path and its label: whole numbers, or else text."""
    found, known = list[tuple[int, str, Any]](), dict[str, tuple[int, str]]()
    rows = list(_csv(file) if file.suffix.lower() == ".csv" else _text(file))
    if not rows:
        raise DataError(f"list: {file} names no images")
    as_numbers = _NUMBER.fullmatch(rows[0][2])
    for number, path, label in rows:
        before, other = known.setdefault(path, (number, label))
        if other != label:
            raise DataError(
                f'list: {file} lines {before} and {number}: "{path}" has the labels "{other}" and "{label}", '
                "expected one"
            )
        if _NO_CLASS.fullmatch(label):
            cause = ": pandas saves whole numbers beside empty cells as floats" if "." in label else ""
            raise DataError(
                f'list: {file} line {number}: found label "{label[:80]}", expected 0, 1, ... or text{cause}'
            )
        found.append((number, path, int(label) if as_numbers and _NUMBER.fullmatch(label) else label))
    return found


def _rows(file: Path) -> list[str]:
    try:
        return read_text(file, _MAX_LIST_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"list: {file} cannot be read as text: {error}") from None


def _text(file: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the number, path and label of each line; a path may contain spaces."""
    for number, row in enumerate(map(str.strip, _rows(file)), start=1):
        path, _, label = row.rpartition("\t" if "\t" in row else " ")
        if label and not path:
            raise DataError(f'list: {file} line {number}: found "{label[:80]}", expected "path label"')
        if label:
            yield number, path.strip(), label.strip()


def _csv(file: Path) -> Iterator[tuple[int, str, str]]:
    """Yield the number, path and label of each row."""
    reader = csv.reader(_rows(file), skipinitialspace=True, strict=True)
    try:
        rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(row)]
    except csv.Error as error:
        raise DataError(f"list: {file} line {reader.line_num}: {error}") from None
    for place, (number, cells) in enumerate(rows):
        if place == 0 and (cells[0].lower() in _HEADERS or (not cells[0] and len(cells) == 3)):
            continue
        if len(cells) != 2 or not all(cells):
            cause = "; the first column numbers the rows: save with index=False" if len(cells) == 3 else ""
            raise DataError(
                f'list: {file} line {number}: found "{",".join(cells)[:80]}", expected "path,label", two '
                f"columns without empty cells, found {len(cells)}{cause}"
            )
        yield number, cells[0], cells[1]
