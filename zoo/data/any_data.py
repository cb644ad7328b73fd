"""The one door for data: whatever a caller gives becomes a configuration, and the place of its images."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from zoo.config import plain_kind
from zoo.data import config as sections
from zoo.data import readers
from zoo.data.config import DataConfig, Folder, Holdout, ListFiles, Parquet, TorchvisionSource
from zoo.data.dataset import ImageDataset, ImageStore, Split
from zoo.data.labels import class_labels
from zoo.data.memory import TEST_PARTS, MemoryImages, Root
from zoo.data.sources import from_archive, open_dataset
from zoo.errors import DataError, ZooError, few
from zoo.files import exists, is_dir, is_file, names_in

Data = Any
"""Images, with labels or without, as every function takes them:

- a folder, `CLASS/IMAGE`, `train/CLASS/IMAGE` with a folder of test images beside it (`val`, `valid`,
  `validation` or `test`), images alone, or parquet files, as Hugging Face's `Dataset.to_parquet` writes them;
  or one such file;
- a list, lines "path label" (.txt) or columns path,label (.csv), of images relative to its folder;
- a spec, see `zoo.data.config.parse_data_spec`;
- a Hugging Face `Dataset` or `DatasetDict`;
- a torch `Dataset` of (image, label), or of images; a dict of such, by the names of their parts;
- a list of PIL images, uint8 arrays `[H, W]` or `[H, W, 3]`, tensors `[C, H, W]` or paths, or of
  (image, label).

Of labelled images without a test part a fifth of each class is held out for testing.
"""

TABLES = (".parquet", ".csv", ".txt")
"""Endings of files that name or hold many images."""
_TREES = "CLASS/IMAGE, train/CLASS/IMAGE with val/CLASS/IMAGE, images alone, or parquet files"
_EXPECTED = "a folder, a .parquet, .csv or .txt file, or a spec such as folder:DIR"


class Given(NamedTuple):
    """Data as they are opened: configuration, place, and whether a recipe or release itself names them."""

    config: DataConfig
    root: Root
    is_own: bool = False


def as_data(data: Data) -> Given:
    """Return the configuration and the place of what a caller gives for data.

    Raises:
        DataError: for a folder or file that is not there or has no images that are known, for anything else
            that is none of `Data`, and for an ambiguous choice of columns.
    """
    if not isinstance(data, str | Path):
        images = data if isinstance(data, MemoryImages) else MemoryImages(data)
        labelled = all(part.class_names for part in images.sets.values())
        return Given(_config(images.source, has_test="test" in images.sets, labelled=labelled), images)
    path = Path(data)
    if is_dir(path):
        if (found := detect(path)) is None:
            raise DataError(_nothing_in(path))
        return Given(found, path)
    if is_file(path):
        if path.suffix.lower() not in TABLES:
            raise DataError(f'data: found the file "{data}", expected {_EXPECTED}')
        if path.suffix.lower() == ".parquet":
            return Given(_parquet_config(path.parent, Parquet(), path.name), path.parent)
        return Given(_config(ListFiles(train=path.name, test=path.name)), path.parent)
    if "/" in str(data).partition(":")[0]:
        raise DataError(f'data: no folder or file "{data}"')
    config, root = sections.parse_data_spec(str(data))
    if root is not None and not is_dir(root):
        raise DataError(f'data "{data}": there is no folder "{root}"')
    source, found = config.source, None
    if root is not None and not {"train", "test"} & source.model_fields_set:
        if isinstance(source, Parquet):
            found = _detect_parquet(root, source)
        elif isinstance(source, Folder):
            found = _detect_tree(root)
    if found is not None:
        config = config.model_copy(update={"source": found.source, "holdout": found.holdout})
    return Given(config, root)


def _config(source: Any, *, has_test: bool = False, labelled: bool = True) -> DataConfig:
    return DataConfig(source=source, holdout=None if has_test else Holdout(fraction=0.2 if labelled else 0))


def _nothing_in(root: Path) -> str:
    """Return the error for a folder without known images: what lies there, what is expected, and where."""
    below = None
    with suppress(DataError):
        below = next((name for name in readers.folders_in(root) if detect(root / name) is not None), None)
    found = few([*filter(readers.is_visible, names_in(root))]) or "nothing"
    hint = f'. Did you mean "{root / below}"?' if below else ""
    return f'data: found no images in the folder "{root}" but {found}, expected {_TREES}{hint}'


def detect(root: Path) -> DataConfig | None:
    """Return how a folder is read: train/CLASS/IMAGE, CIFAR's, parquet, CLASS/IMAGE, images, or None."""
    tree = _detect_tree(root)
    if tree is not None and tree.source != Folder(train="."):
        return tree
    for kind in readers.CIFAR:
        if is_dir(readers.cifar_archive(kind, root)):
            return DataConfig(source=TorchvisionSource.model_validate({"kind": kind}))
    return _detect_parquet(root, Parquet()) or tree


def _detect_tree(root: Path) -> DataConfig | None:
    folders = readers.folders_in(root)
    parts = [name for name in ("train", *TEST_PARTS) if name in folders]
    trees = [name for name in parts if _has_classes(root / name)]
    flat = "train" in parts and readers.has_image(root / "train")
    others = any(readers.has_image(root / name) for name in folders if name not in parts)  # a class "train"?
    if "train" in trees or ((trees or flat) and not others):
        test = next((name for name in parts if name != "train"), None)
        labelled = "train" in trees or not flat
        return _config(Folder(test=test or "val"), has_test=test is not None, labelled=labelled)
    labelled = _has_classes(root)
    return _config(Folder(train="."), labelled=labelled) if labelled or readers.has_image(root) else None


def _has_classes(folder: Path) -> bool:
    return any(readers.has_image(folder / name) for name in readers.folders_in(folder))


def _detect_parquet(root: Path, given: Parquet) -> DataConfig | None:
    """Return how a folder's parquet files are read: those of its parts, else all of them as one part."""
    for inside in ("", "data/"):
        parts = [f"{inside}{part}" for part in ("train", *TEST_PARTS)]
        parts = [part for part in parts if readers.split_files(root, part)]
        if parts[1:] and parts[0] == f"{inside}train":
            return _parquet_config(root, given, *parts[:2])
        if readers.split_files(root, everything := next(iter(parts), f"{inside}*.parquet")):
            return _parquet_config(root, given, everything)
    return None


def _parquet_config(root: Path, given: Parquet, train: str, test: str | None = None) -> DataConfig:
    """Return how parquet files are read, with the columns that the first one has."""
    file = readers.split_files(root, train)[0]
    image, label = readers.columns_of(readers.features_of(file), f"parquet: {file}", given.image, given.label)
    update = {"train": train, "test": test or given.test, "image": image, "label": label or given.label}
    return _config(given.model_copy(update=update), has_test=test is not None, labelled=label is not None)


def reads_folder(config: DataConfig) -> bool:
    """Return whether the images can lie in a folder of the user's."""
    return config.source.kind not in ("digits", "hub", "memory")


def folder_for(config: DataConfig, root: Root) -> Root:
    """Return the folder that several data share, or None for data that cannot lie in it."""
    return root if reads_folder(config) or isinstance(root, MemoryImages) else None


def _holds(root: Path, config: DataConfig) -> bool:
    """Return whether what a source reads lies in a folder."""
    source = config.source
    if isinstance(source, Parquet):
        return bool(readers.split_files(root, source.train)) or from_archive(source, root) is not source
    if isinstance(source, TorchvisionSource):  # archives share a folder
        archives = any(is_dir(readers.cifar_archive(kind, root)) for kind in readers.CIFAR)
        return archives or bool(readers.cifar_shards(root))
    if source == Folder(train="."):
        tree = _detect_tree(root)
        return tree is not None and tree.source == source
    return any(exists(root / getattr(source, split)) for split in ("train", "test"))


def resolve(data: Data, own: DataConfig | None) -> Given:
    """Return the place of `own`, the data that a recipe names (in no folder for None), or other data.

    A folder is that of the own source where this lies in it, or where nothing does that is known: data may be
    downloaded to it. Images of a program are the own ones if these are the same.
    """
    if data is None and own is None:
        raise DataError(f"data: found none, expected {_EXPECTED}, or images in Python")
    if own is None:
        return as_data(data)
    is_folder = isinstance(data, str | Path) and is_dir(data) and reads_folder(own)
    if data is None or (is_folder and (_holds(Path(data), own) or detect(Path(data)) is None)):
        return Given(own, None if data is None else Path(data), is_own=True)
    given = as_data(data)
    is_same = given.config.source == own.source and not (given.config.long_tail or given.config.subset)
    # also a spec of what some was held out of: all of it would have images that were trained on
    is_own = is_same and (isinstance(given.root, MemoryImages) or own.holdout is not None)
    return Given(own, given.root, is_own=True) if is_own else given


def own_root(data: Data, *configs: DataConfig) -> Root:
    """Return the place of the own data of a recipe, or of some of several; raise DataError for other data."""
    if data is None or not configs:
        return None
    for config in configs:
        given = resolve(data, config)
        if given.is_own:
            return given.root
    kinds = ", ".join(sorted({config.source.kind for config in configs}))
    name = f'"{data}"' if isinstance(data, str | Path) else plain_kind(data)
    raise DataError(f"data: found other data, {name}, expected the recipe's own: {kinds}")


def whole(config: DataConfig) -> DataConfig:
    """Return data without a test part with all images as test images; others as they are."""
    return config if config.holdout is None else config.model_copy(update={"holdout": Holdout(fraction=1)})


def open_images(data: Data, split: Split | None = None) -> tuple[ImageDataset, Split | None]:
    """Return images that need no labels, and the split that they are, where it is one.

    Of a folder, and of data in one part, these are all, without `split`; else those of the test part. A
    folder's images may lie at any depth; where all are CLASS/IMAGE, in it or in its parts, they have classes.
    """
    if split not in (None, "train", "test"):
        raise ZooError(f"split: found {split!r}, expected train or test")
    root = Path(data) if split is None and isinstance(data, str | Path) and is_dir(data) else None
    if root is not None and _detect_parquet(root, Parquet()) is None and (paths := readers.image_files(root)):
        names = sorted(path for path, _ in paths)
        inner = [name.split("/") for name in names]
        if all(each[0] in ("train", *TEST_PARTS) for each in inner) and any(
            "train" in each for each in inner
        ):
            inner = [each[1:] for each in inner]
        labels, classes = [-1] * len(names), list[str]()
        if all(len(each) == 2 for each in inner):
            found, classes = class_labels([each[0] for each in inner], names.__getitem__)
            labels = found.tolist()
        settings = {"name": root.resolve().name, "source": "images"}
        return ImageDataset(ImageStore(names, names, folder=root), labels, classes, settings=settings), None
    config, place, _ = as_data(data)
    opened = split or (None if config.holdout is not None else "test")
    return open_dataset(config if split else whole(config), split or "test", place, unlabelled=True), opened
