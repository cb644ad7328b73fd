"""Parquet files of images, read by Hugging Face `datasets` into its memory-mapped cache.

An image is a struct `{bytes, path}`, as `Dataset.to_parquet` and the Hub write it, or plain bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from zoo.data.config import Parquet
from zoo.data.dataset import Encoded, Split
from zoo.data.decode import read_image, read_size
from zoo.data.labels import class_labels
from zoo.errors import DataError, did_you_mean
from zoo.files import is_file, names_in

_SHARD = re.compile(r"(.*)-(\d+)-of-(\d+)(-[0-9a-f]+)?\.parquet")


class ParquetStore:
    """Encoded images in Arrow memory, decoded on demand: worker processes share them without a copy."""

    linked = True
    """Whether an image may lie in a file of its own, which the parquet file names."""

    def __init__(self, encoded: Any, names: Sequence[str], files: Sequence[Path], column: str) -> None:
        """Take the `encoded` bytes, N of them, their `names`, and the `column` of `files` they are from."""
        self._encoded = encoded
        self._names = names
        self._files = files
        self._column = column

    def name(self, row: int) -> str:
        """Return the `path` stored with the image, or the shard and the row in it."""
        return self._names[row]

    def read(self, row: int) -> Image.Image:
        """Decode image `row`."""
        return read_image(self._image(row), self._names[row])

    def size(self, row: int) -> tuple[int, int]:
        """Read the beginning of image `row`."""
        return read_size(self._image(row), self._names[row])

    def _image(self, row: int) -> bytes | Path:
        data: bytes | None = self._encoded[row].as_py()
        if data is None:
            file = Path(self._names[row])  # `Dataset.to_parquet` leaves images of files where they are
            if self.linked and file.is_absolute() and is_file(file):
                return file
            raise DataError(f'image "{self._names[row]}" has no bytes: the file only refers to it')
        return data

    def first_lossy(self) -> int | None:
        """Return the first row whose image is a JPEG or a lossy WebP, by its first bytes; else None."""
        rows = np.flatnonzero(self._lossy())
        return int(rows[0]) if len(rows) else None

    def has_copies(self, rows: NDArray[np.int64]) -> bool:
        """Return whether none of `rows` is compressed with loss: other files may hold the same pixels."""
        return not self._lossy()[rows].any()

    def _lossy(self) -> NDArray[np.bool_]:
        import pyarrow.compute as pc

        jpeg = pc.starts_with(self._encoded, b"\xff\xd8\xff")
        webp = pc.equal(pc.binary_slice(self._encoded, 12, 16), b"VP8 ")  # its lossless chunk is "VP8L"
        found: NDArray[np.bool_] = pc.fill_null(pc.or_(jpeg, webp), False).to_numpy()
        return found

    def encoded(self, rows: NDArray[np.int64]) -> Encoded:
        """Return all the files; the selection names the column and `rows`."""
        chosen = hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()
        return Encoded(self._files, f"{self._column} {chosen}")


def open_parquet(
    source: Parquet, split: Split, root: Path | None
) -> tuple[ParquetStore, NDArray[np.int64], list[str]]:
    """Return images, labels `[N]` and class names; rows in the order of the shards' names.

    Labels are numbers, or text: see `zoo.data.labels.class_labels`. Where the files' metadata name the
    classes, all files, the training split's included, have to name the same ones in the same order.

    Raises:
        DataError: for missing files or columns, labels that are no class, files with other classes, or when
            `datasets` is not installed.
    """
    files = _files_of(source.train if split == "train" else source.test, root)
    if not files:
        raise _no_files(source, split, root)
    trained: Sequence[Path] = []
    if split == "test" and (root is not None or Path(source.train).is_absolute()):
        trained = _files_of(source.train, root)
    names = _class_names([*trained, *files], source.label)
    files = [file for file in files if _metadata(file).num_rows]
    if not files:
        raise DataError(f"parquet: the {split} split has no images")
    table = _table(files, list(dict.fromkeys([source.image, source.label])))
    of_training = None if names or not trained else _labels(_table(trained, [source.label]), source.label)
    counts = [_metadata(file).num_rows for file in files]
    places = [f"{file.name}#{row}" for file, count in zip(files, counts, strict=True) for row in range(count)]
    labels, class_names = class_labels(
        _labels(table, source.label),
        lambda row: f'parquet: "{source.label}" of {files[0].parent / places[row]}',
        of_training=of_training,
        names=names or None,
    )
    encoded, paths = _images(table[source.image], source.image, files)
    image_names = [path or place for path, place in zip(paths, places, strict=True)]
    return ParquetStore(encoded, image_names, files, source.image), labels, class_names


def require_datasets() -> None:
    """Make sure that parquet files can be read.

    Raises:
        DataError: when Hugging Face `datasets` is not installed.
    """
    try:
        import datasets  # noqa: F401
    except ImportError:
        raise DataError(
            "parquet: needs the package datasets, expected it installed: pip install datasets"
        ) from None


def split_matches(name: str) -> Callable[[str], bool]:
    """Return what tells the files of a split, or of a file name or pattern, from others in a folder.

    The split `train` is train.parquet and train-*.parquet: names of splits on the Hub have no "-", so that
    train_unlabeled-0.parquet is of another one.
    """
    if name.endswith(".parquet") or any(sign in name for sign in "*?["):
        return lambda file: fnmatchcase(file, name)
    return lambda file: file == f"{name}.parquet" or fnmatchcase(file, f"{name}-*.parquet")


def split_files(folder: Path, name: str) -> list[Path]:
    """Return a split's files in a folder, or in a sub-folder of the split's name, in the order of names."""
    path = folder / name
    if is_file(path):
        return [path]
    matches = split_matches(path.name)
    found = [path.parent / each for each in names_in(path.parent) if matches(each)]
    return found or [path / each for each in names_in(path) if each.endswith(".parquet")]


def _files_of(name: str, root: Path | None) -> list[Path]:
    if root is None and not Path(name).is_absolute():
        raise DataError("parquet: no data folder given; give the one that holds the files with --data DIR")
    files = split_files(Path() if root is None else root, name)
    check_shards(files)
    return files


def check_shards(files: Sequence[Path]) -> None:
    """Make sure that all shards of a set are there, where each one's name says how many it has.

    Raises:
        DataError: naming the first that is missing, or shards of several sets.
    """
    parts = [match for file in files if (match := _SHARD.fullmatch(file.name))]
    totals = sorted({int(part[3]) for part in parts})
    if len(totals) > 1:
        raise DataError(
            f"parquet: {files[0].parent}: found shards of {' and of '.join(map(str, totals))} files "
            f"({', '.join(part.string for part in parts[:6])}), expected those of one set"
        )
    present = {int(part[2]) for part in parts}
    missing = [number for number in range(totals[0]) if number not in present] if totals else []
    if missing:
        raise DataError(
            f"parquet: {files[0].parent}: of {totals[0]} shards {len(missing)} are missing, the first "
            f'"{parts[0][1]}-{missing[0]:05d}-of-{totals[0]:05d}.parquet"'
        )


def _no_files(source: Parquet, split: Split, root: Path | None) -> DataError:
    name = source.train if split == "train" else source.test
    folder = Path("" if root is None else root, name).parent
    beside = [each for each in names_in(folder) if each.endswith(".parquet")]
    there = f"there are {', '.join(beside[:5])}" if beside else "there are no parquet files"
    return DataError(
        f'parquet: no {split} files "{name}" in {folder}: {there}. The folder is --data DIR, other '
        f'names with data.source.{split}, in a spec "parquet:DIR?{split}=PATTERN"'
    )


def parquet_schema(file: Path) -> Any:
    """Return a file's columns, an Arrow schema.

    Raises:
        DataError: for a file that is damaged, or none.
    """
    return _metadata(file).schema.to_arrow_schema()


def _metadata(file: Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_metadata(file)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"parquet: {file} cannot be read: {' '.join(str(error).split())}") from None


def _class_names(files: Sequence[Path], column: str) -> list[str]:
    """Return the names of the classes in the metadata of the files, none where they have none."""
    require_datasets()
    from datasets import Features

    found = []
    for file in files:
        schema = parquet_schema(file)
        if column not in schema.names:
            raise DataError(
                f'parquet: no column "{column}" in {file}.{did_you_mean(column, schema.names)} '
                f"Columns: {', '.join(schema.names)}"
            )
        try:
            feature = Features.from_arrow_schema(schema).get(column)
        except Exception as error:  # of metadata in any form
            raise DataError(f"parquet: {file}: its metadata cannot be read: {error}") from None
        found.append(list(getattr(feature, "names", None) or []))
    other = next((place for place, names in enumerate(found) if names != found[0]), None)
    if other is not None:  # the same number would mean another class
        raise DataError(
            f'parquet: column "{column}": {files[0]} and {files[other]} name other classes '
            f"({', '.join(found[0][:4]) or 'none'}; {', '.join(found[other][:4]) or 'none'}), expected the "
            "same in the same order in all files"
        )
    return found[0]


def _table(files: Sequence[Path], columns: list[str]) -> Any:
    """Return the columns of all files, an Arrow table that is mapped from the cache of `datasets`."""
    from datasets import disable_progress_bars, enable_progress_bars, load_dataset
    from datasets.exceptions import DatasetsError
    from datasets.utils import are_progress_bars_disabled

    for file in files:
        names = parquet_schema(file).names
        for column in columns:
            if column not in names:
                raise DataError(
                    f'parquet: no column "{column}" in {file}.{did_you_mean(column, names)} '
                    f"Columns: {', '.join(names)}"
                )
    hidden = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        data = load_dataset(
            "parquet", data_files=[str(file) for file in files], columns=columns, split="train"
        )
    except (DatasetsError, OSError, ValueError) as error:
        cause = error.__cause__ or error
        shown = ", ".join(file.name for file in files[:4])
        raise DataError(
            f"parquet: {files[0].parent}: {shown} cannot be read: {' '.join(str(cause).split())}"
        ) from None
    finally:
        if not hidden:
            enable_progress_bars()
    return data.with_format("arrow")[:]


def _labels(table: Any, column: str) -> list[Any]:
    import pyarrow as pa

    kind = table[column].type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise DataError(f'parquet: column "{column}" holds {kind}, expected integers 0 to C - 1, or text')
    if table[column].null_count:
        raise DataError(f'parquet: column "{column}" has {table[column].null_count} empty labels')
    labels: list[Any] = table[column].to_pylist()
    return labels


def _images(column: Any, name: str, files: Sequence[Path]) -> tuple[Any, list[str | None]]:
    """Return the encoded bytes `[N]` of a column of images, and the paths stored with them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    paths: list[str | None] = [None] * len(column)
    if pa.types.is_struct(column.type):
        fields = [field.name for field in column.type]
        if "path" in fields:
            paths = pc.struct_field(column, "path").to_pylist()
        if "bytes" in fields:
            column = pc.struct_field(column, "bytes")
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        raise DataError(
            f'parquet: column "{name}" of {files[0]} holds {column.type}, expected encoded images'
        )
    return column, paths
