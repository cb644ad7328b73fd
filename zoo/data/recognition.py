"""What lies in a folder: which images, and which source reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from zoo.data.cifar import COPIES, parquet_folders
from zoo.data.config import DataConfig, Folder, Holdout, ListFiles, Parquet, TorchvisionSource
from zoo.data.image_files import first_image, is_visible
from zoo.data.memory import TEST_PARTS, Root, columns_of
from zoo.data.parquet import parquet_schema, require_datasets, split_files, split_matches
from zoo.errors import DataError
from zoo.files import is_dir, is_file, names_in

FASHION_MNIST = "FashionMNIST"
"""The folder that torchvision keeps it in."""


def source_in(root: Path) -> DataConfig | None:
    """Return how the images in a folder are read; None where it has none that are known.

    Looked for are `train/CLASS/IMAGE` and a test folder, torchvision's archives, parquet files, `CLASS/IMAGE`
    and images without classes, in this order.

    Raises:
        DataError: for images beside folders of images, and for parquet files without a column of images, or
            with several that could be meant.
    """
    tree = folder_in(root)
    if tree is not None and isinstance(tree.source, Folder) and tree.source.train != ".":
        return tree
    for kind in ("cifar10", "cifar100", "fashion_mnist"):
        if archive_in(root, _archive_of(kind)) is not None:
            return DataConfig(source=TorchvisionSource.model_validate({"kind": kind}))
    return _parquet_in(root) or tree


def folder_in(root: Path) -> DataConfig | None:
    """Return how a tree of image files is read; None where there is none."""
    folders = [path.name for path in _folders(root)]
    test = next((name for name in TEST_PARTS if name in folders), None)
    others = any(first_image(root / name) for name in folders if name not in ("train", *TEST_PARTS))
    in_classes = _image_below(root / "train") is not None
    flat = not in_classes and first_image(root / "train") is not None
    if in_classes or (flat and not others):
        if test is not None:
            return DataConfig(source=Folder(test=test))
        return DataConfig(source=Folder(), holdout=Holdout(fraction=0) if flat else Holdout())
    if test is not None and not others and _image_below(root / test) is not None:
        return DataConfig(source=Folder(test=test))
    image, inner = first_image(root), _image_below(root)
    if image is None:
        return None if inner is None else DataConfig(source=Folder(train="."), holdout=Holdout())
    if inner is not None:
        raise DataError(
            f'data: found the image "{image.name}" and the folder "{inner.parent.name}" of images beside it '
            f"in {root}, expected CLASS/IMAGE alone, or images alone"
        )
    return DataConfig(source=Folder(train="."), holdout=Holdout(fraction=0))


def _parquet_in(root: Path) -> DataConfig | None:
    """Return how a folder's parquet files are read: those of its parts, else all of them as one part."""
    found = _patterns(root, "") or _patterns(root, "data/")
    if "train" not in found:
        return parquet_config(root, next(iter(found.values())), None) if found else None
    return parquet_config(
        root, found["train"], next((found[name] for name in TEST_PARTS if name in found), None)
    )


def _patterns(root: Path, inside: str) -> dict[str, str]:
    """Return the pattern of each part's files in a sub-folder; of all files, where they name no part."""
    names = [name for name in names_in(root / inside) if name.endswith(".parquet") and is_visible(name)]
    found = dict[str, str]()
    for part in ("train", *TEST_PARTS):
        if any(map(split_matches(part), names)):
            found[part] = inside + part
        elif any(name.endswith(".parquet") for name in names_in(root / inside / part)):
            found[part] = f"{inside}{part}/*.parquet"
    return found or ({"": f"{inside}*.parquet"} if names else {})


def parquet_config(root: Path, train: str, test: str | None) -> DataConfig:
    """Return how parquet files are read, their columns found by type; without a test part some are held out.

    Raises:
        DataError: for a file that cannot be read, no column of images or of labels, or several.
    """
    require_datasets()
    file = split_files(root, train)[0]
    schema = parquet_schema(file)
    kinds = {field.name: _kind(field.type) for field in schema}
    with suppress(KeyError, TypeError, ValueError, AttributeError, RecursionError):
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        known = {name: each.get("_type") for name, each in features.items() if name in kinds}
        kinds |= {name: kind for name, kind in known.items() if kind in ("Image", "ClassLabel")}
    image, label = columns_of(kinds, f"parquet: {file}", f"the spec parquet:{root}?image=COLUMN&label=COLUMN")
    if label is None:
        raise DataError(f"parquet: {file}: found no label in the columns {', '.join(kinds)}, expected one")
    source = Parquet(train=train, test=test or "test", image=image, label=label)
    return DataConfig(source=source, holdout=None if test else Holdout())


def _kind(arrow: object) -> str:
    """Return the kind of a column as `columns_of` takes it, by its Arrow type."""
    text = str(arrow)
    return "Image" if text in ("binary", "large_binary") or text.startswith("struct<bytes: ") else text


def holds(root: Path, config: DataConfig) -> bool:
    """Whether a folder is that of a source: what it reads lies there, or may be downloaded to it."""
    source = config.source
    if isinstance(source, ListFiles):
        return is_file(root / source.train) or is_file(root / source.test)
    if isinstance(source, Parquet):
        return has_parquet(root, source) or from_archive(config, root) is not config
    if isinstance(source, TorchvisionSource):
        copy = COPIES.get(source.kind)
        there = archive_in(root, _archive_of(source.kind)) is not None
        if there or (copy is not None and parquet_folders(root, copy)):
            return True
        others = [kind for kind in (*COPIES, "fashion_mnist") if archive_in(root, _archive_of(kind))]
        return bool(others) and root.name not in map(_archive_of, others)  # archives share a folder
    if not isinstance(source, Folder):
        return True
    if source.train != ".":
        return is_dir(root / source.train) or is_dir(root / source.test)
    found = folder_in(root)
    return found is not None and isinstance(found.source, Folder) and found.source.train == "."


def archive_in(root: Path, archive: str) -> Path | None:
    """Return torchvision's unpacked archive of that name: the folder itself, or one in it."""
    folder = root if root.name == archive else root / archive
    return folder if is_dir(folder) else None


def _archive_of(kind: str) -> str:
    return FASHION_MNIST if kind == "fashion_mnist" else COPIES[kind].archive


def has_parquet(folder: Path, source: Parquet) -> bool:
    """Whether the training files of a parquet source lie in a folder."""
    return bool(split_files(folder, source.train))


def from_archive(config: DataConfig, place: Root) -> DataConfig:
    """Return the same data out of torchvision's archive, if that is what lies in a folder for parquet files.

    The images are the same, their order is not: for those whose content is listed.
    """
    wanted = config.source
    if not isinstance(place, str | Path) or not isinstance(wanted, Parquet):
        return config
    root = Path(place)
    if has_parquet(root, wanted):
        return config
    for kind, copy in COPIES.items():
        if copy.label == wanted.label and archive_in(root, copy.archive) is not None:
            return config.model_copy(update={"source": TorchvisionSource.model_validate({"kind": kind})})
    return config


def _image_below(folder: Path) -> Path | None:
    """Return an image of the folders in a folder."""
    images = (first_image(each) for each in _folders(folder))
    return next((image for image in images if image is not None), None)


def _folders(folder: Path) -> Iterator[Path]:
    return (folder / name for name in names_in(folder) if is_visible(name) and is_dir(folder / name))
