"""Images named by lines "path label", as ImageNet-LT, Places-LT and iNaturalist come, or by CSV files."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zoo.data.config import ListFiles
from zoo.data.dataset import Split
from zoo.data.folder import require_path
from zoo.data.labels import class_labels, is_whole
from zoo.data.stores import FileStore, Opened
from zoo.errors import DataError
from zoo.files import is_file, read_text

MAX_LIST_BYTES = 1 << 30  # several times the list of the largest public data set
_HEADERS = {"path", "file", "filename", "file_name", "filepath", "image", "image_path", "image_id"}
_NO_CLASS = re.compile(r"-[0-9]+|[-+]?[0-9]+\.[0-9]*")


class Line(NamedTuple):
    """A line of a list: its number, the image's path, and the label as it is written."""

    number: int
    path: str
    label: str


def open_list(source: ListFiles, split: Split, root: Path | None) -> Opened:
    """Return the images of a list file.

    Labels are numbers from 0 to the largest one of the training list, without gaps, or text: then the
    classes are the training list's words in sorted order, or in the order of the file of class names. `007`
    is text. The label of a line begins after its last tab, or without one after its last space. A list whose
    name ends in .csv has columns "path,label", quoted as Python's csv module reads them; its first row may be
    a header whose first column is called "path", "file", "image" or the like.

    Raises:
        DataError: naming the list and the line, for an image that is not there or has two labels, and for
            labels that are no classes.
    """
    folder = require_path(root, source.images, "list", "folder of images")
    file = require_path(root, source.train if split == "train" else source.test, "list", f"{split} list")
    lines = _read(file)
    first = lines[0]
    if not is_file(folder / first.path):  # a wrong folder would make every image an unreadable one
        windows = ": the list has the backslashes of Windows, expected /" if "\\" in first.path else ""
        raise DataError(
            f'list: {file.name} line {first.number} names "{first.path}", but there is no '
            f"{folder / first.path}{windows}"
        )
    train = Path(source.train if root is None else root / source.train)
    trained = _read(train) if split == "test" and is_file(train) else lines
    kind = _kind(trained, train if trained is not lines else file)
    if kind is int and (split == "train" or trained is not lines):
        _check_gapless([line.label for line in trained], train)
    names = None
    if source.class_names is not None:
        names = _rows(require_path(root, source.class_names, "list", "file of class names"))
    labels, class_names = class_labels(
        _as(kind, lines),
        lambda row: f"list: {file} line {lines[row].number}",
        of_training=_as(kind, trained),
        names=names,
    )
    return Opened(FileStore(folder, [line.path for line in lines]), labels, class_names)


def _kind(lines: Sequence[Line], file: Path) -> type:
    """Return whether labels are numbers (int) or text (str); negative numbers and floats are neither."""
    odd = next((line for line in lines if _NO_CLASS.fullmatch(line.label)), None)
    if odd is not None:
        cause = ": pandas saves whole numbers beside empty cells as floats" if "." in odd.label else ""
        raise DataError(
            f'list: {file} line {odd.number}: found label "{odd.label[:80]}", expected 0, 1, ... or text'
            f"{cause}"
        )
    return int if is_number(lines[0].label) else str


def is_number(label: str) -> bool:
    """Whether a label is the number of a class: `007` is text."""
    return is_whole(label) and (label == "0" or not label.startswith("0"))


def _as(kind: type, lines: Sequence[Line]) -> list[Any]:
    """Return labels, as numbers where they are such: text among those stays, to be refused by its line."""
    if kind is str:
        return [line.label for line in lines]
    return [int(line.label) if is_number(line.label) else line.label for line in lines]


def _check_gapless(labels: Sequence[str], file: Path) -> None:
    """Refuse numbers of which one is of no image: so there are no more classes than images."""
    numbers = {int(label) for label in labels if is_number(label)}
    missing = next(c for c in range(len(numbers) + 1) if c not in numbers)
    if missing < len(numbers):
        cause = "; they begin at 1: subtract 1 from each" if missing == 0 and 1 in numbers else ""
        raise DataError(
            f"list: {file}: no image of class {missing}, expected labels 0 to {max(numbers)} without gaps"
            f"{cause}"
        )


def _read(file: Path) -> list[Line]:
    lines = list(_csv(file) if file.suffix.lower() == ".csv" else _text(file))
    if not lines:
        raise DataError(f"list: {file} names no images")
    known = dict[str, Line]()
    for line in lines:
        before = known.setdefault(line.path, line)
        if before.label != line.label:
            raise DataError(
                f'list: {file} lines {before.number} and {line.number}: "{line.path}" has the labels '
                f'"{before.label}" and "{line.label}", expected one'
            )
    return lines


def _rows(file: Path) -> list[str]:
    try:
        return read_text(file, MAX_LIST_BYTES).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"list: {file} cannot be read as text: {error}") from None


def _text(file: Path) -> Iterator[Line]:
    """Yield the lines of a text; a path may contain spaces."""
    for number, row in enumerate(_rows(file), start=1):
        path, _, label = row.strip().rpartition("\t" if "\t" in row.strip() else " ")
        if label and not path:
            raise DataError(
                f'list: {file} line {number}: found "{label[:80]}", expected "path label": the label is what '
                "follows the last tab, or without one the last space"
            )
        if label:
            yield Line(number, path.strip(), label.strip())


def _csv(file: Path) -> Iterator[Line]:
    """Yield the rows of a CSV file."""
    reader = csv.reader(_rows(file), skipinitialspace=True, strict=True)
    is_first = True
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if not any(cells):
                continue
            if is_first and (cells[0].lower() in _HEADERS or (not cells[0] and len(cells) == 3)):
                is_first = False
                continue
            is_first = False
            if len(cells) != 2 or not all(cells):
                cause = (
                    "; the first column numbers the rows: save with index=False" if len(cells) == 3 else ""
                )
                raise DataError(
                    f'list: {file} line {reader.line_num}: found "{",".join(row)[:80]}", expected '
                    f'"path,label", two columns without empty cells, found {len(cells)}{cause}'
                )
            yield Line(reader.line_num, *cells)
    except csv.Error as error:
        raise DataError(f"list: {file} line {reader.line_num}: {error}") from None
