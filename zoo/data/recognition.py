"""Which images lie in a folder, and which source reads them: for the advice in messages."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import yaml

from zoo.data.cifar import COPIES, parquet_folders
from zoo.data.config import DataConfig, Folder, Parquet, Source, TorchvisionSource
from zoo.data.parquet import named_by
from zoo.data.spec import data_spec
from zoo.files import is_dir, is_file, names_in

FASHION_MNIST = "FashionMNIST"
"""The folder that torchvision keeps it in."""

_LISTS = ("train.txt", "train.csv")
_MOST = 1000  # entries of one folder that are looked at: it may have millions


def recognised(root: Path) -> tuple[Source, Path] | None:
    """Return the source of what lies in a folder, and the folder it is given; None for anything else."""
    tree = Folder()
    if _image_below(root / tree.train) is not None:
        other = not is_dir(root / tree.test) and is_dir(root / "test")
        return Folder(test="test") if other else tree, root
    for kind, copy in COPIES.items():
        if archive_in(root, copy.archive) is not None:
            return TorchvisionSource.model_validate({"kind": kind}), root
    files = Parquet()
    folder = root if has_parquet(root, files) else below(root, files)
    return None if folder is None else (files, folder)


def archive_in(root: Path, archive: str) -> Path | None:
    """Return torchvision's unpacked archive of that name: the folder itself, or one in it."""
    folder = root if root.name == archive else root / archive
    return folder if is_dir(folder) else None


def holds(root: Path, source: TorchvisionSource) -> bool:
    """Whether a folder has what the source reads, so that nothing need be downloaded into it."""
    copy = COPIES.get(source.kind)
    if archive_in(root, _archive_of(source)) is not None:
        return True
    return copy is not None and bool(parquet_folders(root, copy))


def is_archive(root: Path, source: TorchvisionSource) -> bool:
    """Whether a folder is the source's unpacked archive itself."""
    return root.name == _archive_of(source)


def _archive_of(source: TorchvisionSource) -> str:
    return FASHION_MNIST if source.kind == "fashion_mnist" else COPIES[source.kind].archive


def has_parquet(folder: Path, source: Parquet) -> bool:
    """Whether the source's training files lie in a folder."""
    train = folder / source.train  # it may name a folder too
    return is_dir(folder) and bool(named_by(train.name, names_in(train.parent)))


def below(root: Path, source: Source) -> Path | None:
    """Return the first folder in `root` that has what the source would have read in `root` itself."""
    copy = COPIES.get(source.kind)
    for folder in (root / name for name in names_in(root)):
        if isinstance(source, Parquet) and has_parquet(folder, source):
            return folder
        if copy is not None and archive_in(folder, copy.archive) is not None:
            return folder
    return None


def own_image(root: Path) -> Path | None:
    """Return one of the images that somebody keeps in a folder: in it, or one folder down.

    Further down that is another data set's place, except for folders of classes: those of a folder called
    training, or of any where a list of training images lies in `root`.
    """
    if (image := first_image(root)) is not None:
        return image
    has_list = any(is_file(root / name) for name in _LISTS)
    for folder in _folders(root):
        image = first_image(folder)
        if image is None and (has_list or folder.name.casefold() in ("train", "training")):
            image = _image_below(folder)
        if image is not None:
            return image
    return None


def first_image(folder: Path) -> Path | None:
    """Return the image file that is listed first of those in a folder, hidden ones left out."""
    from torchvision.datasets.folder import IMG_EXTENSIONS

    names = (each.name for each in _entries(folder) if each.name.lower().endswith(IMG_EXTENSIONS))
    return next((folder / name for name in names if is_file(folder / name)), None)


def is_visible(name: str) -> bool:
    """Whether that is none of .ipynb_checkpoints, .git, .DS_Store, ._photo.jpg, __MACOSX and the like."""
    return not name.startswith(".") and name != "__MACOSX"


def _image_below(folder: Path) -> Path | None:
    """Return an image of the folders in a folder."""
    images = (first_image(each) for each in _folders(folder))
    return next((image for image in images if image is not None), None)


def _folders(folder: Path) -> Iterator[Path]:
    return filter(is_dir, (folder / each.name for each in _entries(folder)))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what lies in a folder, as far as it is looked at; nothing where that cannot be seen."""
    with suppress(OSError, ValueError), os.scandir(folder) as entries:
        return [each for each in islice(entries, _MOST) if is_visible(each.name)]
    return []


def as_spec(config: DataConfig, root: Path) -> str | None:
    """Return the option that gives these data in place of a release's own; None where no spec says them."""
    spec = data_spec(config, root)
    return None if spec is None else f"--data {shlex.quote(spec)}"


def as_setting(source: Source) -> str:
    """Return the option that has a recipe read this source."""
    words = {"kind": source.kind, **source.model_dump(mode="json", exclude={"kind"}, exclude_defaults=True)}
    text = yaml.safe_dump(words, default_flow_style=True, sort_keys=False, width=10_000).strip()
    return f"--set {shlex.quote(f'data.source={text}')}"
