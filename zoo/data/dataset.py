"""The data set that later stages use: images with class indices, identified by a hash of their content."""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from os.path import isfile, normpath
from pathlib import Path
from typing import Any, Literal
from unicodedata import normalize

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from zoo.config import type_name
from zoo.data.config import Memory
from zoo.data.decode import read_image, with_progress
from zoo.errors import DataError, ZooWarning, did_you_mean, few
from zoo.release.tensors import ImageList

Split = Literal["train", "test"]
Facts = Mapping[str, Any]
TEST_PARTS = ("val", "valid", "validation", "test")  # beside `train`; the first that exists is used
_EXPECTED = "a folder, file or spec, a Dataset of Hugging Face or torch, a list of images or (image, label)"
_SAMPLED = 256  # at most this many images are hashed to tell data sets apart
MAX_CLASSES = 1 << 21  # far more than any data set has: a larger label is a mistake


@dataclass(frozen=True)
class ImageStore:
    """A source's images by row, and their labels as stored in the source."""

    items: Any  # each a path, Hugging Face's `{bytes, path}`, or anything that `read_image` accepts
    names: Sequence[str]  # hashed, so the same on every machine
    labels: Sequence[Any] | None = None
    class_names: Sequence[str] | None = None  # in order, if the source knows them
    settings: Mapping[str, Any] = field(default_factory=dict)  # facts to record about the data
    folder: Path | None = None  # base of relative paths
    tables: tuple[Sequence[Path], str] | None = None  # parquet files with all items, and the column
    has_copies: bool = False  # whether copies with other names or another order exist elsewhere

    def first_rows(self) -> list[int]:
        """Return for each row the first row with the same path or, in a list, the same object."""
        if not isinstance(self.items, list):
            return [*range(len(self.names))]
        keys = (normpath(each) if isinstance(each, str | Path) else id(each) for each in self.items)
        seen = dict[Any, int]()
        return [seen.setdefault(key, row) for row, key in enumerate(keys)]


@dataclass(eq=False)
class ImageDataset:
    """Images with one label each; treated as immutable."""

    store: ImageStore
    labels: NDArray[np.int64]  # class of each image [N], read-only; -1 where there are no classes
    class_names: tuple[str, ...]  # of C classes
    rows: Any = None  # rows of the store [N]; by default all, in order
    settings: Mapping[str, Any] = field(default_factory=dict)  # its origin, for `describe`
    candidates: NDArray[np.bool_] | None = None  # partial labels: possible classes [N, C], read-only
    known_as: str | None = field(default=None, init=False)  # sha256 of the `ImageList` that selected it

    def __post_init__(self) -> None:
        self.labels, self.class_names = np.array(self.labels, dtype=np.int64), tuple(self.class_names)
        self.rows = np.arange(len(self.labels)) if self.rows is None else self.rows
        for array in (self.labels, *([] if self.candidates is None else [self.candidates])):
            array.setflags(write=False)

    def __len__(self) -> int:
        """Return the number of images N."""
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """The number of classes C, including those without images in this split."""
        return len(self.class_names)

    @property
    def class_counts(self) -> NDArray[np.int64]:
        """Images of each class `[C]`, int64."""
        return np.bincount(self.labels[self.labels >= 0], minlength=self.num_classes).astype(np.int64)

    def item(self, index: int) -> Any:
        """Return image `index` as stored: a `Path`, encoded bytes, or a decoded image or array."""
        item = self.store.items[int(self.rows[index])]
        if isinstance(item, dict) and "bytes" in item:  # paths in a table are never opened
            item = item["path"] if item["bytes"] is None and not self.store.tables else item["bytes"]
        return Path(self.store.folder or "", item) if isinstance(item, str | Path) else item

    def image(self, index: int) -> Image.Image:
        """Return image `index` as RGB; raise DataError naming it if it cannot be read."""
        return read_image(self.item(index), self.name_of(index))

    def name_of(self, index: int) -> str:
        """Return the name of image `index`: its path in the data set, or its position in a file."""
        return self.store.names[int(self.rows[index])]

    def encoded(self) -> tuple[Sequence[Path], str] | None:
        """Return the image files and a string that identifies the selected rows; None without files."""
        if self.store.tables is not None:
            files, column = self.store.tables
            return files, f"{column} {hashlib.sha256(self.rows.astype('<i8').tobytes()).hexdigest()}"
        files = [self.item(row) for row in range(len(self))] if isinstance(self.store.items, list) else []
        return (files, "") if files and all(isinstance(file, Path) for file in files) else None

    def subset(self, indices: ArrayLike) -> ImageDataset:
        """Return the images at `indices` `[M]`, in that order, as a data set with the same classes."""
        chosen = np.array(indices, dtype=np.int64)
        candidates = None if self.candidates is None else self.candidates[chosen]
        return replace(self, labels=self.labels[chosen], rows=self.rows[chosen], candidates=candidates)

    def with_candidates(self, candidates: ArrayLike | None, *, origin: Facts | None = None) -> ImageDataset:
        """Return the data set with partial labels `[N, C]` (each image's possible classes), or without any.

        `origin` describes how they were made. Raises DataError if a true label is not a candidate.
        """
        settings = {**self.settings, "partial_labels": dict(origin) if origin else None}
        if candidates is None:
            return self if self.candidates is None else replace(self, candidates=None, settings=settings)
        given, shape = np.array(candidates, dtype=np.bool_), (len(self), self.num_classes)
        if given.shape != shape or not given[np.arange(len(self)), self.labels].all():
            raise DataError(f"partial_labels: found {[*given.shape]}, expected {[*shape]} with true labels")
        return replace(self, candidates=given, settings=settings)

    def with_classes(self, class_names: Sequence[str]) -> ImageDataset:
        """Return the data set, without candidates, relabelled by name to indices into `class_names`."""
        known = {name: place for place, name in enumerate(class_names)}
        places = np.array([known[name] for name in self.class_names], dtype=np.int64)
        labels = np.where(self.labels < 0, -1, places[self.labels])
        return replace(self.with_candidates(None), labels=labels, class_names=tuple(class_names))

    def without_labels(self) -> ImageDataset:
        """Return the data set without classes: every label is -1."""
        return replace(self, labels=np.full(len(self), -1), class_names=(), candidates=None)

    @cached_property
    def sample_hash(self) -> str:
        """A hash of evenly spaced images: of a file's size and beginning, encoded bytes, or pixels."""
        digest = hashlib.sha256()
        for row in range(0, len(self), -(-len(self) // _SAMPLED) or 1):
            item = self.item(row)
            if item is None or isinstance(item, bytes):  # from a table, which may have gaps
                digest.update(item or b"")
            elif not isinstance(item, Path):
                digest.update(np.asarray(read_image(item, self.name_of(row))).tobytes())
            elif isfile(item):  # reading a pipe may never end
                with suppress(OSError), item.open("rb") as file:
                    digest.update(f"{os.fstat(file.fileno()).st_size}\n".encode() + file.read(1 << 16))
        return digest.hexdigest()

    def describe(self) -> dict[str, Any]:
        """Return plain values that identify the data set: settings, counts and a hash of its images."""
        digest = hashlib.sha256(str(self.settings.get("content", "")).encode())
        for index, label in enumerate(self.labels.tolist()):
            digest.update(f"{self.name_of(index)}\t{label}\n".encode("utf-8", "surrogateescape"))
        facts = {**self.settings, "num_images": len(self), "num_classes": self.num_classes}
        if self.candidates is not None:
            digest.update(b"candidates\n" + np.packbits(self.candidates, axis=1).tobytes())
            mean = np.count_nonzero(self.candidates) / len(self)
            origin = facts.get("partial_labels") or {"kind": "given"}
            facts["partial_labels"] = {**origin, "mean_candidates": mean}
        if self.num_classes:
            counts = self.class_counts
            facts["class_counts"] = {"largest": int(counts.max()), "smallest": int(counts.min())}
        return {**facts, "sha256": self.known_as or digest.hexdigest()}


def data_words(facts: Mapping[str, Any]) -> str:
    """Return a short name of `describe`d data and their selection, e.g. `digits, long tail 50`."""
    words, tail, subset = [str(facts["name"])], facts.get("long_tail"), facts.get("subset")
    words += [f"long tail {tail['imbalance']:g}"] if tail else []
    if subset:
        count = subset.get("per_class")
        words.append(f"{count} labels a class" if count else f"{100 * subset['fraction']:g} % of labels")
    return ", ".join(words)


def to_dataset(store: ImageStore, trained: ImageStore | None = None, where: str = "data") -> ImageDataset:
    """Return the data set of a store, with labels numbered by the classes of the training split `trained`.

    Class names are the data's own, or else the training split's sorted text labels, or "0", "1", ... up to
    its largest number; they are normalised to Unicode NFC. If either split lacks labels, there are no
    classes. Raises DataError, starting with `where`, for mixed numbers and text or an unknown label.
    """
    trained = trained or store
    labels, known, names = store.labels, trained.labels, trained.class_names
    if labels is None or known is None:
        return ImageDataset(store, np.full(len(store.names), -1), (), settings=store.settings)
    if store is not trained and (names or all(isinstance(label, str) for label in known)):
        if names and not store.class_names and not all(isinstance(label, str) for label in labels):
            warnings.warn(f"{where}: labels without names are taken as {few([*names])}", ZooWarning, 2)
        words, known = dict(enumerate(store.class_names or names or ())), names or known
        labels = [x if isinstance(x, str) else words.get(_number(x), str(x)) for x in labels]
    if all(issubclass(kind, str) for kind in {*map(type, labels), *map(type, known)}):
        classes = list(dict.fromkeys(normalize("NFC", name) for name in names or sorted({*known})))
        places = {name: place for place, name in enumerate(classes)}
        number_of = {label: places.get(normalize("NFC", label), -1) for label in {*labels}}
        numbers = np.array([number_of[label] for label in labels])
    else:
        count = len(names) if names else max(map(_number, known)) + 1
        classes = [normalize("NFC", str(name)) for name in names or range(count)]
        numbers = np.array([number if (number := _number(label)) < count else -1 for label in labels])
    first = np.array(store.first_rows(), dtype=np.int64)
    odd = np.flatnonzero((numbers < 0) | (numbers != numbers[first])).tolist()
    for row in sorted(odd, key=lambda row: isinstance(labels[row], str)):  # first what is missing among words
        found, label = f'image "{store.names[row]}": found label', str(labels[row])[:80]
        choices = f"one of {few(classes)}.{did_you_mean(label, classes)}" if classes else "0, 1, ..."
        expected = choices if numbers[row] < 0 else f"{str(labels[first[row]])[:80]!r} as before"
        raise DataError(f"{where}: {found} {label!r}, expected {expected}")
    return ImageDataset(store, numbers, tuple(classes), settings=store.settings)


def _number(label: Any) -> int:
    """Return a label of any numeric type as an integer; -1 if it is not a class number."""
    value = label.item() if getattr(label, "shape", None) == () else label
    is_class = isinstance(value, int | float) and 0 <= value < MAX_CLASSES and value == int(value)
    return int(value) if is_class else -1


def require_same_classes(train: Sequence[str], test: Sequence[str], where: str = "") -> None:
    """Raise DataError, starting with `where`, if two splits differ in classes or their order."""
    if tuple(train) != tuple(test):
        raise DataError(f"{where}classes of the training split: {few(train)}; of the test split: {few(test)}")


class OtherImages(DataError):
    """Some images of a list are not in the data set."""


def content_ids(dataset: ImageDataset) -> NDArray[np.int64]:
    """Return `[N]`, int64: 8 bytes of the SHA-256 of an image's size, label, pixels; -1 if unreadable."""
    ids = np.full(len(dataset), -1, dtype=np.int64)
    for index, label in enumerate(with_progress(dataset.labels.tolist(), len(dataset), "comparing")):
        with suppress(DataError):
            image = dataset.image(index)
            digest = hashlib.sha256(f"{image.width} {image.height} {label}\n".encode() + image.tobytes())
            ids[index] = int.from_bytes(digest.digest()[:8], "little", signed=True)
    return ids


def list_images(dataset: ImageDataset) -> ImageList | None:
    """Return the list of a data set's images; None if copies do not exist or cannot be matched by content.

    This applies to digits, image files, possibly lossy encodings, and partial labels, drawn by row.
    """
    if not len(dataset) or dataset.candidates is not None or not dataset.store.has_copies:
        return None
    items = (x for x in map(dataset.item, range(len(dataset))) if isinstance(x, bytes))
    if any(x[:4] != b"\x89PNG" and x[12:16] != b"VP8L" for x in items):  # the latter is WebP's lossless form
        return None
    ids = content_ids(dataset)
    return None if (ids == -1).any() else ImageList(ids, dataset.describe()["sha256"])


def find_listed(whole: ImageDataset, listed: ImageList) -> ImageDataset:
    """Return the listed images of `whole`, in the list's order; raise OtherImages if any are missing."""
    places: defaultdict[int, list[int]] = defaultdict(list)
    for place, content in reversed(list(enumerate(content_ids(whole).tolist()))):
        places[content].append(place)  # equal images are interchangeable, taken in order
    found = [places[content].pop() for content in listed.ids.tolist() if places[content]]
    if missing := len(listed.ids) - len(found):
        counts = f"{missing:,} of the {len(listed.ids):,} listed images are not among the {len(whole):,} here"
        raise OtherImages(f"{counts}, by their pixels and labels")
    dataset = whole.subset(found)
    dataset.known_as = listed.sha256
    return dataset


class _Column:
    """The image column of a Hugging Face data set or of (image, label) pairs."""

    def __init__(self, rows: Any, key: int | str) -> None:
        self._rows, self._key = rows, key

    def __getitem__(self, row: int) -> Any:
        return self._rows[row][self._key]


class MemoryImages:
    """Images in memory: `sets` for training and perhaps testing, and the `source` that a recipe records."""

    def __init__(self, data: Any) -> None:
        """Accept the same data as `as_data`, except paths and specs; raise DataError for anything else."""
        parts: dict[Split, Any] = {"train": data}
        if isinstance(data, Mapping):
            tests = [name for name in TEST_PARTS if name in data]
            keys: dict[Split, Any] = {"train": "train", "test": next(iter(tests), None)}
            parts = {split: data[key] for split, key in keys.items() if key in data}
            if not parts:
                raise DataError(f"data: found the parts {', '.join(map(str, data))}, expected train and test")
            if tests[1:]:
                warnings.warn(f"data: {tests[0]} is the test split, {tests[1]} not used", ZooWarning, 2)
        stores = {split: _store_of(part) for split, part in parts.items()}
        self.sets = {split: to_dataset(each, next(iter(stores.values()))) for split, each in stores.items()}
        told = "".join(f"{each.describe()['sha256']} {each.sample_hash}" for each in self.sets.values())
        name = type(next(iter(parts.values()))).__name__.lower()
        self.source = Memory(name=name, sha256=hashlib.sha256(told.encode()).hexdigest())


Root = str | Path | MemoryImages | None  # a folder or images in memory; None if the source needs neither


def _store_of(data: Any) -> ImageStore:
    """Return the images of a data set or list; images without a path are named by their position."""
    is_indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")  # false for a stream
    is_one = isinstance(data, Mapping | str | np.ndarray) or getattr(data, "ndim", 4) != 4  # 4: a batch
    if is_one or not is_indexed or not len(data):
        found = "no images" if is_indexed and not len(data) else type_name(data)
        raise DataError(f"data: found {found}, expected {_EXPECTED}")
    names = [f"image {row}" for row in range(len(data))]
    hub = sys.modules.get("datasets")  # already imported if `data` is from it
    subset = getattr(sys.modules.get("torch.utils.data"), "Subset", ())
    if hub is not None and isinstance(data, subset) and isinstance(data.dataset, hub.Dataset):
        data = data.dataset.select(data.indices)
    if hub is not None and isinstance(data, hub.Dataset):
        return table_rows(data, names)
    in_list = isinstance(data, list | tuple)
    pairs = {isinstance(row, list | tuple) and len(row) == 2 for row in (data if in_list else [data[0]])}
    if len(pairs) > 1:
        raise DataError("data: found images with and without a label, expected (image, label) for all")
    images = _Column(data, 0) if pairs == {True} else data
    if in_list:
        images = [images[row] for row in range(len(data))]
        names = [str(x) if isinstance(x, str | Path) else name for x, name in zip(images, names, strict=True)]
    if pairs == {False}:
        return ImageStore(images, names)
    whole = data
    while isinstance(whole, subset):
        whole = whole.dataset
    bases = [x for x in type(whole).__mro__ if x.__name__ not in ("Dataset", "VisionDataset")]  # not abstract
    known = {x.__module__.startswith("torchvision.") for x in bases if "__getitem__" in vars(x)}
    # a subclass of a torchvision data set may return items other than those in its lists
    is_plain = len(known) == 1 and getattr(whole, "target_transform", None) is None
    listed = getattr(data, "targets", ()) if is_plain and True in known else ()
    if len(listed) != len(data):  # if equal, no image needs to be decoded for its label
        listed = [data[row][1] for row in range(len(data))]
    classes = getattr(whole, "classes", None) if is_plain else None
    return ImageStore(images, names, list(listed), [*map(str, classes)] if classes else None)


def table_rows(
    data: Any, names: Sequence[str], image: str = "img", label: str = "label", files: Sequence[Path] = ()
) -> ImageStore:
    """Return the encoded images of a Hugging Face `Dataset`, which may have been read from parquet `files`.

    `image` and `label` (optional) are column names; if a default name is missing, the only column of a
    suitable type is used. `names` are for images without a path. Raises DataError if several columns fit.
    """
    from datasets import ClassLabel, Image

    features = data.features
    types = {key: getattr(value, "dtype", type(value).__name__) for key, value in features.items()}

    def find(name: str, default: str, kind: type, others: tuple[str, ...]) -> list[str]:
        if name in features or name != default:
            return [name]
        of_kind = [key for key, feature in features.items() if isinstance(feature, kind)]
        return of_kind or [key for key, dtype in types.items() if dtype.startswith(others)]

    images = find(image, "img", Image, ("dict", "binary", "large_binary"))
    labels = find(label, "label", ClassLabel, ("int", "uint", "bool", "string", "large_string"))
    nested = [name for name in labels if types.get(name, "").lower().endswith(("list", "sequence"))]
    if len(images) != 1 or len(labels) > 1 or nested or not {*images, *labels} <= types.keys():
        expected = "one of images and one of labels, or image= and label= that say which"
        raise DataError(f"data: found the columns {', '.join(types)}, expected {expected}")
    image, plain = images[0], data.with_format(None)
    encoded = plain.select_columns([image]).cast_column(image, Image(decode=False))
    paths = encoded.flatten().select_columns([f"{image}.path"])[:][f"{image}.path"]
    names = [path or name for path, name in zip(paths, names, strict=True)]
    tables, has_copies = (files, image) if files else None, bool(files)
    store = ImageStore(_Column(encoded, image), names, tables=tables, has_copies=has_copies)
    if not labels:
        return store
    found = plain.select_columns(labels)[:][labels[0]]
    class_names = getattr(features[labels[0]], "names", None)
    return store if {*found} <= {-1, None} else replace(store, labels=found, class_names=class_names)
