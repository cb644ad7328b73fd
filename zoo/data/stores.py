"""Images as sources hold them: decoded in memory, or in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from zoo.data.dataset import Encoded, ImageStore
from zoo.data.decode import read_image, read_size


class Opened(NamedTuple):
    """Images, their classes `[N]`, the names of the C classes, and where they are from, if told.

    That is the `files`, and plain values for what a release records: `origin`.
    """

    store: ImageStore
    labels: NDArray[np.int64]
    class_names: Sequence[str]
    files: str = ""
    origin: Mapping[str, Any] = MappingProxyType({})


class ArrayStore:
    """Decoded images in memory."""

    def __init__(
        self,
        pixels: NDArray[np.uint8],
        prefix: str,
        numbers: NDArray[np.int64] | None = None,
        *,
        has_copies: bool = True,
    ) -> None:
        """Take `pixels` `[N, H, W]` or `[N, H, W, 3]` and the `numbers` `[N]` of the images there."""
        self._has_copies = has_copies
        self._pixels = pixels
        self._prefix = prefix
        self._numbers = np.arange(len(pixels)) if numbers is None else numbers

    def name(self, row: int) -> str:
        """Return the source's name with the image's number in it."""
        return f"{self._prefix}/{self._numbers[row]}"

    def read(self, row: int) -> Image.Image:
        """Return image `row` as RGB."""
        return Image.fromarray(self._pixels[row]).convert("RGB")

    def size(self, row: int) -> tuple[int, int]:
        """Return the size that all have."""
        height, width = self._pixels.shape[1:3]
        return width, height

    def encoded(self, rows: NDArray[np.int64]) -> None:
        """Return None: the images are decoded."""

    def has_copies(self, rows: NDArray[np.int64]) -> bool:
        """Return what was told."""
        return self._has_copies


class FileStore:
    """Image files below one folder."""

    def __init__(self, folder: Path, paths: Sequence[str]) -> None:
        """Take the `paths` `[N]` relative to `folder`."""
        self._folder = folder
        self._paths = paths

    def name(self, row: int) -> str:
        """Return the path relative to the folder."""
        return self._paths[row]

    def read(self, row: int) -> Image.Image:
        """Decode file `row`."""
        return read_image(self._folder / self._paths[row], self._paths[row])

    def size(self, row: int) -> tuple[int, int]:
        """Read the beginning of file `row`."""
        return read_size(self._folder / self._paths[row], self._paths[row])

    def encoded(self, rows: NDArray[np.int64]) -> Encoded:
        """Return the files of `rows`."""
        return Encoded([self._folder / self._paths[row] for row in rows.tolist()])

    def has_copies(self, rows: NDArray[np.int64]) -> bool:
        """Return False: in every copy files have the same names, and by these one order."""
        return False
