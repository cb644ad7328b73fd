"""Images that need neither splits nor classes: in folders at any depth, in files, or of PIL."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from zoo.config import plain_kind
from zoo.data.config import DataConfig
from zoo.data.dataset import Encoded, ImageDataset
from zoo.data.decode import read_image, read_size
from zoo.data.recognition import as_spec, is_visible, recognised
from zoo.data.sources import warn_of_endings
from zoo.data.stores import FileStore
from zoo.errors import DataError
from zoo.files import exists, is_dir
from zoo.pixels import to_rgb

Given = str | Path | Image.Image
"""An image, or a file or folder of such."""


class GivenStore:
    """Image files anywhere, and images that somebody has decoded already."""

    def __init__(self, images: Sequence[Path | Image.Image], names: Sequence[str]) -> None:
        """Take N images and their names."""
        self._images = images
        self._names = names

    def name(self, row: int) -> str:
        """Return the path as it was given, or which image it is."""
        return self._names[row]

    def read(self, row: int) -> Image.Image:
        """Return image `row` as RGB."""
        image = self._images[row]
        if isinstance(image, Path):
            return read_image(image, self._names[row])
        if 0 in image.size:
            raise DataError(f'image "{self._names[row]}" has {image.width} x {image.height} pixels: none')
        try:
            return to_rgb(image)
        except Exception as error:  # of PIL's plugins, when the pixels are first asked for
            raise DataError(f'image "{self._names[row]}" cannot be read: {error}') from None

    def size(self, row: int) -> tuple[int, int]:
        """Return width and height of image `row`."""
        image = self._images[row]
        return read_size(image, self._names[row]) if isinstance(image, Path) else image.size

    def encoded(self, rows: NDArray[np.int64]) -> Encoded | None:
        """Return the files of `rows` where all are files."""
        files = [image for image in (self._images[row] for row in rows.tolist()) if isinstance(image, Path)]
        return Encoded(files) if len(files) == len(rows) else None

    def has_copies(self, rows: NDArray[np.int64]) -> bool:
        """Return False: names and order are the caller's."""
        return False


def open_folder_of_images(root: Path) -> ImageDataset:
    """Return all images in a folder, at any depth, by the order of their paths.

    Where every image lies in a folder directly in `root`, that is its class; else there are no classes. The
    names are the paths relative to `root`.

    Raises:
        DataError: for a folder without images, with what is in it instead, if that is known.
    """
    paths = image_files(root)
    if not paths:
        found = recognised(root)
        spec = None if found is None else as_spec(DataConfig(source=found[0]), found[1])
        raise DataError(
            f'images: found none in the folder "{root}", at any depth'
            + (f"; what is there is read with {spec}" if spec else "")
        )
    tops = [path.split("/")[0] for path in paths]
    classes = sorted(set(tops)) if all(path.count("/") == 1 for path in paths) else []
    places = {name: place for place, name in enumerate(classes)}
    labels = [places.get(top, -1) for top in tops]
    settings = {"name": root.resolve().name, "source": "images"}
    return ImageDataset(FileStore(root, paths), labels, classes, settings=settings)


def open_images(images: Given | Iterable[Given]) -> ImageDataset:
    """Return images without classes: files, all of a folder, and images of PIL, in the order given.

    A file is called by its path, as it was given; an image of PIL "image 3", by its place from 0.

    Raises:
        DataError: for a file that is not there, a folder without images, nothing at all, or other things.
    """
    listed = [images] if isinstance(images, str | Path | Image.Image) else images
    if not isinstance(listed, Iterable):
        raise DataError(f"images: found {plain_kind(listed)}, expected PIL images, files or folders")
    found: list[Path | Image.Image] = []
    names: list[str] = []
    for place, image in enumerate(listed):
        if isinstance(image, Image.Image):
            found.append(image)
            names.append(f"image {place}")
        elif not isinstance(image, str | Path):
            raise DataError(
                f"images: found {plain_kind(image)} at place {place}, expected a PIL image, file or folder"
            )
        elif is_dir(image):
            inside = image_files(Path(image))
            if not inside:
                raise DataError(f'images: found none in the folder "{image}", at any depth')
            found += [Path(image, name) for name in inside]
            names += [str(Path(image, name)) for name in inside]
        elif not exists(image):
            raise DataError(f'image "{image}": no such file or folder')
        else:
            found.append(Path(image))
            names.append(str(image))
    if not found:
        raise DataError("images: found none, expected at least one PIL image, file or folder")
    settings = {"name": "images", "source": "images"}
    return ImageDataset(GivenStore(found, names), np.full(len(found), -1), [], settings=settings)


def image_files(folder: Path) -> list[str]:
    """Return the images in a folder at any depth, as sorted paths relative to it; hidden ones are left out.

    Links are followed; a folder that several lead to, or that lies in itself by one, is read once.

    Raises:
        DataError: for a folder that may not be read.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS

    def refuse(error: OSError) -> NoReturn:
        raise DataError(f'images: the folder "{error.filename}" cannot be read: {error.strerror}')

    found: list[str] = []
    others: Counter[str] = Counter()
    known: set[tuple[int, int]] = set()
    for place, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        here = Path(place)
        status = here.stat()
        if (status.st_dev, status.st_ino) in known:
            folders.clear()
            continue
        known.add((status.st_dev, status.st_ino))
        folders[:] = sorted(filter(is_visible, folders))
        inside = here.relative_to(folder)
        for name in filter(is_visible, files):
            if name.lower().endswith(IMG_EXTENSIONS):
                found.append((inside / name).as_posix())
            else:
                others[Path(name).suffix.lower() or "none"] += 1
    warn_of_endings(others, folder, "images")
    return sorted(found)
