"""Image files in folders: which files are images, and which are left out."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import NoReturn

from zoo.errors import DataError, ZooWarning
from zoo.files import is_file
from zoo.launch import rank

_MOST = 1000  # entries of one folder that are looked at: it may have millions


def is_visible(name: str) -> bool:
    """Whether that is none of .ipynb_checkpoints, .git, .DS_Store, ._photo.jpg, __MACOSX and the like."""
    return not name.startswith(".") and name != "__MACOSX"


def first_image(folder: Path) -> Path | None:
    """Return the image file that is listed first of those in a folder, hidden ones left out."""
    from torchvision.datasets.folder import IMG_EXTENSIONS

    with suppress(OSError, ValueError), os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, _MOST) if is_visible(entry.name)]
        images = (folder / name for name in names if name.lower().endswith(IMG_EXTENSIONS))
        return next(filter(is_file, images), None)
    return None


def image_files(folder: Path) -> list[str]:
    """Return the images in a folder at any depth, as sorted paths relative to it; hidden ones are left out.

    Links are followed; a folder that several lead to, or that lies in itself by one, is read once.

    Raises:
        DataError: for a folder that may not be read.
    """
    from torchvision.datasets.folder import IMG_EXTENSIONS

    def refuse(error: OSError) -> NoReturn:
        raise DataError(f'images: the folder "{error.filename}" cannot be read: {error.strerror}')

    found: list[str] = []
    others: Counter[str] = Counter()
    known: set[tuple[int, int]] = set()
    for place, folders, files in os.walk(folder, onerror=refuse, followlinks=True):
        here = Path(place)
        status = here.stat()
        if (status.st_dev, status.st_ino) in known:
            folders.clear()
            continue
        known.add((status.st_dev, status.st_ino))
        folders[:] = sorted(filter(is_visible, folders))
        inside = here.relative_to(folder)
        for name in filter(is_visible, files):
            if name.lower().endswith(IMG_EXTENSIONS):
                found.append((inside / name).as_posix())
            else:
                others[Path(name).suffix.lower() or "none"] += 1
    warn_of_endings(others, folder, "images")
    return sorted(found)


def warn_of_endings(endings: Counter[str], path: Path, kind: str) -> None:
    """Say how many files of each ending in a folder are no images to torchvision; `kind` begins the text."""
    if not endings or rank() != 0:
        return
    count = endings.total()
    files, are = ("file", "is") if count == 1 else ("files", "are")
    found = ", ".join(f"{ending} {number}" for ending, number in endings.most_common(6))
    found += ", ..." if len(endings) > 6 else ""
    told = f"{kind}: {path}: {count:,} {files} of other endings ({found}) {are} left out"
    warnings.warn(told, ZooWarning, stacklevel=3)
