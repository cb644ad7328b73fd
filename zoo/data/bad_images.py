"""Unreadable images: an error that names them, or others in their place up to a limit."""

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
        self._limit, self._all_read = limit, all_read
        self._errors: dict[str, str] = {}

    @property
    def errors(self) -> dict[str, str]:
        """Name and error of each, in the order they were met."""
        return dict(self._errors)

    def add(self, errors: Mapping[str, str]) -> None:
        """Record errors by image name.

        Raises:
            DataError: beyond the limit, naming the images met so far.
        """
        self._errors.update(errors)
        if len(self._errors) > self._limit:
            more = "" if self._all_read else ", and not all are read yet"
            raise DataError(_told(self._errors, self._limit) + more)

    def merge(self, ranks: Sequence[Mapping[str, str]]) -> None:
        """Record the errors of all ranks, in their order, this one's included.

        Raises:
            DataError: beyond the limit, as `add` does, and the same on every rank.
        """
        merged = {name: error for errors in ranks for name, error in errors.items()}
        self._errors = {}
        self.add(merged)


def too_many(dataset: ImageDataset, errors: Mapping[int, str], split: Split, limit: int) -> str:
    """Say which images to evaluate on cannot be read, by their places in the data set."""
    named = {dataset.name_of(index): error for index, error in errors.items()}
    return f"{split} images: {_told(named, 0 if split == 'test' else limit)}"


def unreadable(dataset: ImageDataset, errors: Mapping[int, str], limit: int) -> str:
    """Say which of somebody's own images cannot be read, by their places in the data set."""
    named = {dataset.name_of(index): error for index, error in errors.items()}
    return f"images: {_told(named, limit)}, or leave them out: --max-bad-images {len(named)}"


def _told(errors: Mapping[str, str], limit: int) -> str:
    first, *more = errors
    shown = f" ({', '.join(more[:_SHOWN])}{', ...' if len(more) > _SHOWN else ''})" if more else ""
    others = f"; {len(more)} more cannot be read{shown}" if more else ""
    return f"{errors[first]}{others}; expected at most {limit} such: delete or mend them"
