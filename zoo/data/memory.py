"""Images that a Python program holds: in lists, and in data sets of torch and of Hugging Face."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zoo.config import plain_kind
from zoo.data.config import Memory
from zoo.data.dataset import ImageDataset, ImageStore, Split, labelled
from zoo.errors import DataError

TEST_PARTS = ("val", "valid", "validation", "test")
"""What a test part is called beside `train`, the first that is there: in folders, files and mappings."""

_EXPECTED = (
    "a folder, a file, a spec, a data set of Hugging Face or torch, or a list of images or (image, label)"
)
_SAMPLED = 256  # images of a data set that tell it apart from others


class _Column:
    """One column of rows: the images of (image, label), or of a Hugging Face data set."""

    def __init__(self, rows: Any, key: int | str) -> None:
        self._rows, self._key = rows, key

    def __getitem__(self, row: int) -> Any:
        return self._rows[row][self._key]


class MemoryImages:
    """Images of a program: `sets`, to train and maybe to test on, and the `source` that a recipe records."""

    def __init__(self, data: Any) -> None:
        """Take what `as_data` takes that is neither a path nor a spec; raise DataError for anything else."""
        parts: dict[Split, Any] = {"train": data}
        if isinstance(data, Mapping):
            test = next((name for name in TEST_PARTS if name in data), None)
            keys: dict[Split, Any] = {"train": "train", "test": test}
            parts = {split: data[key] for split, key in keys.items() if key in data}
            if not parts:
                raise DataError(f"data: found the parts {', '.join(map(str, data))}, expected train and test")
        prefixes = {split: f"{split}/" if len(parts) > 1 else "image " for split in parts}
        rows = {split: _rows(part, prefixes[split]) for split, part in parts.items()}
        first = next(iter(rows.values()))
        self.sets: dict[Split, ImageDataset] = {}
        digest = hashlib.sha256()
        for split, each in rows.items():
            self.sets[split] = found = labelled(each, first)
            digest.update(found.describe()["sha256"].encode())
            for row in range(0, len(found), -(-len(found) // _SAMPLED)):
                if not isinstance(found.item(row), Path):
                    digest.update(np.asarray(found.image(row)).tobytes())
        name = type(next(iter(parts.values()))).__name__.lower()
        self.source = Memory(name=name, sha256=digest.hexdigest())


Root = str | Path | MemoryImages | None
"""The place of images: a folder, or the program that holds them; None where the source needs neither."""


def _rows(data: Any, prefix: str) -> ImageStore:
    """Return the rows of a data set or list; an image without a path is called by its number."""
    is_indexed = hasattr(data, "__getitem__") and hasattr(data, "__len__")  # not of one that is a stream
    if isinstance(data, Mapping | str | np.ndarray) or not is_indexed or not len(data):
        found = "no images" if is_indexed and not len(data) else plain_kind(data)
        raise DataError(f"data: found {found}, expected {_EXPECTED}")
    names = [f"{prefix}{row}" for row in range(len(data))]
    hub = sys.modules.get("datasets")  # whoever has such a data set has imported it
    if hub is not None and isinstance(data, hub.Dataset):
        return table_rows(data, names)
    in_list = isinstance(data, list | tuple)
    pairs = {isinstance(row, list | tuple) and len(row) == 2 for row in (data if in_list else [data[0]])}
    if len(pairs) > 1:
        raise DataError("data: found images with and without a label, expected (image, label) for all")
    images = _Column(data, 0) if pairs == {True} else data
    if in_list:
        images = [images[row] for row in range(len(data))]
        given = zip(images, names, strict=True)
        names = [str(image) if isinstance(image, str | Path) else name for image, name in given]
    if pairs == {False}:
        return ImageStore(images, names)
    whole = data
    while hasattr(whole, "dataset"):  # a torch Subset, maybe of another
        whole = whole.dataset
    is_plain = getattr(whole, "target_transform", None) is None
    listed = getattr(data, "targets", None) if is_plain else None  # known before an image is decoded
    labels = [data[row][1] for row in range(len(data))] if listed is None else list(listed)
    classes = getattr(whole, "classes", None) if is_plain else None
    return ImageStore(images, names, labels, [*map(str, classes)] if classes else None)


def table_rows(
    data: Any, names: Sequence[str], image: str = "img", label: str = "label", files: Sequence[Path] = ()
) -> ImageStore:
    """Return a Hugging Face `Dataset`, maybe of parquet files, with images as they are stored.

    Images and labels are in the columns of these names, else in the only one of the type; there may be no
    labels. `names` are those of images without a path. Raises DataError where several could be meant.
    """
    from datasets import ClassLabel, Image

    types = {name: str(getattr(feature, "dtype", "")) for name, feature in data.features.items()}
    types |= {name: "struct" for name, feature in data.features.items() if isinstance(feature, dict)}

    def find(name: str, default: str, kind: type, others: tuple[str, ...]) -> list[str]:
        if name in types or name != default:
            return [name]
        found = [each for each, feature in data.features.items() if isinstance(feature, kind)]
        return found or [each for each, dtype in types.items() if dtype.startswith(others)]

    images = find(image, "img", Image, ("struct", "binary", "large_binary"))
    labels = find(label, "label", ClassLabel, ("int", "uint", "string", "large_string"))
    if len(images) != 1 or len(labels) > 1 or not {*images, *labels} <= types.keys():
        expected = "one of images and one of labels, or image= and label= that say which"
        raise DataError(f"data: found the columns {', '.join(types)}, expected {expected}")
    image, plain = images[0], data.with_format(None)
    encoded = plain.select_columns([image]).cast_column(image, Image(decode=False))
    paths = encoded.flatten().select_columns([f"{image}.path"])[:][f"{image}.path"]
    return ImageStore(
        _Column(encoded, image),
        [path or name for path, name in zip(paths, names, strict=True)],
        plain.select_columns(labels)[:][labels[0]] if labels else None,
        getattr(data.features[labels[0]], "names", None) if labels else None,
        tables=(files, image) if files else None,
        has_copies=bool(files),
    )
