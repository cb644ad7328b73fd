"""Image files in folders: `CLASS/IMAGE` below a folder for each split, or images alone."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NoReturn

import numpy as np

from zoo.data.config import Folder
from zoo.data.dataset import Split
from zoo.data.labels import nearest_class
from zoo.data.stores import FileStore, Opened
from zoo.errors import DataError, ZooWarning, did_you_mean
from zoo.files import is_dir, is_file, names_in
from zoo.launch import rank

_MOST = 1000  # entries of one folder that are looked at: it may have millions


def require_root(root: Path | None, kind: str) -> Path:
    """Return the data folder.

    Raises:
        DataError: when none was given, or it is none.
    """
    if root is None:
        raise DataError(f"{kind}: no data folder given; give the one that holds the data with --data DIR")
    if not is_dir(root):
        raise DataError(f'{kind}: there is no folder "{root}", which --data gives')
    return root


def require_path(root: Path | None, given: str, kind: str, what: str) -> Path:
    """Return the file or folder `given`, relative to the data folder unless absolute.

    Raises:
        DataError: naming `what` is missing and what lies beside it.
    """
    path = Path(given) if Path(given).is_absolute() else require_root(root, kind) / given
    if not (is_file(path) or is_dir(path)):
        beside = names_in(path.parent)
        hint = did_you_mean(path.name, beside) or f" There are: {', '.join(beside[:6]) or 'no files'}"
        raise DataError(f'{kind}: no {what} "{given}", looked for {path}.{hint}')
    return path


def is_visible(name: str) -> bool:
    """Whether that is none of .ipynb_checkpoints, .git, .DS_Store, ._photo.jpg, __MACOSX and the like."""
    return not name.startswith(".") and name != "__MACOSX"


def folders_in(folder: Path) -> list[str]:
    """Return the sorted names of the visible folders in a folder."""
    return [name for name in names_in(folder) if is_visible(name) and is_dir(folder / name)]


def first_image(folder: Path) -> Path | None:
    """Return an image file that lies directly in a folder; None: there is none that is seen soon."""
    from torchvision.datasets.folder import IMG_EXTENSIONS

    with suppress(OSError, ValueError), os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, _MOST) if is_visible(entry.name)]
        images = (folder / name for name in names if name.lower().endswith(IMG_EXTENSIONS))
        return next(filter(is_file, images), None)
    return None


def image_files(folder: Path, others: Counter[str] | None = None) -> list[str]:
    """Return the images in a folder at any depth, as paths relative to it, in torchvision's order.

    That is by folder, then by name. Links are followed; a folder that several lead to, or that lies in itself
    by one, is read once. Hidden files and folders are left out.

    Args:
        folder: to look in.
        others: counts the endings of files that are no images to torchvision; None: they are told of here.

    Raises:
        DataError: for a folder that may not be read.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS

    def refuse(error: OSError) -> NoReturn:
        raise DataError(f'images: the folder "{error.filename}" cannot be read: {error.strerror}')

    found: list[tuple[str, str]] = []
    endings = Counter[str]() if others is None else others
    known: set[tuple[int, int]] = set()
    for place, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        status = Path(place).stat()
        if (status.st_dev, status.st_ino) in known:
            folders.clear()
            continue
        known.add((status.st_dev, status.st_ino))
        folders[:] = filter(is_visible, folders)
        for name in filter(is_visible, files):
            if name.lower().endswith(IMG_EXTENSIONS):
                found.append((place, name))
            else:
                endings[Path(name).suffix.lower() or "none"] += 1
    if others is None:
        _warn_of_endings(endings, folder)
    top = len(str(folder)) + 1  # strings: of millions of files, paths would take minutes
    return ["/".join(filter(None, (place[top:].replace(os.sep, "/"), name))) for place, name in sorted(found)]


def _warn_of_endings(endings: Counter[str], path: Path) -> None:
    if endings and rank() == 0:
        found = ", ".join(f"{ending} {number}" for ending, number in endings.most_common(6))
        told = f"{path}: files of other endings are left out: {endings.total():,} ({found})"
        warnings.warn(told, ZooWarning, stacklevel=3)


def open_folder(source: Folder, split: Split, root: Path | None) -> Opened:
    """Return an ImageFolder tree, hidden files left out; its classes are the sorted names of the folders.

    They are the training split's, where there is one: a test split may lack some, as a class of one
    photograph has none to test on. A training split whose images lie in no class folders has no classes.

    Raises:
        DataError: for a missing folder, a class without training images, or a test class without its
            training class.
    """
    base = require_root(root, "folder")
    path = require_path(base, source.train if split == "train" else source.test, "folder", f"{split} folder")
    train = Path(base, source.train)
    others = Counter[str]()
    here = folders_in(path)
    if split == "train" and not here and first_image(path) is not None:
        paths = image_files(path, others)
        _warn_of_endings(others, path)
        return Opened(FileStore(path, paths), np.full(len(paths), -1, dtype=np.int64), [])
    classes = folders_in(train) if split == "test" and is_dir(train) else here
    unknown = next((name for name in here if name not in set(classes)), None)
    if unknown is not None:
        raise DataError(
            f'folder: class "{unknown}" of {path} is not among the {len(classes)} of {train}.'
            f"{nearest_class(unknown, classes)}"
        )
    files = {name: image_files(path / name, others) for name in here}
    empty = [name for name in classes if not files.get(name)]
    if len(empty) == len(classes) or (empty and split == "train"):
        raise DataError(f"folder: found no image in {path}/{empty[0] if empty else 'CLASS'}, expected some")
    if empty and rank() == 0:
        warnings.warn(
            f"folder: {path} has no image of {len(empty)} of the {len(classes)} classes ({_some(empty)}): "
            "what is measured on it is over the others",
            ZooWarning,
            stacklevel=2,
        )
    _warn_of_endings(others, path)
    paths = [f"{name}/{file}" for name in classes for file in files.get(name, ())]
    labels = np.repeat(np.arange(len(classes)), [len(files.get(name, ())) for name in classes])
    return Opened(FileStore(path, paths), labels.astype(np.int64), classes)


def _some(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names[:5]) + (", ..." if len(names) > 5 else "")
