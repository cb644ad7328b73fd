"""Images named by lines "path label", as ImageNet-LT, Places-LT and iNaturalist come, or by CSV files."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from zoo.data.config import ListFiles
from zoo.data.dataset import Split
from zoo.data.labels import class_labels, is_whole
from zoo.data.paths import require_path
from zoo.data.stores import FileStore, Opened
from zoo.errors import DataError
from zoo.files import is_file, read_text

MAX_LIST_BYTES = 1 << 30  # several times the list of the largest public data set
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?")
_HEADERS = {"path", "file", "filename", "file_name", "filepath", "image", "image_path", "image_id"}

Rows = list[tuple[int, str, str | float]]
"""Number of the line, path, and label: a number where it is one, else text."""


def open_list(source: ListFiles, split: Split, root: Path | None) -> Opened:
    """Return the images of a list file.

    Labels are numbers from 0 to the largest one of the training list, without gaps, or text: then the
    classes are the training list's words in sorted order, or in the order of the file of class names. The
    label of a line begins after its last tab, or without one after its last space. A list whose name ends in
    .csv has columns "path,label", quoted as Python's csv module reads them; its first row may be a header
    whose first column is called "path", "file", "image" or the like.
    """
    folder = require_path(root, source.images, "list", "folder of images")
    file = require_path(root, source.train if split == "train" else source.test, "list", f"{split} list")
    rows = _read(file)
    number, path, _ = rows[0]
    if not is_file(folder / path):  # a wrong folder would make every image a bad one
        raise DataError(
            f'list: {file.name} line {number} names "{path}", but there is no {folder / path}; see "images"; '
            "the label is what follows the last tab, or without one the last space"
        )
    train = Path(source.train if root is None else root / source.train)
    trained = _read(train) if split == "test" and is_file(train) else rows
    names = None
    if source.class_names is not None:
        names = _lines(require_path(root, source.class_names, "list", "file of class names"))
    if split == "train" or trained is not rows:
        _check_gapless(trained, train)
    labels, class_names = class_labels(
        [label for _, _, label in rows],
        lambda row: f"list: {file} line {rows[row][0]}",
        of_training=[label for _, _, label in trained],
        names=names,
    )
    return Opened(FileStore(folder, [path for _, path, _ in rows]), labels, class_names)


def _check_gapless(rows: Rows, file: Path) -> None:
    """Refuse numbers of which one is of no image; so there are no more classes than images."""
    numbers = [label for _, _, label in rows if isinstance(label, int)]
    if not numbers:
        return
    counts = np.bincount([label for label in numbers if label < len(numbers)], minlength=1)
    lacking = np.flatnonzero(counts == 0)
    if len(lacking) or max(numbers) >= len(counts):
        first = int(lacking[0]) if len(lacking) else len(counts)
        raise DataError(
            f"list: {file}: no image of class {first}, expected labels 0 to {max(numbers)} without gaps"
        )


def _read(file: Path) -> Rows:
    """Read a list; labels are numbers where the first one is."""
    rows = list(_csv(file) if file.suffix.lower() == ".csv" else _text(file))
    if not rows:
        raise DataError(f"list: {file} names no images")
    if not _NUMBER.fullmatch(rows[0][2]):
        return [*rows]
    return [(number, path, _number(label)) for number, path, label in rows]


def _number(label: str) -> str | float:
    if is_whole(label):
        return int(label)
    return float(label) if _NUMBER.fullmatch(label) else label


def _lines(file: Path) -> list[str]:
    try:
        return read_text(file, MAX_LIST_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"list: {file} cannot be read as text: {error}") from None


def _text(file: Path) -> Iterator[tuple[int, str, str]]:
    """Yield number, path and label of the lines of a text; a path may contain spaces."""
    for number, line in enumerate(_lines(file), start=1):
        path, _, label = (
            part.strip() for part in line.strip().rpartition("\t" if "\t" in line.strip() else " ")
        )
        if not path and not label:
            continue
        if not path:
            raise DataError(
                f'list: {file} line {number}: found "{label[:80]}", expected "path label": the label is what '
                "follows the last tab, or without one the last space"
            )
        yield number, path, label


def _csv(file: Path) -> Iterator[tuple[int, str, str]]:
    """Yield number, path and label of the rows of a CSV file."""
    reader = csv.reader(_lines(file), skipinitialspace=True, strict=True)
    header = True
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if not any(cells) or (header and cells[0].lower() in _HEADERS):
                header = header and not any(cells)
                continue
            header = False
            if len(cells) != 2 or not all(cells):
                raise DataError(
                    f'list: {file} line {reader.line_num}: found "{",".join(row)[:80]}", expected '
                    f'"path,label", two columns without empty cells, found {len(cells)}'
                )
            yield reader.line_num, cells[0], cells[1]
    except csv.Error as error:
        raise DataError(f"list: {file} line {reader.line_num}: {error}") from None
