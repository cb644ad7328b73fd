"""Tables of images: parquet files, read by Hugging Face `datasets`, and the choice of columns.

An image is a struct `{bytes, path}`, as `Dataset.to_parquet` and the Hub write it, or plain bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from zoo.data.config import DataConfig, Holdout, Parquet
from zoo.data.dataset import Encoded, Split
from zoo.data.decode import read_image, read_size
from zoo.data.labels import class_labels
from zoo.data.stores import Opened
from zoo.errors import DataError, did_you_mean
from zoo.files import is_file, names_in

_SHARD = re.compile(r".*-(\d+)-of-(\d+)(-[0-9a-f]+)?\.parquet")


class ParquetStore:
    """Encoded images in Arrow memory, decoded on demand: worker processes share them without a copy."""

    def __init__(
        self, encoded: Any, names: Sequence[str], files: Sequence[Path], column: str, *, linked: bool
    ) -> None:
        """Take N images of a `column` of `files`.

        Args:
            encoded: their bytes `[N]`, None where there are none.
            names: `[N]`.
            files: that they are from.
            column: of these.
            linked: whether a name may be that of a file that has the bytes.
        """
        self._encoded, self._names = encoded, names
        self._files, self._column, self._linked = files, column, linked

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
            if self._linked and file.is_absolute() and is_file(file):
                return file
            raise DataError(f'image "{self._names[row]}" has no bytes: the table only refers to it')
        return data

    def has_copies(self, rows: NDArray[np.int64]) -> bool:
        """Return whether none of `rows` is a JPEG or lossy WebP: other files may hold the same pixels."""
        import pyarrow.compute as pc

        jpeg = pc.starts_with(self._encoded, b"\xff\xd8\xff")
        webp = pc.equal(pc.binary_slice(self._encoded, 12, 16), b"VP8 ")  # its lossless chunk is "VP8L"
        lossy = pc.fill_null(pc.or_(jpeg, webp), False).to_numpy()
        return not lossy[rows].any()

    def encoded(self, rows: NDArray[np.int64]) -> Encoded:
        """Return all the files; the selection names the column and `rows`."""
        chosen = hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()
        return Encoded(self._files, f"{self._column} {chosen}")


def open_parquet(source: Parquet, split: Split, root: Path | None, *, linked: bool = True) -> Opened:
    """Return a split's images; rows in the order of the shards' names.

    Labels are numbers, or text: see `zoo.data.labels.class_labels`. Where the files' metadata name the
    classes, all files, the training split's included, have to name the same ones in the same order.

    Args:
        source: files and columns.
        split: `train` or `test`.
        root: the data folder.
        linked: whether images may lie in files of their own, which the table names.

    Raises:
        DataError: for missing files or columns, labels that are no class, files with other classes, or when
            `datasets` is not installed.
    """
    wanted = source.train if split == "train" else source.test
    files = _files(wanted, root)
    if not files:
        place = Path("" if root is None else root, wanted).parent
        beside = [name for name in names_in(place) if name.endswith(".parquet")]
        raise DataError(
            f'parquet: no {split} files "{wanted}" in {place}, found {", ".join(beside[:5]) or "none"}; '
            f"other names are given as data.source.{split}, in a spec as {split}=PATTERN"
        )
    trained = list[Path]()
    if split == "test" and (root is not None or Path(source.train).is_absolute()):
        trained = _files(source.train, root)
    names = _class_names([*trained, *files], source.label)
    table, places = _read(files, [source.label], source.image)
    of_training = (
        None if names or not trained else _read(trained, [source.label])[0][source.label].to_pylist()
    )
    labels, class_names = class_labels(
        table[source.label].to_pylist(),
        lambda row: f'parquet: "{source.label}" of {files[0].parent / places[row]}',
        of_training=of_training,
        names=names or None,
    )
    import pyarrow.compute as pc

    encoded, paths = (pc.struct_field(table[source.image], field) for field in ("bytes", "path"))
    stored = [path or place for path, place in zip(paths.to_pylist(), places, strict=True)]
    return Opened(ParquetStore(encoded, stored, files, source.image, linked=linked), labels, class_names)


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


def _files(name: str, root: Path | None) -> list[Path]:
    """Return a split's files; all shards have to be there, where each one's name says how many it has."""
    if root is None and not Path(name).is_absolute():
        raise DataError("parquet: no data folder given; give the one that holds the files with --data DIR")
    files = split_files(Path() if root is None else root, name)
    shards = [match for file in files if (match := _SHARD.fullmatch(file.name))]
    totals, present = {int(shard[2]) for shard in shards}, {int(shard[1]) for shard in shards}
    if len(totals) > 1 or (shards and present != set(range(*totals))):
        raise DataError(
            f"parquet: {files[0].parent}: shards are missing, or there are those of several sets: found "
            f"{', '.join(shard.string for shard in shards[:6])}"
        )
    return files


def features_of(file: Path) -> Any:
    """Return a parquet file's columns, `datasets.Features`.

    Raises:
        DataError: for a file that is damaged, or none, and where `datasets` is not installed.
    """
    try:
        import pyarrow.parquet as pq
        from datasets import Features
    except ImportError:
        raise DataError("parquet: needs the package datasets: pip install datasets") from None
    try:
        return Features.from_arrow_schema(pq.read_schema(file))
    except Exception as error:  # of a damaged file, or of metadata in any form
        raise DataError(f"parquet: {file} cannot be read: {' '.join(str(error).split())}") from None


def _class_names(files: Sequence[Path], column: str) -> list[str]:
    """Return the names of the classes in the metadata of the files, none where they have none."""
    found = [list(getattr(features_of(file).get(column), "names", None) or []) for file in files]
    other = next((place for place, names in enumerate(found) if names != found[0]), None)
    if other is not None:  # the same number would mean another class
        raise DataError(
            f'parquet: column "{column}": {files[0]} and {files[other]} name other classes '
            f"({', '.join(found[0][:4]) or 'none'}; {', '.join(found[other][:4]) or 'none'}), expected the "
            "same in the same order in all files"
        )
    return found[0]


def _read(files: Sequence[Path], columns: list[str], image: str | None = None) -> tuple[Any, list[str]]:
    """Return columns of all files, mapped from the cache of `datasets`, and "file#row" of each row.

    Args:
        files: in order.
        columns: to read as they are.
        image: one more, which becomes structs `{bytes, path}`.
    """
    import pyarrow.parquet as pq
    from datasets import Image, disable_progress_bars, enable_progress_bars, load_dataset
    from datasets.utils import are_progress_bars_disabled

    columns = [*columns, *([image] if image else [])]
    for file in files:
        known = [*features_of(file)]
        missing = next((column for column in columns if column not in known), None)
        if missing is not None:
            raise DataError(
                f'parquet: no column "{missing}" in {file}.{did_you_mean(missing, known)} '
                f"Columns: {', '.join(known)}"
            )
    counts = [pq.read_metadata(file).num_rows for file in files]
    full = [str(file) for file, count in zip(files, counts, strict=True) if count]
    if not full:
        raise DataError(f"parquet: {files[0]}: found no images")
    hidden = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        data = load_dataset("parquet", data_files=full, columns=list(dict.fromkeys(columns)), split="train")
        data = data if image is None else data.cast_column(image, Image(decode=False))
    except Exception as error:  # of arrow and of datasets, for damage and for columns of other types
        cause = " ".join(str(error.__cause__ or error).split())
        raise DataError(f"parquet: {', '.join(full[:4])} cannot be read as images: {cause}") from None
    finally:
        if not hidden:
            enable_progress_bars()
    places = [f"{file.name}#{row}" for file, count in zip(files, counts, strict=True) for row in range(count)]
    return data.with_format("arrow")[:], places


def columns_of(features: Mapping[str, Any], where: str, remedy: str) -> tuple[str, str | None]:
    """Return the column of images, and that of labels if there is one.

    Labels are in the column of class labels, else of whole numbers or text; among several in `label`.

    Args:
        features: of the columns, `datasets.Features`.
        where: for errors, what has the columns.
        remedy: for errors, how one column is chosen.

    Raises:
        DataError: for no image column, or an ambiguous choice, naming the columns.
    """
    kinds = {name: _kind(feature) for name, feature in features.items()}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    whole = ("int", "uint", "string", "large_string")
    labels = labels or [name for name, kind in kinds.items() if kind.startswith(whole)]
    labels = ["label"] if "label" in labels else labels
    for what, names in {"images": images, "labels": labels}.items():
        if len(names) > 1:
            raise DataError(f"{where}: found {what} in {', '.join(names)}, expected one: {remedy}")
    if not images:
        raise DataError(f"{where}: found no image in the columns {', '.join(kinds)}, expected one of images")
    return images[0], labels[0] if labels else None


def _kind(feature: Any) -> str:
    """Return "Image" for encoded images in any form, "ClassLabel", or a type such as "int64"."""
    if isinstance(feature, dict):
        return "Image" if "bytes" in feature else "struct"
    kind = feature.dtype if type(feature).__name__ == "Value" else type(feature).__name__
    return "Image" if kind in ("binary", "large_binary") else str(kind)


def parquet_config(root: Path, train: str, test: str | None) -> DataConfig:
    """Return how parquet files are read, their columns found by type; without a test part some are held out.

    Raises:
        DataError: for a file that cannot be read, no column of images or of labels, or several.
    """
    file = split_files(root, train)[0]
    features = features_of(file)
    where = f"parquet: {file}"
    image, label = columns_of(features, where, f"the spec parquet:{root}?image=COLUMN&label=COLUMN")
    if label is None:
        raise DataError(f"{where}: found no label in the columns {', '.join(features)}, expected one")
    source = Parquet(train=train, test=test or "test", image=image, label=label)
    return DataConfig(source=source, holdout=None if test else Holdout())
