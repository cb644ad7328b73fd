"""Files that are either the old ones or the new ones, never halves, whatever stops the writer."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zoo.files import staging, sync, write_atomic

WRITING = ".writing"  # lies in a folder whose files are being replaced one by one
LOCK = ".lock"  # of who adds to what a release records; no part of it


@contextmanager
def replacing(folder: Path, *, last: str, stale: tuple[str, ...]) -> Iterator[Path]:
    """Yield an empty folder; its files appear in `folder` when the block ends without an error.

    A `folder` that does not exist appears in one step. In one that does, files are replaced one by one and
    never written in place: readers that have mapped an old file keep it. A `WRITING` mark lies there from the
    first replacement until after the last, so that a crash in between is seen.

    Args:
        folder: where the files shall be. Other files and folders in it stay.
        last: the file to replace after all others.
        stale: patterns of files in `folder` to remove when they are not among the new ones.
    """
    exists = folder.exists()
    with staging(folder, inside=exists) as new:
        yield new
        for file in new.iterdir():
            sync(file)
        sync(new)
        if not exists:
            new.rename(folder)
            sync(folder.parent)
            return
        names = sorted((file.name for file in new.iterdir()), key=lambda name: (name == last, name))
        mark = folder / WRITING
        mark.touch()
        sync(folder)
        for old in {file for pattern in stale for file in folder.glob(pattern)}:
            if old.name not in names:
                old.unlink()
        for name in names:
            (new / name).replace(folder / name)
        sync(folder)
        mark.unlink()


def is_staging(path: Path, folder: Path) -> bool:
    """Whether `path` is where `replacing` gathered the new files of `folder` when it was killed."""
    return re.fullmatch(rf"\.{re.escape(folder.name)}\.[0-9a-f]{{32}}", path.name) is not None


def copy(source: Path, target: Path) -> None:
    """Replace the file `target` by a copy of `source` in one step."""
    write_atomic(target, lambda temporary: shutil.copyfile(source, temporary))
