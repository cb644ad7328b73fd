"""One pass over a data set that decodes every image to 8 bits, in pieces."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from zoo.data.dataset import ImageDataset
from zoo.data.decode import scaled_to_square
from zoo.errors import DataError

LOG = logging.getLogger("zoo.data")
PIECE_IMAGES, PIECE_BYTES = 1024, 64 << 20  # whichever is less: what is decoded before it is passed on
PATIENCE = 10.0  # seconds between plain lines where there is no terminal

Pixels = NDArray[np.uint8]


class Decoding:
    """The decoded images of a data set, in order; iterating yields `[n, 3, H, W]`, uint8, one after another.

    Images that cannot be read are black.

    Attributes:
        shape: of all pieces together, (N, 3, H, W).
        errors: what is wrong with the images at these places; complete after the iteration.
    """

    shape: tuple[int, int, int, int]
    errors: dict[int, str]

    def __init__(self, dataset: ImageDataset, image_size: int | None, threads: int) -> None:
        """Read the first image that can be read, which tells the size of all.

        Args:
            dataset: N images.
            image_size: scale each to this square; None: they must be equally large.
            threads: decode with so many; 0 decodes in this one.

        Raises:
            DataError: when none can be read.
        """
        self._dataset, self._image_size, self._threads = dataset, image_size, threads
        self.errors = {}
        first_error = ""
        for index in range(len(dataset)):
            try:
                first = self._image(index)
                break
            except DataError as error:
                first_error = first_error or str(error)
        else:
            raise DataError(f"none of the {len(dataset)} images can be read; the first: {first_error}")
        self.shape = (len(dataset), *first.shape)
        self._example = dataset.name_of(index)

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces together."""
        return int(np.prod(self.shape, dtype=np.int64))

    def __iter__(self) -> Iterator[Pixels]:
        """Decode, with a bar or lines on standard error when it takes long.

        Raises:
            DataError: for images of different sizes.
        """
        self.errors = {}
        step = max(1, min(PIECE_IMAGES, PIECE_BYTES * self.shape[0] // self.nbytes))
        spans = [range(at, min(at + step, self.shape[0])) for at in range(0, self.shape[0], step)]
        with progress(self.shape[0], "decoding") as advance:
            for span, images in zip(spans, self._decoded(spans), strict=True):
                piece = np.zeros((len(span), *self.shape[1:]), dtype=np.uint8)
                for place, (index, image) in enumerate(zip(span, images, strict=True)):
                    if isinstance(image, DataError):
                        self.errors[index] = str(image)
                    elif image.shape != self.shape[1:]:
                        raise self._other_size(index, image)
                    else:
                        piece[place] = image
                advance(len(span))
                yield piece

    def _image(self, index: int) -> Pixels:
        image = self._dataset.image(index)
        if self._image_size is not None:
            image = scaled_to_square(image, self._image_size)
        return np.asarray(image).transpose(2, 0, 1)

    def _decoded(self, spans: list[range]) -> Iterator[list[Pixels | DataError]]:
        def decode(index: int) -> Pixels | DataError:
            try:
                return self._image(index)
            except DataError as error:
                return error

        if self._threads == 0:
            yield from ([decode(index) for index in span] for span in spans)
            return
        pool = ThreadPoolExecutor(self._threads)  # Pillow decodes without holding the interpreter's lock
        try:
            due: list[Future[Pixels | DataError]] = []
            for span in [*spans, range(0)]:  # a span is decoded while the one before it is written
                ahead = [pool.submit(decode, index) for index in span]
                if due:
                    yield [future.result() for future in due]
                due = ahead
        finally:
            pool.shutdown(cancel_futures=True)

    def _other_size(self, index: int, image: Pixels) -> DataError:
        return DataError(
            f'image "{self._dataset.name_of(index)}" has {image.shape[2]}x{image.shape[1]} pixels, '
            f'"{self._example}" has {self.shape[3]}x{self.shape[2]}; the tensor backend needs one size: set '
            'data.image_size to scale them all, or views.backend to "stream" or "torchvision"'
        )


@contextmanager
def progress(total: int, doing: str) -> Iterator[Callable[[int], None]]:
    """Yield what is called with each number of images done."""
    if sys.stderr.isatty():
        columns = (
            TextColumn(doing),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(doing, total=total)
            yield lambda count: bar.advance(task, count)
        return
    done, last = 0, time.monotonic()

    def line(count: int) -> None:
        nonlocal done, last
        done += count
        if time.monotonic() - last >= PATIENCE:
            last = time.monotonic()
            LOG.info("%s: %s of %s images", doing, f"{done:,}", f"{total:,}")

    yield line
