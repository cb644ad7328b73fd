"""Images named by lines "path label", as ImageNet-LT, Places-LT and iNaturalist come, or by CSV files."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zoo.data.config import ListFiles
from zoo.data.dataset import Split
from zoo.data.labels import classes_of, indices_of, is_whole, numbered
from zoo.data.paths import require_path
from zoo.data.stores import FileStore, Opened
from zoo.errors import DataError
from zoo.files import is_file, read_text

MAX_LIST_BYTES = 1 << 30  # several times the list of the largest public data set
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?")
_IMAGE = re.compile(r".*?\.(?:jpe?g|png|ppm|bmp|pgm|tiff?|webp|gif)(?=[\s,;])", re.IGNORECASE)
_HEADERS = (
    {"path", "file", "filename", "file_name", "filepath", "file_path"}
    | {"image", "image_path", "image_id", "img", "id"},
    {"label", "class", "class_name", "category", "target", "label_name"},
)
_SEPARATOR = "the label is what follows the last tab, or without one the last space"
_CSV = f"no comma between them: {_SEPARATOR}; a list with commas has a name that ends in .csv"


class _Lines(NamedTuple):
    """A list file: paths, labels, and the number of each line, for messages; `[N]` each."""

    paths: list[str]
    labels: list[str]
    numbers: list[int]

    @property
    def named(self) -> bool:
        """Whether the labels are words: the first one decides."""
        return not _NUMBER.fullmatch(self.labels[0])


def open_list(source: ListFiles, split: Split, root: Path | None) -> Opened:
    """Return the images of a list file.

    Labels are numbers from 0 to the largest one of the training list, without gaps, or words: then the
    classes are the training list's words in sorted order, or in the order of the file of class names. The
    label of a line begins after its last tab, or without one after its last space. A list whose name ends in
    .csv has columns "path,label", quoted as Python's csv module reads them; its first row is a header if it
    consists of two words that columns of paths and labels are called by, then in either order.
    """
    folder = require_path(root, source.images, "list", "folder of images")
    file = require_path(root, source.train if split == "train" else source.test, "list", f"{split} list")
    lines = _read_list(file, folder)
    first = folder / lines.paths[0]
    if not is_file(first):  # a wrong folder would make every image a bad one
        raise DataError(
            f'list: {file.name} line {lines.numbers[0]} names "{lines.paths[0]}", but there is no {first}; '
            f'see "images"{"" if _is_csv(file) else f"; {_SEPARATOR}"}'
        )
    train = file if split == "train" else Path(source.train if root is None else root / source.train)
    trained = lines if split == "train" else (_read_list(train, folder) if is_file(train) else None)
    names_file = None
    if source.class_names is not None:
        names_file = require_path(root, source.class_names, "list", "file of class names")
    names = None if names_file is None else _read_lines(names_file)
    if (trained or lines).named:
        classes = names or classes_of((trained or lines).labels)
        of = str(names_file or train)
        labels = indices_of(lines.labels, classes, of, lambda row: f"list: {file} line {lines.numbers[row]}")
        return Opened(FileStore(folder, lines.paths), labels, classes)
    labels = _as_numbers(lines, file)
    largest = int(labels.max())
    if trained is not None:
        train_labels = labels if trained is lines else _as_numbers(trained, train)
        _check_gapless(train_labels, train)
        if largest > train_labels.max():
            line = lines.numbers[int(labels.argmax())]
            raise DataError(
                f"list: {file} line {line}: label {largest}, but {train} has only 0 to {train_labels.max()}"
            )
        largest = int(train_labels.max())
    if names is not None and (len(names) <= largest or (trained is not None and len(names) > largest + 1)):
        raise DataError(
            f"list: {names_file} has {len(names)} names for the {largest + 1} classes of the labels"
        )
    return Opened(FileStore(folder, lines.paths), labels, names or numbered(largest, f"list: {file}"))


def _as_numbers(lines: _Lines, file: Path) -> NDArray[np.int64]:
    for number, path, label in zip(lines.numbers, lines.paths, lines.labels, strict=True):
        if not is_whole(label):
            raise _malformed(file, number, f"{path} {label}", "the label 0, 1, ... as in the training list")
    return np.array([int(label) for label in lines.labels], dtype=np.int64)


def _check_gapless(labels: NDArray[np.int64], file: Path) -> None:
    """Refuse a class without images; so there are no more classes than images, however large a label is."""
    counts = np.bincount(labels[labels < len(labels)], minlength=1)
    lacking = np.flatnonzero(counts == 0)
    largest = int(labels.max())
    if len(lacking) or largest >= len(counts):
        first = int(lacking[0]) if len(lacking) else len(counts)
        raise DataError(
            f"list: {file}: no image of class {first}, expected labels 0 to {largest} without gaps"
        )


def _read_lines(file: Path) -> list[str]:
    try:
        return read_text(file, MAX_LIST_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"list: {file} cannot be read as text: {error}") from None


def _read_list(file: Path, folder: Path) -> _Lines:
    lines = _Lines([], [], [])
    for number, path, label in (_rows if _is_csv(file) else _split)(file, folder):
        lines.paths.append(path)
        lines.labels.append(label)
        lines.numbers.append(number)
    if not lines.paths:
        raise DataError(f"list: {file} names no images")
    return lines


def _split(file: Path, folder: Path) -> Iterator[tuple[int, str, str]]:
    """Yield number, path and label of the lines of a text."""
    expected = f"the label 0, 1, ... or a word: {_SEPARATOR}"
    for number, line in enumerate(_read_lines(file), start=1):
        stripped = line.strip()
        if not stripped:
            continue
        path, _, label = stripped.rpartition("\t" if "\t" in stripped else " ")  # a path may contain spaces
        path, label = path.strip(), label.strip()
        if stripped.startswith("#") and not is_file(folder / path):
            raise _malformed(file, number, stripped, "the label 0, 1, ... or a word: lists have no comments")
        if "," in stripped and (not path or label.startswith(",")):
            raise _malformed(file, number, stripped, _CSV)
        if not path or not label:
            raise _malformed(file, number, stripped, expected)
        image = _IMAGE.match(path)
        if image and not is_file(folder / path) and is_file(folder / image[0]):
            if path[image.end()] in ",;":
                raise _malformed(file, number, stripped, _CSV)
            words = stripped[image.end() :].strip()
            why = "one tab" if "\t" in path else f'a tab before a label of several words, as "{words}" is'
            raise _malformed(file, number, stripped, why)
        yield number, path, label


def _is_csv(file: Path) -> bool:
    return file.suffix.lower() == ".csv"


def _rows(file: Path, folder: Path) -> Iterator[tuple[int, str, str]]:
    """Yield number, path and label of the rows of a CSV file."""
    reader = csv.reader(_read_lines(file), skipinitialspace=True, strict=True)
    first, swapped = True, False
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if cells[0].startswith("#") and not is_file(folder / cells[0]):
                raise _malformed(file, reader.line_num, ",".join(row), "lists have no comments")
            if len(cells) != 2 or not all(cells):
                columns = f"two columns without empty cells, found {len(cells)}"
                raise _malformed(file, reader.line_num, ",".join(row), columns)
            header = [cell.lower() for cell in cells] if first else []
            first = False
            if header and _is_header(*header):
                continue
            if header and _is_header(*header[::-1]):
                swapped = True
                continue
            path, label = cells[::-1] if swapped else cells
            yield reader.line_num, path, label
    except csv.Error as error:
        raise DataError(f"list: {file} line {reader.line_num}: {error}") from None


def _is_header(path: str, label: str) -> bool:
    """Whether two cells are certainly no image and its label: words that only columns are called by."""
    return path in _HEADERS[0] and label in _HEADERS[1]


def _malformed(file: Path, number: int, found: str, why: str) -> DataError:
    form = "path,label" if _is_csv(file) else "path label"
    return DataError(f'list: {file} line {number}: found "{found[:80]}", expected "{form}", {why}')
