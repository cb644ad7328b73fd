"""What the user says of the classes: their names, their counts, and the order in which they were numbered."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import timm
import torch
from numpy.typing import NDArray
from torch import nn

from zoo.class_names import EXPECTED, first_unfit
from zoo.data import ImageDataset, open_dataset, parse_data_spec
from zoo.errors import DataError, ReleaseError, ZooError
from zoo.files import is_dir, is_file, read_text
from zoo.modules.centers import Centers
from zoo.release import Preprocess

Order = Literal["natural", "plain"]
_MOST_BYTES = 64 << 20  # of a file of labels or counts: many times what a million classes need
_MOST_IMAGES = 200  # that are asked in which order the classes were numbered


class Classes(NamedTuple):
    """Names and training images of each class, empty where nothing is said of them.

    Attributes:
        names: C of them, as classes were numbered in either order. What the user lists is in the order that
            the user gives, whichever that is called; what data have is sorted.
        counts: C of them; likewise.
        images: of the data set that the names are of, if they are.
        natural: where names of a data set are in plain order (1, 10, 2) and timm would number them otherwise
            (1, 2, 10): for each of timm's classes its place in `names`; else None.
    """

    names: dict[Order, list[str]]
    counts: dict[Order, list[int]]
    images: ImageDataset | None
    natural: list[int] | None


def read_classes(labels: Any, counts: Any) -> Classes:
    """Read what the user gives: values, a text file with one a line, a folder of images or a data spec.

    Raises:
        ZooError: for what is none of these, and names or counts that no class can have.
    """
    names, images = _read(labels, "labels")
    numbers, counted = _read(counts, "class counts")
    if images is not None and counted is not None and images.class_names != counted.class_names:
        raise ReleaseError("class counts: their data have other classes than the labels'")
    data = images or counted
    natural = None if data is None else _natural(data.class_names)
    if names is not None and (unfit := first_unfit(names)) is not None:
        raise ReleaseError(f"labels: found {names[unfit]!r} of class {unfit}, expected {EXPECTED}")
    for index, number in enumerate(numbers or ()):
        if type(number) is not int or not 0 <= number < 1 << 63:
            raise ReleaseError(
                f"class counts: found {number!r} of class {index}, expected a whole number from 0"
            )

    def both(values: list[Any] | None, sorted_by_name: bool) -> dict[Order, list[Any]]:
        if values is None:
            return {}
        moved = [values[place] for place in natural] if sorted_by_name and natural else values
        return {"plain": values, "natural": moved}

    return Classes(both(names, images is not None), both(numbers, counted is not None), images, natural)


def natural_key(name: str) -> list[Any]:
    """Return what timm sorts class folders by: words in lower case and numbers; its own fails at "²"."""
    parts = re.split(r"(\d+)", name.lower())
    return [int(part) if place % 2 else part for place, part in enumerate(parts)]


def _natural(names: Sequence[str]) -> list[int] | None:
    """Return the places of sorted names in timm's order; None where that is the same, or none are sorted."""
    order = sorted(range(len(names)), key=lambda place: natural_key(names[place]))
    return None if [*names] != sorted(names) or order == [*range(len(names))] else order


def _read(source: Any, what: str) -> tuple[list[Any] | None, ImageDataset | None]:
    if source is None:
        return None, None
    if not isinstance(source, str | Path):
        try:
            return [*(source.tolist() if hasattr(source, "tolist") else source)], None
        except TypeError:
            raise ReleaseError(f"{what}: found {source!r}, expected one for each class") from None
    if is_file(source):
        try:
            lines = [line.strip() for line in read_text(Path(source), _MOST_BYTES).splitlines()]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"{what}: {source}: cannot be read: {error}") from None
        lines = [line for line in lines if line]
        if what == "labels":
            return lines, None
        return [int(line) if re.fullmatch(r"[0-9]{1,19}", line) else line[:80] for line in lines], None
    try:
        config, root = parse_data_spec(f"folder:{source}" if is_dir(source) else str(source))
        data = open_dataset(config, "train", root)
    except ZooError as error:
        raise DataError(f"{what}: no file, and no data that can be read: {error}") from None
    return ([*data.class_names] if what == "labels" else data.class_counts.tolist()), data


def agreement(
    classes: Classes, encoder: nn.Module, centers: Centers, preprocess: Preprocess
) -> dict[Order, NDArray[np.bool_]]:
    """Return for some images at hand `[N]` whether they get their class, by the order of the classes.

    Nothing where there are no images, or both orders are the same.
    """
    images, natural = classes.images, classes.natural
    if images is None or natural is None:
        return {}
    chosen = np.linspace(0, len(images) - 1, min(len(images), _MOST_IMAGES)).astype(int)
    transform = timm.data.create_transform(
        input_size=(3, preprocess.input_size, preprocess.input_size),
        interpolation=preprocess.interpolation,
        crop_pct=preprocess.crop_pct,
        mean=preprocess.mean,
        std=preprocess.std,
    )
    found = list[int]()
    with torch.no_grad():
        for index in chosen.tolist():
            features = encoder(transform(images.image(index))[None])
            found.append(int(centers.logits(features).argmax()))
    predicted, expected = np.array(found), images.labels[chosen]
    return {"natural": np.array(natural)[predicted] == expected, "plain": predicted == expected}


def check_order(order: Order | None, classes: Classes, agree: Mapping[Order, NDArray[np.bool_]]) -> None:
    """Make sure that the order of the classes is known, and not one that the images at hand contradict.

    Raises:
        ReleaseError: naming both orders and how many images agree with each.
    """
    names = classes.names.get("plain", [])
    figures = ", ".join(f"{key} {100 * right.mean():.1f} %" for key, right in agree.items())
    shown = f"; of {len(agree['plain'])} of its images get their class: {figures}" if agree else ""
    if order is None:
        first = ", ".join(sorted(names, key=natural_key)[:3])
        raise ReleaseError(
            f"labels: how were the classes numbered? timm numbers folders in natural order ({first}, ...), "
            f"torchvision in plain order ({', '.join(sorted(names)[:3])}, ...){shown}. Choose: --label-order "
            "natural|plain"
        )
    if not agree:
        return
    other = agree["plain" if order == "natural" else "natural"]
    only, against = int((agree[order] & ~other).sum()), int((other & ~agree[order]).sum())
    if against - only > 3 * (against + only) ** 0.5:  # three standard deviations of chance
        raise ReleaseError(f"labels: the images contradict the {order} order of classes{shown}")
