"""Files and folders below the data folder: looked for, and fetched by one process at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from zoo.errors import DataError, did_you_mean
from zoo.files import is_dir, is_file, names_in
from zoo.locks import turn


def require_root(root: Path | None, kind: str) -> Path:
    """Return the data folder.

    Raises:
        DataError: when none was given, or it is none.
    """
    if root is None:
        raise DataError(f"{kind}: no data folder given; give the one that holds the data with --data DIR")
    if not is_dir(root):
        raise DataError(
            f'{kind}: there is no folder "{root}"; give the one that holds the data with --data DIR'
        )
    return root


def require_path(root: Path | None, given: str, kind: str, what: str, key: str = "") -> Path:
    """Return the file or folder `given`, relative to the data folder unless absolute.

    Args:
        root: the data folder.
        given: its name.
        kind: of the source.
        what: it is, for the error.
        key: where its name is said, for the error.

    Raises:
        DataError: naming `what` is missing and the nearest name that exists beside it.
    """
    path = Path(given) if Path(given).is_absolute() else require_root(root, kind) / given
    if not (is_file(path) or is_dir(path)):
        beside = names_in(path.parent)
        near = did_you_mean(path.name, beside)
        if not near and beside:
            some = ", ".join(beside[:6]) + (", ..." if len(beside) > 6 else "")
            near = f" There are: {some}." + (f" Which it is says {key}." if key else "")
        raise DataError(
            f'{kind}: no {what} "{given}", looked for {path}.{near} The data folder is given with --data DIR'
        )
    return path


@contextmanager
def fetching(folder: Path, *, download: bool) -> Iterator[None]:
    """Let one process after another look whether an archive is in `folder`, and fetch it where it is not.

    Without `download` nothing is fetched, and nobody waits. Whoever waited finds what the one before has
    fetched. Where no file can be written there is nothing to wait for: nobody fetches anything into such a
    place, and what lies there is read.
    """
    with ExitStack() as held:
        if download:
            with suppress(OSError):
                held.enter_context(turn(folder.with_name(f".{folder.name}.lock")))
        yield
