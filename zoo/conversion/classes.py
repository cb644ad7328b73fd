"""What the user says of the classes: their names, their counts, and the order in which they were numbered."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from zoo.data import ImageDataset, open_dataset, parse_data_spec
from zoo.errors import DataError, ReleaseError, ZooError
from zoo.files import is_dir, is_file, read_text
from zoo.release.schema import CLASS_NAMES, invalid_class_name

Order = Literal["natural", "plain"]
_MOST_BYTES = 64 << 20  # of a file of labels or counts: many times what a million classes need
_MOST_IMAGES = 200  # that are classified to learn in which order the classes were numbered


def read_classes(
    labels: Any, counts: Any, order: Order | None, num_classes: int, classify: Callable[[Image.Image], int]
) -> tuple[list[str], list[int], Order | None]:
    """Return the classes' names and training images, in the order in which the file numbers them.

    timm numbers class folders in natural order (1, 2, 10), torchvision in plain order (1, 10, 2). What the
    user lists is in the order of the list; folders and data sets are sorted, and put into the order given.

    Names and counts that are not given are numbers and -1; without centers (`num_classes` 0) no counts are
    taken. `classify` returns the class that the file's model gives an image.

    Returns:
        Names, counts, and the order taken where the two differ.

    Raises:
        ZooError: for what is none of these, another number of classes, an order that is not known and makes
            a difference, or that the images contradict.
    """
    names, named = _read(labels, "labels")
    numbers, counted = _read(counts, "class counts")
    if named is not None and counted is not None and named.class_names != counted.class_names:
        raise ReleaseError("class counts: their data have other classes than the labels'")
    if names is not None and (unfit := invalid_class_name(names)) is not None:
        raise ReleaseError(f"labels: found {names[unfit]!r} of class {unfit}, expected {CLASS_NAMES}")
    if any(type(number) is not int or not 0 <= number < 1 << 63 for number in numbers or ()):
        raise ReleaseError(f"class counts: found {numbers}, expected whole numbers from 0")
    for what, found in (("labels", names), ("class counts", numbers)):
        if found is not None and len(found) != num_classes and (num_classes or what != "labels"):
            raise ReleaseError(f"found {len(found)} {what}, expected {num_classes}, as the file has centers")
    data, taken = counted if named is None else named, None
    if data is not None and num_classes:
        sorted_names = [*data.class_names]
        natural = sorted(range(num_classes), key=lambda index: _natural(sorted_names[index]))
        if sorted_names == sorted(sorted_names) and natural != [*range(num_classes)]:
            taken = _checked(order, data, natural, classify)
        if taken == "natural":
            names = [names[index] for index in natural] if names and named is not None else names
            numbers = [numbers[index] for index in natural] if numbers and counted is not None else numbers
    default = [str(index) for index in range(num_classes)]
    return default if names is None else names, [-1] * num_classes if numbers is None else numbers, taken


def _natural(name: str) -> list[Any]:
    """Return what timm sorts class folders by: words in lower case and numbers; its own fails at "²"."""
    parts = re.split(r"(\d+)", name.lower())
    return [int(part) if index % 2 else part for index, part in enumerate(parts)]


def _read(source: Any, what: str) -> tuple[list[Any] | None, ImageDataset | None]:
    """Return one value for each class, and the data that they are of."""
    if source is None:
        return None, None
    try:
        if not isinstance(source, str | Path):
            return (source.tolist() if hasattr(source, "tolist") else [*source]), None
        if is_file(source):
            lines = [line.strip() for line in read_text(Path(source), _MOST_BYTES).splitlines()]
            lines = [line for line in lines if line]
            return lines if what == "labels" else [int(line) for line in lines], None
        config, root = parse_data_spec(f"folder:{source}" if is_dir(source) else str(source))
        data = open_dataset(config, "train", root)
    except (OSError, TypeError, ValueError, ZooError) as error:
        raise DataError(f"{what}: no list, no file with one a line, and no data: {error}") from None
    return ([*data.class_names] if what == "labels" else data.class_counts.tolist()), data


def _checked(
    order: Order | None, data: ImageDataset, natural: list[int], classify: Callable[[Image.Image], int]
) -> Order:
    """Return the order of the classes, unless it is not known or the images contradict it."""
    chosen = np.linspace(0, len(data) - 1, min(len(data), _MOST_IMAGES)).astype(int)
    found = np.array([classify(data.image(index)) for index in chosen.tolist()])
    right = {
        "natural": np.array(natural)[found] == data.labels[chosen],
        "plain": found == data.labels[chosen],
    }
    rates = ", ".join(f"{key} {100 * each.mean():.1f} %" for key, each in right.items())
    told = f"of {len(chosen)} of its images get their class: {rates}"
    if order is None:
        raise ReleaseError(
            "labels: how were the classes numbered, as timm numbers folders (natural: 1, 2, 10) or as "
            f"torchvision (plain: 1, 10, 2)? {told}. Choose: --label-order natural|plain"
        )
    other = right["plain" if order == "natural" else "natural"]
    only, against = int((right[order] & ~other).sum()), int((other & ~right[order]).sum())
    if against - only > 3 * (against + only) ** 0.5:  # three standard deviations of chance
        raise ReleaseError(f"labels: the images contradict the {order} order of classes; {told}")
    return order
