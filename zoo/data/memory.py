"""Images that a Python program holds: in lists, and in data sets of torch and of Hugging Face."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from zoo.config import plain_kind
from zoo.data.config import Memory
from zoo.data.dataset import Encoded, Split
from zoo.data.decode import read_image, read_size
from zoo.data.folder import image_files
from zoo.data.labels import class_labels
from zoo.data.stores import Opened
from zoo.data.table import columns_of
from zoo.errors import DataError
from zoo.files import is_dir
from zoo.pixels import EIGHT_BIT, to_rgb

TEST_PARTS = ("val", "valid", "validation", "test")
"""What a test part is called beside `train`, the first that is there: in folders, files and mappings."""

EXPECTED = (
    "a folder, a data spec, parquet files, a Hugging Face Dataset or DatasetDict, a torch Dataset of "
    "(image, label), or a list of images or of (image, label)"
)
_IMAGE = (
    "a PIL image, a path, a uint8 array [H, W] or [H, W, 3], or a tensor [C, H, W], uint8 or floats in 0..1"
)
_SAMPLED = 256  # images that tell a data set that decodes them apart from others


class _Column:
    """One column of rows: the images of (image, label), or of a Hugging Face data set."""

    def __init__(self, rows: Any, key: int | str) -> None:
        self._rows, self._key = rows, key

    def __getitem__(self, row: int) -> Any:
        return self._rows[row][self._key]


class MemoryStore:
    """Images of a program, each made RGB when it is read."""

    def __init__(self, items: Any, names: Sequence[str]) -> None:
        """Take N images, which `items[row]` gives one by one, and their names."""
        self._items, self._names = items, names

    def __len__(self) -> int:
        """Return the number of images N."""
        return len(self._names)

    def name(self, row: int) -> str:
        """Return the path as it was given, or the image's number."""
        return self._names[row]

    def item(self, row: int) -> Any:
        """Return image `row` as it was given: a path, encoded bytes, or decoded in some form."""
        item = self._items[row]
        if isinstance(item, dict) and item.keys() <= {"bytes", "path"}:  # datasets.Image(decode=False)
            item = item["bytes"] if item.get("bytes") is not None else item["path"]
        return Path(item) if isinstance(item, str) else item

    def read(self, row: int) -> Image.Image:
        """Return image `row` as RGB."""
        item, name = self.item(row), self._names[row]
        if isinstance(item, Path | bytes):
            return read_image(item, name)
        if not isinstance(item, Image.Image):
            return Image.fromarray(_pixels(item, name)).convert("RGB")
        if 0 in item.size:
            raise DataError(f'image "{name}" has {item.width} x {item.height} pixels: none')
        try:
            return to_rgb(item)
        except Exception as error:  # of PIL's plugins, when the pixels are first asked for
            raise DataError(f'image "{name}" cannot be read: {error}') from None

    def size(self, row: int) -> tuple[int, int]:
        """Return width and height of image `row`."""
        item = self.item(row)
        return read_size(item, self._names[row]) if isinstance(item, Path | bytes) else self.read(row).size

    def encoded(self, rows: NDArray[np.int64]) -> Encoded | None:
        """Return the files of `rows` where a list names them all."""
        if not isinstance(self._items, list):
            return None
        files = [item for item in map(self.item, rows.tolist()) if isinstance(item, Path)]
        return Encoded(files) if len(files) == len(rows) else None

    def has_copies(self, rows: NDArray[np.int64]) -> bool:
        """Return False: names and order are the caller's."""
        return False

    def content(self) -> bytes:
        """Return a hash of the names of files, or of pixels: a list's all, of others a sample of 256.

        Raises:
            DataError: for an image that cannot be read, or has another form than those that are.
        """
        count, digest = len(self._names), hashlib.sha256()
        in_list = isinstance(self._items, list)
        for row in range(0, count, 1 if in_list else -(-count // _SAMPLED)):
            digest.update(f"{row} {self._names[row]}\n".encode("utf-8", "surrogateescape"))
            if not (in_list and isinstance(self.item(row), Path)):
                digest.update(np.asarray(self.read(row)).tobytes())
        return digest.digest()


def _pixels(item: Any, name: str) -> NDArray[np.uint8]:
    """Return the pixels `[H, W]` or `[H, W, 3]` of an array, or of a tensor `[H, W]` or `[C, H, W]`."""
    array = item
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(item, torch.Tensor):
        array = (item.detach().cpu().float() if item.is_floating_point() else item.cpu()).numpy()
        if array.dtype == np.float32 and array.size:
            if not (array.min() >= 0 and array.max() <= 1):
                raise DataError(
                    f'image "{name}" has floats in {array.min():.3g}..{array.max():.3g}, expected 0..1: give '
                    "images as they are before Normalize"
                )
            array = np.rint(array * EIGHT_BIT).astype(np.uint8)
        array = array.transpose(1, 2, 0) if array.ndim == 3 else array
    if not isinstance(array, np.ndarray):
        raise DataError(f'image "{name}": found {plain_kind(item)}, expected {_IMAGE}')
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.dtype != np.uint8 or array.shape[2:] not in ((), (3,)) or array.ndim < 2 or not array.size:
        raise DataError(f'image "{name}": found {item.dtype} of {[*item.shape]}, expected {_IMAGE}')
    return np.ascontiguousarray(array)


class _Part(NamedTuple):
    """N images, their labels as they were given, numbers or text, and the names of their classes."""

    store: MemoryStore
    labels: Sequence[Any] | None
    class_names: Sequence[str] | None


class MemoryImages:
    """Images of a program, in one part or in one to train on and one to test on.

    Attributes:
        splits: the parts that are there.
        labelled: whether the images have labels.
        source: what a recipe records of them.
    """

    def __init__(self, data: Any) -> None:
        """Take what `zoo.data.any_data.as_data` takes that is neither a path nor a spec.

        Raises:
            DataError: for anything else, for an ambiguous choice of columns, and for images in other forms.
        """
        parts: dict[Split, Any] = {"train": data}
        if isinstance(data, Mapping):
            test = next((name for name in TEST_PARTS if name in data), None)
            if test is None and "train" not in data and len(data) != 1:
                raise DataError(f"data: found the parts {', '.join(map(str, data))}, expected train and test")
            train = "train" if "train" in data else None if test else next(iter(data))
            keys: dict[Split, Any] = {"train": train, "test": test}
            parts = {split: data[key] for split, key in keys.items() if key is not None}
        self._parts = {
            split: _part(part, f"{split}/" if len(parts) > 1 else "image ") for split, part in parts.items()
        }
        digest = hashlib.sha256()
        for part in self._parts.values():
            digest.update(part.store.content())
            digest.update(repr((list(map(str, part.labels or ())), part.class_names)).encode())
        first = next(iter(parts.values()))
        name = "images" if isinstance(first, list | tuple) else type(first).__name__.lower()
        self.splits = tuple(self._parts)
        self.labelled = all(part.labels is not None for part in self._parts.values())
        self.source = Memory(name=name, sha256=digest.hexdigest())

    def opened(self, split: Split) -> Opened:
        """Return the images of a part; their labels are -1 and the classes none where they have no labels.

        Classes are the training part's, see `zoo.data.labels.class_labels`.

        Raises:
            DataError: for a part that is not there, or a label that is no class.
        """
        if split not in self._parts:
            raise DataError(f"{self.source.name}: found no images to {split} on")
        part = self._parts[split]
        if not self.labelled:
            return Opened(part.store, np.full(len(part.store), -1, dtype=np.int64), [])
        first = next(iter(self._parts.values()))
        labels, names = class_labels(
            part.labels or (),
            lambda row: f"{self.source.name}: label of image {row}",
            of_training=first.labels,
            names=first.class_names,
        )
        return Opened(part.store, labels, names)


Root = str | Path | MemoryImages | None
"""The place of images: a folder, or the program that holds them; None where the source needs neither."""


def _part(data: Any, prefix: str) -> _Part:
    """Find images, labels and class names in one data set or list."""
    hub = sys.modules.get("datasets")  # whoever has such a data set has imported it
    if hub is not None and isinstance(data, hub.Dataset):
        return _of_hugging_face(data, prefix)
    if isinstance(data, list | tuple):
        data, names = _files_of(data, prefix)
    elif not (hasattr(data, "__len__") and hasattr(data, "__getitem__")) or isinstance(
        data, Mapping | str | np.ndarray
    ):
        raise DataError(f"data: found {plain_kind(data)}, expected {EXPECTED}")
    if len(data) == 0:
        raise DataError("data: found no images, expected at least one")
    if not isinstance(data, list):
        names = [f"{prefix}{row}" for row in range(len(data))]
    pairs = {_is_pair(row) for row in data} if isinstance(data, list) else {_is_pair(data[0])}
    if len(pairs) > 1:
        raise DataError("data: found images with and without a label, expected (image, label) for all")
    if pairs == {False}:
        return _Part(MemoryStore(data, names), None, None)
    images = [image for image, _ in data] if isinstance(data, list) else _Column(data, 0)
    return _Part(MemoryStore(images, names), *_labels_of(data))


def _is_pair(row: Any) -> bool:
    return isinstance(row, list | tuple) and len(row) == 2


def _files_of(data: Sequence[Any], prefix: str) -> tuple[list[Any], list[str]]:
    """Return a list with the images in folders, at any depth, in place of these; and the images' names."""
    found, names = list[Any](), list[str]()
    for place, item in enumerate(data):
        image = item[0] if _is_pair(item) else item
        if isinstance(item, str | Path) and is_dir(item):
            inside = [Path(item, name) for name in sorted(image_files(Path(item)))]
            if not inside:
                raise DataError(f'images: found none in the folder "{item}", at any depth')
            found += inside
            names += map(str, inside)
        else:
            found.append(item)
            names.append(str(image) if isinstance(image, str | Path) else f"{prefix}{place}")
    return found, names


def _labels_of(data: Any) -> tuple[list[Any], list[str] | None]:
    """Return the labels of (image, label), read without the images where the data set has them apart."""
    rows, whole = range(len(data)), data
    while hasattr(whole, "indices") and hasattr(whole, "dataset"):  # a torch Subset, maybe of another
        rows, whole = [whole.indices[row] for row in rows], whole.dataset  # type: ignore[assignment]
    apart = next((getattr(whole, key) for key in ("targets", "labels") if hasattr(whole, key)), None)
    names = getattr(whole, "classes", None)
    names = [str(name) for name in names] if isinstance(names, list | tuple) else None
    if getattr(whole, "target_transform", None) is not None:
        apart = names = None
    if apart is None or len(apart) != len(whole):
        return [data[row][1] for row in range(len(data))], names
    listed = apart.tolist() if hasattr(apart, "tolist") else list(apart)
    return [listed[row] for row in rows], names


def _of_hugging_face(data: Any, prefix: str) -> _Part:
    """Find image and label by the features; images stay encoded until they are read."""
    from datasets import Image as ImageFeature

    image, label = columns_of(data.features, "data", "ds.select_columns([IMAGE, LABEL])")
    data = data.with_format(None)
    pictures = data.select_columns([image]).cast_column(image, ImageFeature(decode=False))
    store = MemoryStore(_Column(pictures, image), [f"{prefix}{row}" for row in range(len(data))])
    if label is None:
        return _Part(store, None, None)
    labels = list(data.select_columns([label])[:][label])
    return _Part(store, labels, getattr(data.features[label], "names", None))
