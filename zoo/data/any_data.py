"""The one door for data: whatever a caller gives becomes a configuration, and the place of its images."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from zoo.config import plain_kind
from zoo.data.config import DataConfig, Folder, Holdout
from zoo.data.dataset import ImageDataset, Split
from zoo.data.embedded import reads_folder
from zoo.data.image_files import image_files
from zoo.data.memory import MemoryImages, Root
from zoo.data.recognition import folder_in, holds, parquet_config, source_in
from zoo.data.sources import open_dataset
from zoo.data.spec import parse_data_spec
from zoo.data.stores import FileStore
from zoo.errors import DataError, ZooError
from zoo.files import is_dir, is_file, names_in

Data = Any
"""Images, with labels or without, as every function takes them:

- a folder, `CLASS/IMAGE`, `train/CLASS/IMAGE` with a folder of test images beside it (`val`, `valid`,
  `validation` or `test`), images alone, or parquet files, as Hugging Face's `Dataset.to_parquet` writes them;
  or one or several such files;
- a spec, see `zoo.data.spec.parse_data_spec`;
- a Hugging Face `Dataset` or `DatasetDict`;
- a torch `Dataset` of (image, label), or of images; a dict of such, by the names of their parts;
- a list of PIL images, uint8 arrays `[H, W]` or `[H, W, 3]`, tensors `[C, H, W]` or paths, or of
  (image, label).

Of labelled images without a test part a fifth of each class is held out for testing.
"""


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
        try:
            from datasets import Dataset
        except ImportError:
            raise DataError("data: several parquet files need the package datasets") from None
        data = Dataset.from_parquet([str(each) for each in data])
    images = data if isinstance(data, MemoryImages) else MemoryImages(data)
    holdout = None if "test" in images.splits else Holdout() if images.labelled else Holdout(fraction=0)
    return Given(DataConfig(source=images.source, holdout=holdout), images)


def _named(data: str | Path) -> Given:
    """Read a folder, a parquet file or a spec."""
    text, path = str(data), Path(data)
    if is_dir(data):
        found = source_in(path)
        if found is None:
            raise DataError(
                f'data: found no images in the folder "{data}", expected CLASS/IMAGE, train/CLASS/IMAGE with '
                "val/CLASS/IMAGE, or parquet files"
            )
        return Given(found, path)
    if is_file(data):
        if path.suffix != ".parquet":
            raise DataError(f'data: found the file "{data}", expected {_EXPECTED}')
        return Given(parquet_config(path.parent, path.name, None), path.parent)
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


_EXPECTED = "a folder, a .parquet file, or a spec such as folder:DIR"


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
            if holds(root, own) or source_in(root) is None:
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


class Opened(NamedTuple):
    """Images to encode: all, or those of a split; and how many of them may be unreadable."""

    dataset: ImageDataset
    split: Split | None
    max_bad_images: int = 0


def open_images(data: Data, split: Split | None = None) -> Opened:
    """Open images that need no labels.

    Of a folder, and of data in one part, these are all, without `split`; else those of the test part. A
    folder's images may lie at any depth, and are named by their paths in it; where every one lies in a folder
    directly in `data`, that is its class.

    Raises:
        DataError: see `as_data`.
    """
    if split not in (None, "train", "test"):
        raise ZooError(f"split: found {split!r}, expected train or test")
    if split is None and isinstance(data, str | Path) and is_dir(data):
        files = [name for name in names_in(Path(data)) if name.endswith(".parquet")]
        paths = [] if files else image_files(Path(data))
        if paths:
            return Opened(_folder_of_images(Path(data), paths), None)
    config, root, _ = as_data(data)
    told = split or (None if config.holdout is not None else "test")
    config = config if split else whole(config)
    return Opened(open_dataset(config, split or "test", root, unlabelled=True), told, config.max_bad_images)


def _folder_of_images(root: Path, paths: list[str]) -> ImageDataset:
    tops = [path.split("/")[0] for path in paths]
    classes = sorted(set(tops)) if all(path.count("/") == 1 for path in paths) else []
    places = {name: place for place, name in enumerate(classes)}
    labels = [places.get(top, -1) for top in tops]
    settings = {"name": root.resolve().name, "source": "images"}
    return ImageDataset(FileStore(root, paths), labels, classes, settings=settings)
