"""Images in parquet files of the Hub's schema: `{bytes, path}` and integer labels, names in the metadata."""

from __future__ import annotations

import hashlib
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from zoo.data.config import Parquet
from zoo.data.dataset import Encoded, Split
from zoo.data.decode import read_image, read_size
from zoo.data.parquet_labels import read_labels
from zoo.errors import DataError, did_you_mean
from zoo.files import is_file, names_in

BATCH_ROWS = 256  # unpacked at a time: a file of a page can hold one value a million times
UNPACKED, UNPACKED_PER_BYTE = 64 << 20, 32  # bytes; encoded images hardly get smaller when a file is packed


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

    Labels are numbers, or words: then the classes are the training split's words in sorted order. Numbers
    whose names are in the metadata mean those: a shard that lists them in another order than the training
    split's first one is renumbered.

    Raises:
        DataError: for missing files or columns, labels that are no class, shards with other classes, or when
            pyarrow is not installed.
    """
    require_pyarrow()
    import pyarrow as pa
    import pyarrow.compute as pc

    files = _shards(source.train if split == "train" else source.test, root, split)
    tables = [_read(file, [source.image, source.label]) for file in files]
    trained: list[tuple[Any, Path]] = []
    if split == "test" and (root is not None or Path(source.train).is_absolute()):
        trained = [(_read(file, [source.label]), file) for file in _match(source.train, root)]
    labels, class_names = read_labels(list(zip(tables, files, strict=True)), trained, source.label)
    columns, names = [], []
    for table, file in zip(tables, files, strict=True):
        column = table[source.image]
        paths: list[str | None] = [None] * len(column)
        if pa.types.is_struct(column.type):
            fields = [field.name for field in column.type]
            if "bytes" not in fields:
                raise DataError(
                    f'parquet: column "{source.image}" of {file} holds {fields}, expected "bytes"'
                )
            if "path" in fields:
                try:
                    paths = pc.struct_field(column, "path").to_pylist()
                except UnicodeDecodeError as error:
                    raise DataError(f"parquet: {file}: a path is no text: {error}") from None
            column = pc.struct_field(column, "bytes")
        if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
            raise DataError(
                f'parquet: column "{source.image}" of {file} holds {column.type}, expected encoded images'
            )
        columns.append(column)
        names += [path or f"{file.name}#{row}" for row, path in enumerate(paths)]
    kind = columns[0].type
    chunks = [chunk for column in columns for chunk in column.cast(kind).chunks]
    encoded = pa.chunked_array(chunks, type=kind)
    return ParquetStore(encoded, names, files, source.image), labels, class_names


def require_pyarrow() -> None:
    """Make sure that parquet files can be read.

    Raises:
        DataError: when pyarrow is not installed.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError:
        raise DataError(
            "parquet: needs the package pyarrow, expected it installed: pip install pyarrow"
        ) from None


def _match(pattern: str, root: Path | None) -> list[Path]:
    path = Path(pattern) if root is None else root / pattern  # an absolute pattern stays as it is
    if is_file(path):
        return [path]
    return [path.parent / name for name in named_by(path.name, names_in(path.parent))]


def named_by(pattern: str, names: Sequence[str]) -> list[str]:
    """Return those of `names` that `train` or `test` of a source stands for.

    A split's files are called as on the Hub: names of splits there have no "-", so that what follows one is
    of the shard, while `train_unlabeled-0.parquet` is of another split
    (https://huggingface.co/docs/hub/datasets-file-names-and-splits).
    """
    if not is_split_name(pattern):
        return [name for name in names if fnmatchcase(name, pattern)]
    split, number = re.escape(pattern), r"[_ .]?[0-9]+([-_]of[-_][0-9]+)?"
    own = re.compile(rf"{split}(-.*)?\.parquet", re.DOTALL)
    found = [name for name in names if own.fullmatch(name)]
    # train_512.parquet beside train-0.parquet is of another split; without one somebody numbered shards so
    return found or [name for name in names if re.fullmatch(rf"{split}{number}\.parquet", name)]


def is_split_name(pattern: str) -> bool:
    """Whether that is neither a file's name nor a pattern for such."""
    return not pattern.endswith(".parquet") and not any(sign in pattern for sign in "*?[")


def _shards(pattern: str, root: Path | None, split: Split) -> list[Path]:
    if root is None and not Path(pattern).is_absolute():
        raise DataError("parquet: no data folder given; give the one that holds the files with --data DIR")
    files = _match(pattern, root)
    if not files:
        path = Path(pattern) if root is None else root / pattern
        folder = path.parent
        beside = [name for name in names_in(folder) if name.endswith(".parquet")]
        there = f"there are {', '.join(beside[:5])}" if beside else "there are no parquet files"
        wanted = f'"{pattern}"'
        if is_split_name(path.name):
            wanted = f'"{path.name}.parquet" or "{path.name}-*.parquet"'
            if any(name.endswith(".parquet") for name in names_in(path)):  # as the Hub converts data sets
                there = f'there is a folder of that name, which is "{pattern}/*.parquet"'
        raise DataError(
            f"parquet: no {split} files {wanted} in {folder}: {there}. The folder is given with --data DIR, "
            f'other names with data.source.{split}, in a spec "parquet:DIR?{split}=PATTERN"'
        )
    return files


def parquet_schema(file: Path) -> Any:
    """Return a file's columns, an Arrow schema; errors are those of `open_parquet`."""
    with _opened(file) as parquet:
        return parquet.schema_arrow


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Open a file, and say of which one an error is."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if not stat.S_ISREG(file.stat().st_mode):
            raise DataError(f"parquet: {file}: found no regular file")
        with pq.ParquetFile(file) as parquet:
            yield parquet
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"parquet: {file} cannot be read: {' '.join(str(error).split())}") from None


def _read(file: Path, columns: list[str]) -> Any:
    import pyarrow as pa

    with _opened(file) as parquet:
        size = file.stat().st_size
        _check_rows(parquet.metadata.num_rows, size, file)
        present = parquet.schema_arrow.names
        for column in columns:
            if column not in present:
                raise DataError(
                    f'parquet: no column "{column}" in {file}.{did_you_mean(column, present)} '
                    f"Columns: {', '.join(present)}"
                )
        batches, rows, unpacked = [], 0, 0
        for batch in parquet.iter_batches(BATCH_ROWS, columns=columns, use_threads=False):
            rows, unpacked = rows + len(batch), unpacked + batch.nbytes
            _check_rows(rows, size, file)
            if unpacked > UNPACKED + UNPACKED_PER_BYTE * size:
                raise DataError(
                    f"parquet: {file}: its {size:,} bytes unpack to {unpacked:,} and more, which no encoded "
                    "images do"
                )
            batches.append(batch)
        if not batches:
            return parquet.read(columns=columns)
        return pa.Table.from_batches(batches).replace_schema_metadata(parquet.schema_arrow.metadata)


def _check_rows(rows: int, size: int, file: Path) -> None:
    """An image takes more than a byte; a column of equal values takes none, however many rows it has."""
    if rows > size:
        raise DataError(f"parquet: {file}: found {rows:,} rows in {size:,} bytes, which hold no images")
