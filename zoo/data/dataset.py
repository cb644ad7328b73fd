"""A labelled image data set as every later stage sees it, whatever it was read from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from zoo.data.decode import read_image, read_size
from zoo.errors import DataError

Split = Literal["train", "test"]


class Encoded(NamedTuple):
    """Where images come from that have to be decoded.

    Attributes:
        files: that hold them; for image files, one an image, in order.
        selection: what else decides which images they are, and their order.
    """

    files: Sequence[Path]
    selection: str = ""


class ImageStore:
    """Images by row, as a source holds them; each becomes RGB when it is read."""

    def __init__(
        self,
        items: Any,
        names: Sequence[str] | None = None,
        *,
        folder: Path | None = None,
        tables: Encoded | None = None,
        has_copies: bool = False,
    ) -> None:
        """Take N images.

        Args:
            items: `items[row]` is a path, `{bytes, path}` as Hugging Face's image feature has it, or anything
                that `read_image` takes. A list of paths is one of files.
            names: `[N]`, the same on every machine: they enter the data set's fingerprint. By default
                "image 0", "image 1", ...
            folder: that paths are relative to.
            tables: the files that hold all the items, and the column that does.
            has_copies: whether other copies have the same pixels under other names or in another order.
        """
        self._items, self._folder, self._tables, self._has_copies = items, folder, tables, has_copies
        self._names = [f"image {row}" for row in range(len(items))] if names is None else names

    def __len__(self) -> int:
        """Return the number of images N."""
        return len(self._names)

    def name(self, row: int) -> str:
        """Return the name of image `row`."""
        return self._names[row]

    def item(self, row: int) -> Any:
        """Return image `row` as it is held: a `Path`, encoded bytes, or decoded in some form."""
        item = self._items[row]
        item = item.as_py() if hasattr(item, "as_py") else item  # of Arrow's columns
        if isinstance(item, dict):
            item = item.get("path") if item.get("bytes") is None else item["bytes"]
        return Path(self._folder or "", item) if isinstance(item, str | Path) else item

    def read(self, row: int) -> Image.Image:
        """Return the image as RGB; raise DataError naming it where that fails."""
        return read_image(self.item(row), self.name(row))

    def size(self, row: int) -> tuple[int, int]:
        """Return the image's width and height without decoding it; raise DataError where that fails."""
        item = self.item(row)
        return read_size(item, self.name(row)) if isinstance(item, Path | bytes) else self.read(row).size

    def encoded(self, rows: NDArray[np.int64]) -> Encoded | None:
        """Return the files that the images at `rows` are decoded from; None: they need no decoding."""
        if self._tables is not None:
            chosen = hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()
            return Encoded(self._tables.files, f"{self._tables.selection} {chosen}")
        items = map(self.item, rows.tolist()) if isinstance(self._items, list) else ()
        files = [item for item in items if isinstance(item, Path)]
        return Encoded(files) if files and len(files) == len(rows) else None

    def has_copies(self, rows: NDArray[np.int64]) -> bool:
        """Return whether other copies have the pixels of `rows`: not where one is a JPEG or lossy WebP."""
        return self._has_copies and not any(_is_lossy(self.item(row)) for row in rows.tolist())


def _is_lossy(item: Any) -> bool:
    if not isinstance(item, bytes):
        return False
    return item.startswith(b"\xff\xd8\xff") or item[12:16] == b"VP8 "  # the lossless chunk is "VP8L"


class ImageDataset:
    """Images with a label each; does not change after it is made.

    Attributes:
        labels: class of each image `[N]`, int64, read-only; -1 where there are no classes.
        class_names: name of each class, C of them.
        candidates: for partial labels, which classes are possible for each image `[N, C]`, bool, read-only;
            else None.
        settings: what it was made from, plain values for `describe`.
    """

    def __init__(
        self,
        store: ImageStore,
        labels: ArrayLike,
        class_names: Sequence[str],
        *,
        rows: ArrayLike | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        """Take `labels` `[N]` and, for a part of `store`, its `rows` `[N]` (default: all, in order)."""
        self.labels: NDArray[np.int64] = np.array(labels, dtype=np.int64)
        self.labels.setflags(write=False)
        self.class_names = tuple(class_names)
        self.settings = dict(settings or {})
        self._store = store
        self._rows = np.arange(len(self.labels)) if rows is None else np.array(rows, dtype=np.int64)
        self._known_as: str | None = None
        self.candidates: NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        """Return the number of images N."""
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """The number of classes C, those without an image in this split included."""
        return len(self.class_names)

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """Images of each class `[C]`, int64."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.num_classes).astype(np.int64)

    def image(self, index: int) -> Image.Image:
        """Return image `index` as RGB.

        Raises:
            DataError: naming the image and why it cannot be read.
        """
        return self._store.read(int(self._rows[index]))

    def size_of(self, index: int) -> tuple[int, int]:
        """Return width and height of image `index`, as its first bytes say: it is not decoded.

        Raises:
            DataError: naming the image and why it cannot be read.
        """
        return self._store.size(int(self._rows[index]))

    def name_of(self, index: int) -> str:
        """Return the name of image `index`: its path in the data set, or its place in a file."""
        return self._store.name(int(self._rows[index]))

    def encoded(self) -> Encoded | None:
        """Return the files that the images are decoded from; None: they need no decoding."""
        return self._store.encoded(self._rows)

    def has_copies(self) -> bool:
        """Return whether other copies of the data set have the same pixels, see `ImageStore`."""
        return self._store.has_copies(self._rows)

    def _copy(self, **changes: Any) -> ImageDataset:
        """Return the data set with other attributes; what changed is not known by a copy's hash."""
        other = copy(self)
        vars(other).update({"settings": dict(self.settings), "_known_as": None, **changes})
        for array in (other.labels, other.candidates):
            if array is not None:
                array.setflags(write=False)
        return other

    def known_as(self, sha256: str) -> ImageDataset:
        """Return the data set under the hash that a copy with the same images and labels is recorded by.

        Its parts, and the same images with partial labels, are not known by it.
        """
        return self._copy(settings={**self.settings, "by_content": True}, _known_as=sha256)

    def subset(self, indices: ArrayLike) -> ImageDataset:
        """Return the data set of the images at `indices` `[M]`, in that order, with the same classes."""
        chosen = np.array(indices, dtype=np.int64)
        candidates = None if self.candidates is None else self.candidates[chosen]
        return self._copy(labels=self.labels[chosen], _rows=self._rows[chosen], candidates=candidates)

    def with_candidates(
        self, candidates: ArrayLike | None, *, origin: Mapping[str, Any] | None = None
    ) -> ImageDataset:
        """Return the data set with partial labels: the classes that are possible for each image.

        Args:
            candidates: `[N, C]`, bool; every row has the image's true label. None takes them away.
            origin: plain values for `describe` that say where they come from; default: kind "given".

        Raises:
            DataError: for another shape, or where a true label is missing.
        """
        if candidates is None and self.candidates is None:
            return self
        checked = None if candidates is None else np.array(candidates, dtype=np.bool_)
        if checked is not None:
            shape = (len(self), self.num_classes)
            if checked.shape != shape or not checked[np.arange(len(self)), self.labels].all():
                raise DataError(
                    f"partial_labels: found {[*checked.shape]} values, expected {[*shape]}, a row for each "
                    "image, in which its true label is possible"
                )
        settings = {**self.settings, "partial_labels": dict(origin) if origin else None}
        return self._copy(candidates=checked, settings=settings)

    def with_classes(self, class_names: Sequence[str]) -> ImageDataset:
        """Return the data set with `class_names`, each there once and all of its own among them, for its own.

        Labels and candidates become places among them; the images and their order stay, and so does -1.
        """
        if tuple(class_names) == self.class_names:
            return self
        known = {name: place for place, name in enumerate(class_names)}
        places = np.array([known[name] for name in self.class_names], dtype=np.int64)
        candidates = None
        if self.candidates is not None:
            candidates = np.zeros((len(self), len(known)), dtype=np.bool_)
            candidates[:, places] = self.candidates
        labels = np.where(self.labels < 0, -1, places[self.labels])
        return self._copy(labels=labels, class_names=tuple(class_names), candidates=candidates)

    def without_labels(self) -> ImageDataset:
        """Return the images without classes: every label is -1."""
        return self._copy(labels=np.full(len(self), -1), class_names=(), candidates=None)

    def renamed(self, class_names: Sequence[str]) -> ImageDataset:
        """Return the data set with other names for its classes, C in the same order."""
        return self._copy(class_names=tuple(class_names))

    def describe(self) -> dict[str, Any]:
        """Return plain values that identify the data set, for cards and metrics.

        `sha256` is over the names, labels and candidates of the images in order, and over what is known of
        their `content`: equal only for the same selection, or for one that is `known_as` it.
        """
        digest = hashlib.sha256(str(self.settings.get("content", "")).encode())
        for row, label in zip(self._rows.tolist(), self.labels.tolist(), strict=True):
            digest.update(f"{self._store.name(row)}\t{label}\n".encode("utf-8", "surrogateescape"))
        settings = dict(self.settings)
        if self.candidates is not None:
            digest.update(b"candidates\n")
            digest.update(np.packbits(self.candidates, axis=1).data)
            mean = np.count_nonzero(self.candidates) / len(self)
            origin = settings.get("partial_labels") or {"kind": "given"}
            settings["partial_labels"] = {**origin, "mean_candidates": mean}
        settings |= {"num_images": len(self), "num_classes": self.num_classes}
        if self.num_classes:
            counts = self.class_counts
            settings["class_counts"] = {"largest": int(counts.max()), "smallest": int(counts.min())}
        return {**settings, "sha256": self._known_as or digest.hexdigest()}
