"""The one door for data: whatever a caller gives becomes a configuration, and the place of its images."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from zoo.config import plain_kind
from zoo.data.config import (
    DataConfig,
    Digits,
    Folder,
    Holdout,
    HubDataset,
    ListFiles,
    Memory,
    Parquet,
    TorchvisionSource,
    parse_data_spec,
)
from zoo.data.dataset import ImageDataset, ImageStore, Split
from zoo.data.folder import first_image, folders_in, image_files, is_visible
from zoo.data.memory import TEST_PARTS, MemoryImages, Root
from zoo.data.sources import COPIES, from_archive, open_dataset
from zoo.data.table import features_of, parquet_config, split_files
from zoo.errors import DataError, ZooError, few
from zoo.files import is_dir, is_file, names_in

Data = Any
"""Images, with labels or without, as every function takes them:

- a folder, `CLASS/IMAGE`, `train/CLASS/IMAGE` with a folder of test images beside it (`val`, `valid`,
  `validation` or `test`), images alone, or parquet files, as Hugging Face's `Dataset.to_parquet` writes them;
  or one or several such files;
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
TREES = "CLASS/IMAGE, train/CLASS/IMAGE with val/CLASS/IMAGE, images alone, or parquet files"
_EXPECTED = "a folder, a .parquet, .csv or .txt file, or a spec such as folder:DIR"


class Given(NamedTuple):
    """Data as they are opened.

    Attributes:
        config: the source, and what of it is tested on.
        root: the folder of the source, or the images of a program; None where the source needs neither.
        is_own: whether they are those that a recipe or release names itself.
    """

    config: DataConfig
    root: Root
    is_own: bool = False


def as_data(data: Data) -> Given:
    """Read what a caller gives for data.

    Raises:
        DataError: for a folder or file that is not there or has no images that are known, for anything else
            that is none of `Data`, and for an ambiguous choice of columns, naming these.
    """
    if isinstance(data, str | Path):
        return _named(data)
    if isinstance(data, list | tuple) and data and all(str(each).endswith(".parquet") for each in data):
        for each in data:
            features_of(Path(each))  # which says what is missing or damaged
        from datasets import Dataset

        data = Dataset.from_parquet([str(each) for each in data])
    images = data if isinstance(data, MemoryImages) else MemoryImages(data)
    holdout = None if "test" in images.splits else Holdout() if images.labelled else Holdout(fraction=0)
    return Given(DataConfig(source=images.source, holdout=holdout), images)


def _named(data: str | Path) -> Given:
    """Read a folder, a file of or about many images, or a spec."""
    text, path = str(data), Path(data)
    if is_dir(data):
        found = source_in(path)
        if found is None:
            raise DataError(_advice(path))
        return Given(found, path)
    if is_file(data):
        if path.suffix.lower() not in TABLES:
            raise DataError(f'data: found the file "{data}", expected {_EXPECTED}')
        if path.suffix.lower() == ".parquet":
            return Given(parquet_config(path.parent, path.name, None), path.parent)
        source = ListFiles(train=path.name, test=path.name)
        return Given(DataConfig(source=source, holdout=Holdout()), path.parent)
    if "/" in text.partition(":")[0]:
        raise DataError(f'data: no folder or file "{text}"')
    config, root = parse_data_spec(text)
    if root is not None and not is_dir(root):
        raise DataError(f'data "{text}": there is no folder "{root}"')
    if root is not None and isinstance(config.source, Folder) and len(config.source.model_fields_set) < 2:
        found = folder_in(root)
        update = {} if found is None else {"source": found.source, "holdout": found.holdout}
        config = config.model_copy(update=update)
    return Given(config, root)


def _advice(root: Path) -> str:
    """Say what lies in a folder in which no images are known, and where they are or how they should lie."""
    below = None
    with suppress(DataError):  # a folder there may be ambiguous itself
        below = next((name for name in folders_in(root) if source_in(root / name) is not None), None)
    found = few([name for name in names_in(root) if is_visible(name)]) or "nothing"
    hint = f'. Did you mean "{root / below}"?' if below else ""
    return f'data: found no images in the folder "{root}" but {found}, expected {TREES}{hint}'


def source_in(root: Path) -> DataConfig | None:
    """Return how the images in a folder are read; None where it has none that are known.

    Looked for are `train/CLASS/IMAGE` and a test folder, CIFAR's archives, parquet files, `CLASS/IMAGE` and
    images without classes, in this order.

    Raises:
        DataError: for images beside folders of images, and for parquet files without a column of images, or
            with several that could be meant.
    """
    tree = folder_in(root)
    if tree is not None and isinstance(tree.source, Folder) and tree.source.train != ".":
        return tree
    for kind, copy in COPIES.items():
        if is_dir(copy.archive_in(root)):
            return DataConfig(source=TorchvisionSource.model_validate({"kind": kind}))
    return _parquet_in(root) or tree


def folder_in(root: Path) -> DataConfig | None:
    """Return how a tree of image files is read; None where there is none."""
    folders = folders_in(root)
    parts = [name for name in ("train", *TEST_PARTS) if name in folders]
    below = [name for name in parts if _image_below(root / name) is not None]
    alone = "train" in parts and not below and first_image(root / "train") is not None
    is_class = any(first_image(root / name) for name in folders if name not in parts)  # as "train" may be
    if "train" in below or ((below or alone) and not is_class):
        test = next((name for name in parts if name != "train"), None)
        if test is not None:
            return DataConfig(source=Folder(test=test))
        return DataConfig(source=Folder(), holdout=Holdout(fraction=0) if alone else Holdout())
    image, inner = first_image(root), _image_below(root)
    if image is not None and inner is not None:
        raise DataError(
            f'data: found the image "{image.name}" and the folder "{inner.parent.name}" of images beside it '
            f"in {root}, expected CLASS/IMAGE alone, or images alone"
        )
    if image is None and inner is None:
        return None
    return DataConfig(source=Folder(train="."), holdout=Holdout() if image is None else Holdout(fraction=0))


def _image_below(folder: Path) -> Path | None:
    """Return an image of the folders in a folder."""
    images = (first_image(folder / name) for name in folders_in(folder))
    return next((image for image in images if image is not None), None)


def _parquet_in(root: Path) -> DataConfig | None:
    """Return how a folder's parquet files are read: those of its parts, else all of them as one part."""
    for inside in ("", "data/"):
        parts = [part for part in ("train", *TEST_PARTS) if split_files(root / inside, part)]
        found = {part: inside + part for part in parts}
        if "train" in found:
            test = next((found[name] for name in TEST_PARTS if name in found), None)
            return parquet_config(root, found["train"], test)
        everything = next(iter(found.values()), f"{inside}*.parquet")
        if split_files(root, everything):
            return parquet_config(root, everything, None)
    return None


def reads_folder(config: DataConfig) -> bool:
    """Whether the images can lie in a folder of the user's."""
    return not isinstance(config.source, Digits | HubDataset | Memory)


def folder_for(config: DataConfig, root: Root) -> Root:
    """Return the folder that several data share, or None for data that cannot lie in it."""
    return root if reads_folder(config) or isinstance(root, MemoryImages) else None


def lies_in(root: Path, config: DataConfig) -> bool:
    """Whether a folder is that of a source: what it reads lies there, or may be downloaded to it."""
    source = config.source
    if isinstance(source, ListFiles):
        return is_file(root / source.train) or is_file(root / source.test)
    if isinstance(source, Parquet):
        return bool(split_files(root, source.train)) or from_archive(config, root) is not config
    if isinstance(source, TorchvisionSource):
        copy = COPIES[source.kind]
        beside = any(is_dir(root / each.archive) for each in COPIES.values())  # archives share a folder
        return beside or root.name == copy.archive or copy.parquet_in(root) is not None
    if isinstance(source, Folder) and source.train != ".":
        return is_dir(root / source.train) or is_dir(root / source.test)
    found = folder_in(root)
    return found is not None and isinstance(found.source, Folder) and found.source.train == "."


def resolve(data: Data, own: DataConfig | None) -> Given:
    """Tell the place of a recipe's own data from other data.

    A folder is that of the own source where this lies in it, or where nothing does that is known. Images of a
    program are the own ones if these are the same.

    Args:
        data: None for the own data, in no folder.
        own: what the recipe names; None: nothing.

    Raises:
        DataError: see `as_data`.
    """
    if own is not None:
        if data is None:
            return Given(own, None, is_own=True)
        if isinstance(data, str | Path) and is_dir(data) and reads_folder(own):
            root = Path(data)
            if lies_in(root, own) or source_in(root) is None:
                return Given(own, root, is_own=True)
    elif data is None:
        raise DataError(f"data: found none, expected {_EXPECTED}, or images in Python")
    given = as_data(data)
    if own is None or given.config.source != own.source or given.config.long_tail or given.config.subset:
        return given
    # also a spec of what some was held out of: all of it would have images that were trained on
    is_own = isinstance(given.root, MemoryImages) or own.holdout is not None
    return Given(own, given.root, is_own=True) if is_own else given


def own_root(data: Data, *configs: DataConfig) -> Root:
    """Return the place of the own data of a recipe, or of some of several recipes that share it.

    Raises:
        DataError: for a folder that is not there, and for other data than each of them names.
    """
    if data is None or not configs:
        return None
    found = next((given for given in (resolve(data, config) for config in configs) if given.is_own), None)
    if found is None:
        kinds = ", ".join(sorted({config.source.kind for config in configs}))
        told = f'"{data}"' if isinstance(data, str | Path) else plain_kind(data)
        raise DataError(f"data: found other data, {told}, expected the recipe's own: {kinds}")
    return found.root


def whole(config: DataConfig) -> DataConfig:
    """Return data without a test part with all images as test images; others as they are."""
    return config if config.holdout is None else config.model_copy(update={"holdout": Holdout(fraction=1)})


def open_images(data: Data, split: Split | None = None) -> tuple[ImageDataset, Split | None]:
    """Open images that need no labels; return them, and the split that they are, where it is one.

    Of a folder, and of data in one part, these are all, without `split`; else those of the test part. A
    folder's images may lie at any depth, and are named by their paths in it; where every one lies in a folder
    directly in `data`, that is its class.

    Raises:
        DataError: see `as_data`.
    """
    if split not in (None, "train", "test"):
        raise ZooError(f"split: found {split!r}, expected train or test")
    if split is None and isinstance(data, str | Path) and is_dir(data):
        tabular = any(name.endswith(".parquet") for name in names_in(Path(data)))
        paths = [] if tabular else sorted(image_files(Path(data)))
        if paths:
            return _folder_of_images(Path(data), paths), None
    config, root, _ = as_data(data)
    told = split or (None if config.holdout is not None else "test")
    config = config if split else whole(config)
    return open_dataset(config, split or "test", root, unlabelled=True), told


def _folder_of_images(root: Path, paths: list[str]) -> ImageDataset:
    tops = [path.split("/")[0] for path in paths]
    classes = sorted(set(tops)) if all(path.count("/") == 1 for path in paths) else []
    places = {name: place for place, name in enumerate(classes)}
    labels = [places.get(top, -1) for top in tops]
    settings = {"name": root.resolve().name, "source": "images"}
    return ImageDataset(ImageStore(paths, paths, folder=root), labels, classes, settings=settings)
