"""Unreadable images: counted, reported and replaced while training, up to a limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from PIL import Image

from zoo.data.dataset import ImageDataset, Split
from zoo.errors import DataError

_SHOWN = 3  # names of unreadable images in an error


class Readable(NamedTuple):
    """An image that could be read.

    Attributes:
        image: RGB; None when nothing readable was found within the limit.
        position: where it is, another than the one asked for when that one is unreadable.
        bad: name and error of each unreadable image on the way.
    """

    image: Image.Image | None
    position: int
    bad: dict[str, str]


def read_or_replace(dataset: ImageDataset, index: int, limit: int) -> Readable:
    """Read image `index`, or else the next readable one of the data set, as timm does.

    The replacement keeps its own label and position: label and image always belong together. After more
    than `limit` unreadable images the search ends: the run is over its limit anyway.
    """
    bad: dict[str, str] = {}
    for step in range(min(limit + 1, len(dataset))):
        candidate = (index + step) % len(dataset)
        try:
            return Readable(dataset.image(candidate), candidate, bad)
        except DataError as error:
            bad[dataset.name_of(candidate)] = str(error)
    return Readable(None, index, bad)


class BadImages:
    """The unreadable images met so far."""

    def __init__(self, limit: int, *, all_read: bool) -> None:
        """Allow up to `limit` of them; `all_read`: every image is read before the first are added."""
        self._limit = limit
        self._all_read = all_read
        self._errors: dict[str, str] = {}

    @property
    def errors(self) -> dict[str, str]:
        """Name and error of each, in the order they were met."""
        return dict(self._errors)

    def add(self, errors: Mapping[str, str]) -> None:
        """Record errors by image name.

        Raises:
            DataError: beyond the limit, with the first image's error, the number of others as far as it is
                known, and what can be done.
        """
        self._errors.update(errors)
        self._check()

    def merge(self, ranks: Sequence[Mapping[str, str]]) -> None:
        """Record the errors of all ranks, in their order, this one's included.

        Raises:
            DataError: beyond the limit, as `add` does, and the same on every rank.
        """
        self._errors = {name: error for errors in ranks for name, error in errors.items()}
        self._check()

    def _check(self) -> None:
        if len(self._errors) <= self._limit:
            return
        first, *more = self._errors
        shown = f" ({_some(more)})" if more else ""
        if self._all_read:
            told = f"{others(len(more))} cannot be read either{shown}"
        elif more:
            told = f"{others(len(more))} met so far cannot be read either{shown}, and not all are read yet"
        else:
            told = "it is the first such image met, and not all are read yet"
        number = str(len(self._errors)) if self._all_read else "N"
        raise DataError(
            f"{self._errors[first]}; {told}; expected at most {self._limit} such "
            f"image{'' if self._limit == 1 else 's'}; {_way_out(number)}"
        )


def too_many(dataset: ImageDataset, errors: Mapping[int, str], split: Split, limit: int) -> str:
    """Say of images to evaluate on which cannot be read, and what can be done.

    Args:
        dataset: all of them.
        errors: of each unreadable one by its position, more than `limit`.
        split: which images they are; of test images none can be allowed.
        limit: how many of the training images are.
    """
    names = [f'"{dataset.name_of(index)}"' for index in errors]
    found = f"found {len(errors):,} of {len(dataset):,} that cannot be read, {_some(names)}"
    why = next(iter(errors.values()))
    if split == "test":
        return f"test images: {found} ({why}); what is measured on leaves none out: delete or mend them"
    return f"training images: {found} ({why}), expected at most {limit}; {_way_out(str(len(errors)))}"


def unreadable(dataset: ImageDataset, errors: Mapping[int, str], limit: int) -> str:
    """Say of somebody's own images which cannot be read, and what can be done; see `too_many`."""
    names = [f'"{dataset.name_of(index)}"' for index in errors]
    first = next(iter(errors.values()))
    if len(errors) == len(dataset):
        return f"images: none of the {len(dataset):,} can be read, {_some(names)} ({first})"
    return (
        f"images: found {len(errors):,} of {len(dataset):,} that cannot be read, {_some(names)} "
        f"({first}), expected at most {limit}; delete or mend "
        f"them, or have them left out: --max-bad-images {len(errors)}, in Python max_bad_images={len(errors)}"
    )


def _some(names: Sequence[str]) -> str:
    return ", ".join([*names[:_SHOWN], *(["..."] if len(names) > _SHOWN else [])])


def _way_out(number: str) -> str:
    """Say what can be done about unreadable training images, of which `number` would be allowed."""
    return (
        f"delete or mend them, or allow them: data.max_bad_images={number} in a recipe, "
        f"max_bad_images={number} in a data spec"
    )


def others(count: int) -> str:
    """Return "1 other image" and the like."""
    return f"{count} other image{'' if count == 1 else 's'}"
