"""Decode files, bytes and arrays to RGB images, with a clear error; decode whole data sets only once."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import PIL
from filelock import FileLock
from numpy.typing import NDArray
from PIL import Image, ImageOps
from rich.console import Console
from rich.progress import track

from zoo.config import type_name
from zoo.errors import DataError
from zoo.files import cache_folder, write_atomic, writing
from zoo.release.tensors import to_rgb

if TYPE_CHECKING:
    from zoo.data.dataset import ImageDataset

# raster formats only: Pillow passes PostScript to another program
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG2000")
_IMAGE = "a PIL image, a path, a uint8 array [H, W] or [H, W, 3], or a tensor [C, H, W], floats in 0..1"


def read_image(source: Any, name: str) -> Image.Image:
    """Return a `Path`, bytes or anything in `_IMAGE` as RGB; DataError naming `name` if it is unreadable."""
    with open_image(source, name) as image:
        if 0 in image.size:
            raise ValueError(f"found {image.width} x {image.height} pixels")
        return to_rgb(image)


@contextmanager
def open_image(source: Any, name: str) -> Iterator[Image.Image]:
    """Open an image, without decoding files yet; errors inside the block become DataErrors too."""
    try:
        if isinstance(source, Path) and source.exists() and not source.is_file():
            raise ValueError("found no regular file")  # reading a pipe or a device may never end
        if isinstance(source, Path | bytes):
            with Image.open(source if isinstance(source, Path) else io.BytesIO(source), "r", FORMATS) as own:
                yield own
        else:
            held = source if isinstance(source, Image.Image) else Image.fromarray(_pixels(source))
            held.load()
            yield held  # loaded, so that `draft` cannot shrink the caller's own image
    except FileNotFoundError:
        raise DataError(f'image "{name}": no such file') from None
    except Exception as error:  # on broken files Pillow's plugins raise almost any kind of exception
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f'image "{name}" cannot be read: {reason}') from None


def _pixels(item: Any) -> NDArray[np.uint8]:
    """Return the pixels `[H, W]` or `[H, W, 3]` of an array or tensor."""
    array = item
    torch = sys.modules.get("torch")  # already imported if `item` is a tensor
    if torch is not None and isinstance(item, torch.Tensor):
        array = item.detach().movedim(0, -1) if item.ndim == 3 else item.detach()
        if array.is_floating_point():
            low, high = float(array.min()), float(array.max())
            if not (low >= 0 and high <= 1):
                raise ValueError(f"found floats in {low:.3g}..{high:.3g}, expected 0..1, before Normalize")
            array = (array.float() * 255).round().to(torch.uint8)
        array = array.cpu().numpy()
    if not isinstance(array, np.ndarray):
        raise ValueError(f"found {type_name(item)}, expected {_IMAGE}")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype != np.uint8 or array.shape[2:] not in ((), (3,)) or array.ndim < 2:
        raise ValueError(f"found {item.dtype} of {[*item.shape]}, expected {_IMAGE}")
    return np.ascontiguousarray(array)


def scaled_to_square(image: Image.Image, size: int | None) -> Image.Image:
    """Return the central square, scaled to `size` x `size` (bicubic, antialiased); None: unchanged."""
    if size is None or image.size == (size, size):
        return image
    return ImageOps.fit(image, (size, size), Image.Resampling.BICUBIC)


def own_cores() -> int:
    """Return this process's share of its node's cores, at least 1."""
    share = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    # a launcher that binds ranks to cores has divided them already
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else share
    return max(1, min(share, bound))


def with_progress(images: Iterable[Any], total: int, doing: str) -> Iterable[Any]:
    """Return `images` with a progress bar; without a terminal, log one line if there are over 1,000."""
    terminal = sys.stderr.isatty()
    if total > 1_000 and not terminal:
        logging.getLogger("zoo").info("%s %s images", doing, f"{total:,}")
    return track(images, doing, total, console=Console(stderr=True), transient=True, disable=not terminal)


def decode_all(dataset: ImageDataset, image_size: int | None, *, cache: bool) -> NDArray[np.uint8]:
    """Return all images `[N, 3, H, W]`, scaled to a square of `image_size`; for None, all need one size.

    With `cache`, decoded images are written once to `$XDG_CACHE_HOME/zoo/decoded` and then memory-mapped.
    DataError for unreadable images and differing sizes.
    """
    if not cache or dataset.encoded() is None:
        return _decoded(dataset, image_size)
    file = cache_folder("decoded") / f"{content_key(dataset, image_size)}.raw"
    width, height = (image_size, image_size) if image_size else dataset.image(0).size
    shape = (len(dataset), 3, height, width)
    with writing(f'"{file}"', DataError):
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock")):  # the OS releases it if the process is killed
            if not file.exists() or file.stat().st_size != np.prod(shape):
                write_atomic(file, _decoded(dataset, image_size).tofile)
    return np.memmap(file, np.uint8, "c", shape=shape)


def content_key(dataset: ImageDataset, *settings: object) -> str | None:
    """Return a hash of `settings` and of files' names, sizes, times or an array's pixels; None for others."""
    files, selection = dataset.encoded() or ((), "")
    key = hashlib.sha256(f"{PIL.__version__} {settings} {len(dataset)} {selection}".encode())
    for path in files:
        key.update(os.fsencode(os.path.abspath(path)))  # noqa: PTH100  # as text, 10x faster
        with suppress(OSError):
            status = os.stat(path)  # noqa: PTH116
            # copying can preserve an old modification time, but the change time cannot be set
            key.update(f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}\n".encode())
    if not files:
        if not isinstance(dataset.store.items, np.ndarray):
            return None
        key.update(f"{dataset.store.items.dtype} {dataset.store.items.shape}".encode())
        key.update(np.ascontiguousarray(dataset.store.items[dataset.rows]).data)
    return key.hexdigest()[:32]


def _decoded(dataset: ImageDataset, image_size: int | None) -> NDArray[np.uint8]:
    """Return all images `[N, 3, H, W]`."""
    first = scaled_to_square(dataset.image(0), image_size)
    pixels = np.empty((len(dataset), 3, first.height, first.width), dtype=np.uint8)

    def decode(place: int) -> None:
        image = scaled_to_square(dataset.image(place), image_size)
        if image.size != first.size:
            sizes = f"{image.width}x{image.height} pixels, expected {first.width}x{first.height} as the first"
            raise DataError(f'image "{dataset.name_of(place)}" has {sizes}: set data.image_size')
        pixels[place] = np.asarray(image).transpose(2, 0, 1)

    # Pillow releases the GIL; images in memory may come from code that is not thread-safe
    threads = own_cores() if dataset.encoded() is not None else 1
    with ThreadPoolExecutor(threads) as pool:
        for _ in with_progress(pool.map(decode, range(len(dataset))), len(dataset), "decoding"):
            pass
    return pixels
