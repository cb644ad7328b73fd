"""Files that are either the old ones or the new ones, never halves, whatever stops the writer."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zoo.files import sync, write_atomic

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
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = (folder if exists else folder.parent) / f".{folder.name}.{uuid.uuid4().hex}"
    try:
        staging.mkdir()
        yield staging
        for file in staging.iterdir():
            sync(file)
        sync(staging)
        if not exists:
            staging.rename(folder)
            sync(folder.parent)
            return
        names = sorted((file.name for file in staging.iterdir()), key=lambda name: (name == last, name))
        mark = folder / WRITING
        mark.touch()
        sync(folder)
        for old in {file for pattern in stale for file in folder.glob(pattern)}:
            if old.name not in names:
                old.unlink()
        for name in names:
            (staging / name).replace(folder / name)
        sync(folder)
        mark.unlink()
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def copy(source: Path, target: Path) -> None:
    """Replace the file `target` by a copy of `source` in one step."""
    write_atomic(target, lambda temporary: shutil.copyfile(source, temporary))
