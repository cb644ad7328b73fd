"""What the user says of the classes: their names, their counts, and the order in which they were numbered."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from zoo.data import ImageDataset, open_dataset, parse_data_spec
from zoo.errors import DataError, ReleaseError, ZooError
from zoo.files import is_dir, is_file, read_text
from zoo.images import CLASS_NAMES, invalid_class_name

Order = Literal["natural", "plain"]
_MOST_BYTES = 64 << 20  # of a file of labels or counts: many times what a million classes need
_MOST_IMAGES = 200  # that are asked in which order the classes were numbered


def read_classes(
    labels: Any, counts: Any, order: Order | None, num_classes: int, classify: Callable[[Image.Image], int]
) -> tuple[list[str], list[int], Order | None]:
    """Return the classes' names and training images, in the order in which the file numbers them.

    timm numbers class folders in natural order (1, 2, 10), torchvision in plain order (1, 10, 2). What the
    user lists is in the order of the list; folders and data sets are sorted, and put into the order given.

    Args:
        labels: names, a text file with one a line, a folder of images or a data spec; None for numbers.
        counts: likewise; None for -1, unknown.
        order: how the classes of a folder were numbered in training; None where that is not known.
        num_classes: of the centers; 0 where there are none: then anything may be named.
        classify: returns the class that the file's model gives an image.

    Returns:
        Names, counts, and the order taken where the two differ.

    Raises:
        ZooError: for what is none of these, another number of classes, an order that is not known and makes
            a difference, or that the images at hand contradict.
    """
    names, named = _read(labels, "labels")
    numbers, counted = _read(counts, "class counts")
    if named is not None and counted is not None and named.class_names != counted.class_names:
        raise ReleaseError("class counts: their data have other classes than the labels'")
    if names is not None and (unfit := invalid_class_name(names)) is not None:
        raise ReleaseError(f"labels: found {names[unfit]!r} of class {unfit}, expected {CLASS_NAMES}")
    if any(type(number) is not int or not 0 <= number < 1 << 63 for number in numbers or ()):
        raise ReleaseError(f"class counts: found {numbers}, expected whole numbers from 0")
    if numbers is not None and not num_classes:
        raise ReleaseError("class counts are given, but the file has no centers")
    for what, found in (("labels", names), ("class counts", numbers)):
        if found is not None and num_classes and len(found) != num_classes:
            raise ReleaseError(f"found {len(found)} {what}, expected {num_classes}")
    data = counted if named is None else named
    taken: Order | None = None
    sorted_names = [*data.class_names] if data is not None else []
    places = sorted(range(len(sorted_names)), key=lambda place: _natural(sorted_names[place]))
    if data is not None and num_classes and sorted_names == sorted(sorted_names) and places != sorted(places):
        taken = _checked(order, data, places, classify)
        if taken == "natural":
            names = [names[place] for place in places] if named is not None and names else names
            numbers = [numbers[place] for place in places] if counted is not None and numbers else numbers
    default = [str(index) for index in range(num_classes)]
    return default if names is None else names, [-1] * num_classes if numbers is None else numbers, taken


def _natural(name: str) -> list[Any]:
    """Return what timm sorts class folders by: words in lower case and numbers; its own fails at "²"."""
    parts = re.split(r"(\d+)", name.lower())
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


def _read(source: Any, what: str) -> tuple[list[Any] | None, ImageDataset | None]:
    """Return one value for each class, and the data that they are of."""
    if source is None:
        return None, None
    if not isinstance(source, str | Path):
        values = source.tolist() if hasattr(source, "tolist") else source
        if not isinstance(values, Iterable):
            raise ReleaseError(f"{what}: found {source!r}, expected one for each class")
        return [*values], None
    if is_file(source):
        try:
            lines = [line.strip() for line in read_text(Path(source), _MOST_BYTES).splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{what}: {source}: cannot be read: {error}") from None
        lines = [line for line in lines if line]
        if what == "labels":
            return lines, None
        return [int(line) if re.fullmatch(r"[0-9]{1,19}", line) else line for line in lines], None
    try:
        config, root = parse_data_spec(f"folder:{source}" if is_dir(source) else str(source))
        data = open_dataset(config, "train", root)
    except ZooError as error:
        raise DataError(f"{what}: no file, and no data that can be read: {error}") from None
    return ([*data.class_names] if what == "labels" else data.class_counts.tolist()), data


def _checked(
    order: Order | None, data: ImageDataset, places: Sequence[int], classify: Callable[[Image.Image], int]
) -> Order:
    """Return the order of the classes, unless it is not known or images at hand contradict it."""
    chosen = np.linspace(0, len(data) - 1, min(len(data), _MOST_IMAGES)).astype(int)
    found = np.array([classify(data.image(index)) for index in chosen.tolist()])
    right = {"natural": np.array(places)[found] == data.labels[chosen], "plain": found == data.labels[chosen]}
    natural, plain = (100 * right[key].mean() for key in ("natural", "plain"))
    told = f"of {len(chosen)} of its images get their class: natural {natural:.1f} %, plain {plain:.1f} %"
    if order is None:
        first = ", ".join(data.class_names[place] for place in places[:3])
        raise ReleaseError(
            f"labels: how were the classes numbered? timm numbers folders in natural order ({first}, ...), "
            f"torchvision in plain order ({', '.join(data.class_names[:3])}, ...); {told}. Choose: "
            "--label-order natural|plain"
        )
    other = right["plain" if order == "natural" else "natural"]
    only, against = int((right[order] & ~other).sum()), int((other & ~right[order]).sum())
    if against - only > 3 * (against + only) ** 0.5:  # three standard deviations of chance
        raise ReleaseError(f"labels: the images contradict the {order} order of classes; {told}")
    return order
