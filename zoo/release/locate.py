"""From the reading of a name to a folder on this machine."""

from __future__ import annotations

from pathlib import Path

from zoo.errors import ReleaseError, did_you_mean
from zoo.files import is_dir, is_file, names_in
from zoo.release import format, hub, names
from zoo.release.hub import download
from zoo.release.unfinished import unfinished


def folder_of(
    reading: names.Reading,
    *,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    want: download.Want = "model",
) -> Path:
    """Return the folder of a release, after fetching it if it is on the Hub; arguments as `download.fetch`.

    Raises:
        ReleaseError: when it is not there.
    """
    if reading.path is None:
        repo_id, at = reading.target, reading.revision
        try:
            return download.fetch(repo_id, at, token=token, cache_dir=cache_dir, want=want)
        except hub.RepositoryAbsentError as error:
            if not reading.others:
                raise
            raise ReleaseError(f"{error} (and there is {', '.join(reading.others)})") from error
    if not is_dir(reading.path):
        if is_file(reading.path):
            raise ReleaseError(f'"{reading.path}": found a file, expected the folder of a release')
        beside = reading.path.parent
        near = [str(beside / name) for name in names_in(beside) if beside / name != reading.path]
        raise ReleaseError(f'no folder "{reading.path}".{did_you_mean(reading.path, near)}')
    absent = not is_file(reading.path / format.CONFIG) and not unfinished(reading.path)
    if absent and hub.is_repo_id(reading.target):
        raise ReleaseError(
            f"{reading.path}: no release, {format.CONFIG} is missing; the repository of this name on the Hub"
            f' is "hf-hub:{reading.target}"'
        )
    return reading.path
