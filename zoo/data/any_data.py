"""The entry point for data: turns what a caller passes into a configuration and the location of images."""

from __future__ import annotations

from os.path import exists, isdir, isfile
from pathlib import Path
from typing import Any, NamedTuple
from warnings import warn

from zoo.config import type_name
from zoo.data import sources
from zoo.data.config import DataConfig, Folder, Holdout, ListFiles, Parquet, parse_data_spec, path_of
from zoo.data.dataset import TEST_PARTS, ImageDataset, ImageStore, MemoryImages, Root, Split, to_dataset
from zoo.errors import DataError, ZooError, ZooWarning, few

Data = Any
"""Images with or without labels; without a test split, a fifth of each class is held out. One of:

- a folder with `CLASS/IMAGE`, or `train/CLASS/IMAGE` and `val`, `valid`, `validation` or `test` beside it, or
  only images, or parquet files; a single .parquet file; a list of images (.txt, .csv);
- a spec, see `zoo.data.config.parse_data_spec`, or `hub:org/name`, see `zoo.hub.client.fetch_tables`;
- a Hugging Face `Dataset`, a torch `Dataset` of images or (image, label), or a dict of them by split;
- a list of PIL images, paths, uint8 arrays `[H, W]` or `[H, W, 3]`, tensors `[C, H, W]`, or (image, label).
"""

TABLES = (".parquet", ".csv", ".txt")  # suffixes of files that list or contain many images


class Given(NamedTuple):
    """Data to open: configuration, location, and whether they are the recipe's or release's own."""

    config: DataConfig
    root: Root
    is_own: bool = False


def as_data(data: Data) -> Given:
    """Return the configuration and location of data; raise DataError for anything that is not data."""
    if (path := path_of(data)) is None:
        images = data if isinstance(data, MemoryImages) else MemoryImages(data)
        return Given(_config(images.source, has_test="test" in images.sets), images)
    if isinstance(data, str) and data.startswith("hub:"):
        from zoo.hub.client import fetch_tables

        place, _, query = data.removeprefix("hub:").partition("?")
        folder = fetch_tables(place)
        return as_data(f"parquet:{folder}?{query}" if query else folder)
    if isfile(path) and path.suffix.lower() in TABLES:
        is_parquet = path.suffix.lower() == ".parquet"
        table = Parquet(train=path.name) if is_parquet else ListFiles(train=path.name, test=path.name)
        return Given(_config(table), path.parent)
    if isfile(path):
        raise DataError(f'data: found the file "{data}", expected a folder or a file of {", ".join(TABLES)}')
    config, root = (None, path) if isdir(path) else parse_data_spec(str(data))
    if root is not None and not isdir(root):
        raise DataError(f'data "{data}": there is no folder "{root}"')
    found = None if root is None else detect(root)
    if (config := config or found) is None:
        some = next(iter(sources.image_files(path)), "no images")  # e.g. Train/cat/1.png
        raise DataError(f'data: found {some} in "{data}", expected [train/]CLASS/IMAGE, images or a table')
    source = config.source
    if found and type(found.source) is type(source) and not {"train", "test"} & source.model_fields_set:
        parts = source.model_copy(update=found.source.model_dump(include={"train", "test"}))
        config = config.model_copy(update={"source": parts, "holdout": found.holdout})
    return Given(config, root)


def _config(source: Any, *, has_test: bool = False) -> DataConfig:
    return DataConfig(source=source, holdout=None if has_test else Holdout())


def detect(root: Path) -> DataConfig | None:
    """Detect a folder's layout: parquet by split, [train/]CLASS/IMAGE, any parquet, only images, or None."""
    tables = _split_tables(root)
    if tables or not sources.split_files(root, "*.parquet"):
        return tables or _detect_tree(root)
    classes = {Path(name).parent for name in sources.image_files(root)} - {Path()}
    return _detect_tree(root) if len(classes) > 1 else _config(Parquet(train="*.parquet"))


def _split_tables(root: Path) -> DataConfig | None:
    parts = [name for name in ("train", *TEST_PARTS) if sources.split_files(root, name)]
    used: dict[str, Any] = dict(zip(("train", "test"), parts, strict=False))
    return _config(Parquet(**used), has_test=len(used) == 2) if used else None


def _detect_tree(root: Path) -> DataConfig | None:
    inside = {name: sources.folders_in(root / name) for name in sources.folders_in(root)}
    direct = {name for name in inside if sources.has_image(root / name)}
    trees = {name for name in inside if any(sources.has_image(root / name / each) for each in inside[name])}
    is_tree = "train" in trees - direct  # then a folder with only images is not a split
    parts = [x for x in ("train", *TEST_PARTS) if x in (trees if is_tree else direct | trees)]
    if parts and (is_tree or direct <= {*parts}):  # else "train" is a class
        used = parts[:2] if parts[0] == "train" else parts[:1]
        if left := sorted((direct | trees) - {*used, "runs"}):
            unused = f'data "{root}": the images in {few(left)} are not used, only those in {few(used)}'
            warn(ZooWarning(unused), stacklevel=2)
        test = next((name for name in parts if name != "train"), None)
        return _config(Folder(test=test or "val"), has_test=test is not None)
    return _config(Folder(train=".")) if direct or sources.has_image(root) else None


def _holds(root: Path, config: DataConfig) -> bool:
    """Return whether a folder contains the files that a source reads."""
    source = sources.as_archive(config.source)
    if source.kind in sources.CIFAR:  # one folder may contain both archives
        archives = [sources.cifar_archive(kind, root) for kind in sources.CIFAR]
        return any(map(isdir, archives)) or sources.are_cifar_shards(sources.cifar_shards(root), source.kind)
    if isinstance(source, Parquet):
        return bool(sources.split_files(root, source.train))
    if source == Folder(train="."):
        return (tree := _detect_tree(root)) is not None and tree.source == source
    return any(exists(root / getattr(source, split)) for split in ("train", "test"))


def resolve(data: Data, own: DataConfig | None) -> Given:
    """Return a recipe's `own` data with their location if `data` is one or None, else `data` as other data.

    A folder counts as the own data's location if it contains the files of their source, or no recognisable
    data, since data may be downloaded to it. Images in memory count as the own data if they are the same.
    """
    if own is None:
        return as_data(data)
    if data is None:
        return Given(own, None, is_own=True)
    path = None if own.source.kind in ("digits", "memory") else path_of(data)  # these need no folder
    if path and isdir(path) and (_holds(path, own) or detect(path) is None):
        return Given(own, path, is_own=True)
    given = as_data(data)
    is_same = given.config.source == own.source and not (given.config.long_tail or given.config.subset)
    # so is a spec of data with a holdout: as other data, it would include images that were trained on
    is_own = is_same and (isinstance(given.root, MemoryImages) or own.holdout is not None)
    return Given(own, given.root, is_own=True) if is_own else given


def own_root(data: Data, config: DataConfig) -> Root:
    """Return the location of a recipe's own data; raise DataError for other data."""
    found = resolve(data, config)
    if not found.is_own:
        name = f'"{data}"' if isinstance(data, str | Path) else type_name(data)
        raise DataError(f"data: found {name}, expected the recipe's own: {config.source.kind}")
    return found.root


def all_as_test(config: DataConfig) -> DataConfig:
    """Make all images test images if the data have no test split; return other data unchanged."""
    return config if config.holdout is None else config.model_copy(update={"holdout": Holdout(fraction=1)})


def open_images(data: Data, split: Split | None = None) -> tuple[ImageDataset, Split | None]:
    """Open images, with or without labels; return them and their split, None if they are not a split.

    Without `split`, opens all images of a folder or of data without splits, otherwise the test split.
    A folder's images may be at any depth; if all are CLASS/IMAGE, they have classes.
    """
    if split not in (None, "train", "test"):
        raise ZooError(f"split: found {split!r}, expected train or test")
    root = path_of(data) if split is None else None
    if root and isdir(root) and not _split_tables(root) and (names := sorted(sources.image_files(root))):
        has_classes = all(name.count("/") == 1 for name in names)
        labels = [name.partition("/")[0] for name in names] if has_classes else None
        settings = {"name": root.resolve().name, "source": "images"}
        return to_dataset(ImageStore(names, names, labels, None, settings, folder=root)), None
    config, place, _ = as_data(data)
    opened = split or (None if config.holdout is not None else "test")
    config = config if split else all_as_test(config)
    return sources.open_dataset(config, split or "test", place, unlabelled=True), opened
