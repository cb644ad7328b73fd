"""A folder's files are the old ones or the new ones, never a mixture, whatever stops the writer.

New files are gathered in a folder of their own. Renaming that folder to `.writing` is the moment from which
the new files count: whoever opens the folder after a crash moves what is left there to its place.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zoo.files import is_dir, staging, sync

WRITING = ".writing"  # new files, all of them written, that are moved to their place one by one
LOCK = ".lock"  # of who adds to what a release records; no part of it
_STALE = ".stale"  # among the new files: the names of old ones to remove


@contextmanager
def replacing(folder: Path, *, last: str, stale: tuple[str, ...]) -> Iterator[Path]:
    """Yield an empty folder; its files appear in `folder` when the block ends without an error.

    Files are renamed into place and never overwritten: readers that have mapped an old file keep it.

    Args:
        folder: where the files shall be. Other files and folders in it stay.
        last: the file to replace after all others.
        stale: patterns of files in `folder` to remove when they are not among the new ones.
    """
    exists = folder.exists()
    if exists:
        complete(folder, last)
    with staging(folder, inside=exists) as gathered:
        yield gathered
        if exists:
            new = {file.name for file in gathered.iterdir()}
            old = {file.name for pattern in stale for file in folder.glob(pattern)} - new
            (gathered / _STALE).write_text("\n".join(sorted(old)), encoding="utf-8")
        for file in gathered.iterdir():
            sync(file)
        sync(gathered)
        gathered.rename(folder / WRITING if exists else folder)
        sync(folder if exists else folder.parent)
    complete(folder, last)


def complete(folder: Path, last: str) -> None:
    """Move new files to their place that a stopped writer left in `folder / ".writing"`, if there are any.

    Two processes may do so at one time.

    Raises:
        OSError: when the folder cannot be changed.
    """
    new = folder / WRITING
    if not is_dir(new):
        return
    with suppress(FileNotFoundError):
        for name in (new / _STALE).read_text(encoding="utf-8").splitlines():
            if Path(name).name == name:  # the folder may be a stranger's
                (folder / name).unlink(missing_ok=True)
    names = [file.name for file in new.iterdir() if file.name != _STALE]
    for name in sorted(names, key=lambda name: (name == last, name)):
        with suppress(FileNotFoundError):  # another process has moved it
            (new / name).replace(folder / name)
    sync(folder)
    shutil.rmtree(new, ignore_errors=True)
