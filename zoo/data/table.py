"""Parquet files, local or on the Hub, read by Hugging Face `datasets`; the choice of columns.

An image is a struct `{bytes, path}`, as `Dataset.to_parquet` and the Hub write it, or plain bytes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from zoo.data.config import DataConfig, Holdout, HubDataset, Parquet
from zoo.data.dataset import Encoded, ImageDataset, ImageStore, Split
from zoo.data.folder import require_path
from zoo.data.labels import class_labels
from zoo.errors import DataError, did_you_mean, few
from zoo.files import is_file, names_in

_SHARD = re.compile(r".*-(\d+)-of-(\d+)(-[0-9a-f]+)?\.parquet")


def open_parquet(source: Parquet, split: Split, root: Path | None, *, linked: bool = True) -> ImageDataset:
    """Return a split's images; rows in the order of the shards' names.

    Labels are numbers, or text: see `zoo.data.labels.class_labels`. The files' metadata may name the classes.

    Args:
        source: files and columns.
        split: `train` or `test`.
        root: the data folder.
        linked: whether images may lie in files of their own, which the table names.

    Raises:
        DataError: for missing files or columns, labels that are no class, or without `datasets`.
    """
    wanted = source.train if split == "train" else source.test
    folder = Path(root or "") if Path(wanted).is_absolute() else require_path(root, ".", "parquet")
    files = split_files(folder, wanted)
    if not files:
        beside = [name for name in names_in((folder / wanted).parent) if name.endswith(".parquet")]
        raise DataError(
            f'parquet: no {split} files "{wanted}" in {folder}, found {few(beside) or "none"}; other names '
            f"are given as data.source.{split}, in a spec as {split}=PATTERN"
        )
    table, places = _read(files, source.image, source.label)
    trained = split_files(folder, source.train) if split == "test" else []
    known = [getattr(features_of(each).get(source.label), "names", None) for each in (*files, *trained)]
    if any(names != known[0] for names in known):  # the same number would mean another class
        raise DataError(
            f'parquet: files of {folder} name other classes in "{source.label}", expected the same in all'
        )
    of_training = None
    if trained and not known[0]:
        of_training = _read(trained, source.label)[0][source.label].to_pylist()
    labels, class_names = class_labels(
        table[source.label].to_pylist(),
        lambda row: f'parquet: "{source.label}" of {folder / places[row]}',
        of_training=of_training,
        names=known[0] or None,
    )
    import pyarrow.compute as pc

    paths = pc.struct_field(table[source.image], "path").to_pylist()
    stored = [path or place for path, place in zip(paths, places, strict=True)]
    items = table[source.image] if linked else pc.struct_field(table[source.image], "bytes")
    tables = Encoded(files, source.image)
    store = ImageStore(items, stored, folder=files[0].parent, tables=tables, has_copies=True)
    return ImageDataset(store, labels, class_names)


def split_matches(name: str) -> Callable[[str], bool]:
    """Return what tells the files of a split, or of a file name or pattern, from others in a folder.

    The split `train` is train.parquet and train-*.parquet: names of splits on the Hub have no "-", so that
    train_unlabeled-0.parquet is of another one.
    """
    if name.endswith(".parquet") or any(sign in name for sign in "*?["):
        return lambda file: fnmatchcase(file, name)
    return lambda file: file == f"{name}.parquet" or fnmatchcase(file, f"{name}-*.parquet")


def split_files(folder: Path, name: str) -> list[Path]:
    """Return a split's files in a folder, or in a sub-folder of the split's name, in the order of names.

    Raises:
        DataError: where a shard is missing of those whose names say how many they are.
    """
    path = folder / name
    if is_file(path):
        return [path]
    matches = split_matches(path.name)
    files = [path.parent / each for each in names_in(path.parent) if matches(each)]
    files = files or [path / each for each in names_in(path) if each.endswith(".parquet")]
    shards = [match for file in files if (match := _SHARD.fullmatch(file.name))]
    totals, present = {int(shard[2]) for shard in shards}, {int(shard[1]) for shard in shards}
    if len(totals) > 1 or (shards and present != set(range(*totals))):
        found = few([shard.string for shard in shards])
        raise DataError(f"parquet: {path.parent}: shards are missing, or are of several sets: found {found}")
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


def _read(files: Sequence[Path], *columns: str) -> tuple[Any, list[str]]:
    """Return columns of all files, mapped from the cache of `datasets`, and "file#row" of each row.

    With two columns the first has images, which become structs `{bytes, path}`.
    """
    known = [*features_of(files[0])]
    import pyarrow.parquet as pq
    from datasets import Image, load_dataset

    missing = next((column for column in columns if column not in known), None)
    if missing is not None:
        raise DataError(
            f'parquet: no column "{missing}" in {files[0]}.{did_you_mean(missing, known)} Columns: '
            f"{', '.join(known)}"
        )
    try:
        counts = {file: pq.read_metadata(file).num_rows for file in files}
        full = [str(file) for file, count in counts.items() if count]
        if not full:
            raise DataError(f"parquet: {files[0]}: found no images")
        data = load_dataset("parquet", data_files=full, columns=list(dict.fromkeys(columns)), split="train")
        if len(columns) > 1:
            data = data.cast_column(columns[0], Image(decode=False))
    except DataError:
        raise
    except Exception as error:  # of arrow and of datasets, for damage and for columns of other types
        cause = " ".join(str(error.__cause__ or error).split())
        raise DataError(f"parquet: {few([*map(str, files)])} cannot be read as images: {cause}") from None
    return data.with_format("arrow")[:], [
        f"{file.name}#{row}" for file in files for row in range(counts[file])
    ]


def columns_of(
    features: Mapping[str, Any], where: str, remedy: str, label: str | None = None
) -> tuple[str, str | None]:
    """Return the column of images, and that of labels if there is one.

    Labels are in the column of class labels, else of whole numbers or text; among several in `label`.

    Args:
        features: of the columns, `datasets.Features`.
        where: for errors, what has the columns.
        remedy: for errors, how one column is chosen.
        label: the column of labels, where it has been chosen.

    Raises:
        DataError: for no image column, or an ambiguous choice, naming the columns.
    """
    kinds = {name: _kind(feature) for name, feature in features.items()}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    labels = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    whole = ("int", "uint", "string", "large_string")
    labels = labels or [name for name, kind in kinds.items() if kind.startswith(whole)]
    labels = [label] if label else ["label"] if "label" in labels else labels
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


def _columns_in(folder: Path, part: str, remedy: str, label: str | None = None) -> tuple[str, str]:
    """Return the column of images and that of labels of the files of a part."""
    file = split_files(folder, part)[0]
    features = features_of(file)
    image, found = columns_of(features, f"parquet: {file}", remedy, label)
    if found is None:
        raise DataError(f"parquet: {file}: found no label in the columns {', '.join(features)}, expected one")
    return image, found


def parquet_config(root: Path, train: str, test: str | None) -> DataConfig:
    """Return how parquet files are read, their columns found by type; without a test part some are held out.

    Raises:
        DataError: for a file that cannot be read, no column of images or of labels, or several.
    """
    image, label = _columns_in(root, train, f"the spec parquet:{root}?image=COLUMN&label=COLUMN")
    source = Parquet(train=train, test=test or "test", image=image, label=label)
    return DataConfig(source=source, holdout=None if test else Holdout())


def open_hub(source: HubDataset, split: Split, root: Path | None) -> ImageDataset:
    """Return a split of a data set on the Hub, whose parquet files are fetched into its cache and read there.

    A test split brings the training split's files, which say what the classes are. Where the Hub does not
    answer, what the cache has of the commit, or of the branch's last known one, is taken: so not by
    `datasets.load_dataset("org/name")`, which without an answer reads nothing of a pinned commit.

    Raises:
        DataError: for a repository or revision that is not there or not open to the token, one without such
            files, and one whose files are of several configurations.
    """
    from huggingface_hub import snapshot_download

    from zoo.hub.client import hub_errors

    where = f'Hub data set "{source.repo}"' + (f' at revision "{source.revision}"' if source.revision else "")
    wanted = source.train if split == "train" else source.test
    patterns = [pattern for name in {source.train, wanted} for pattern in _patterns(source, name)]
    with hub_errors(where, DataError):
        fetched = snapshot_download(
            source.repo,
            repo_type="dataset",
            revision=source.revision,
            allow_patterns=patterns,
            library_name="zoo",
        )
    snapshot = Path(fetched)
    found = {
        (file.parent.parent if file.parent.name == wanted else file.parent).relative_to(snapshot).as_posix()
        for file in snapshot.rglob("*.parquet")
        if split_matches(wanted)(file.name) or file.parent.name == wanted
    }
    if source.config is None and len(found) > 1:
        raise DataError(
            f"{where}: found the configurations {', '.join(sorted(found))}, expected one of them in "
            f'data.source.config, in a spec "hub:{source.repo}?config={min(found)}"'
        )
    inside = source.config or next(iter(found), ".")
    if inside not in found:
        raise DataError(
            f'{where}: found no parquet files of "{wanted}" in "{inside}"; others are named by '
            f"data.source.{split} and data.source.config; of other formats the Hub keeps a copy in "
            'parquet: revision "refs/convert/parquet"'
        )
    image, label = _columns_in(snapshot / inside, wanted, "data.source.label", source.label)
    section = Parquet(train=source.train, test=source.test, image=image, label=label)
    opened = open_parquet(section, split, snapshot / inside, linked=False)  # no file of this machine
    opened.settings.update(hub_id=source.repo, hub_commit=snapshot.name, hub_folder=inside)
    return opened


def _patterns(source: HubDataset, name: str) -> list[str]:
    """Return the names of a split's files in a repository; "*" is any text, with "/" in it too."""
    is_pattern = name.endswith(".parquet") or "*" in name
    files = [name] if is_pattern else [f"{name}.parquet", f"{name}-*.parquet", f"{name}/*.parquet"]
    if source.config is None:
        return [*files, *(f"*/{file}" for file in files)]
    return [file if source.config == "." else f"{source.config}/{file}" for file in files]
