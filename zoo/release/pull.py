"""`zoo.pull`: a release into the local cache, or into a folder of one's own."""

from __future__ import annotations

import shutil
from pathlib import Path

from zoo import catalog
from zoo.errors import ReleaseError
from zoo.release import files, format, hub, names
from zoo.release.hub import manifest
from zoo.release.locate import folder_of
from zoo.release.release import Release
from zoo.release.source import named

_MAX_VERSIONS = 50  # how far back a folder is recognised as an older state


def pull(
    name: str | Path | Release,
    *,
    out: str | Path | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
) -> Release:
    """Fetch a release whole, pictures included, and compare its files with the hashes it records.

    Args:
        name: which release, see `zoo.open`.
        out: a folder to put it into, where it can be changed; by default it stays in huggingface_hub's
            cache. The folder appears whole or not at all. One that exists must be empty, or hold an older
            state of the same repository without changes of its own.
        revision: branch, tag or commit, by default the branch `main`.
        token: access token for the Hub; by default the one that huggingface_hub has stored.
        cache_dir: where downloads are kept, by default huggingface_hub's cache.

    Raises:
        ReleaseError: naming the repository or folder, what was found and what was expected.
    """
    reading = names.resolve(named(name), revision, cache_dir)
    release = Release.at(folder_of(reading, token=token, cache_dir=cache_dir, want="all"))
    release.verify()
    if out is None:
        return release
    out = Path(out).expanduser()
    try:
        files.complete(out, format.CONFIG)
        if out.exists() and _is_there(out, release, reading, token):
            return Release.at(out)
        stale = format.OPTIONAL if (out / format.CONFIG).exists() else ()
        with files.replacing(out, last=format.CONFIG, stale=stale) as staging:
            for file in manifest.local_files(release.path):
                shutil.copyfile(file, staging / file.name)
    except OSError as error:
        raise ReleaseError(f"{out}: the release cannot be written: {error}") from error
    return Release.at(out)


def _is_there(out: Path, release: Release, reading: names.Reading, token: str | bool | None) -> bool:
    """Whether `out` holds `release` already; False when it may be replaced by it.

    Raises:
        ReleaseError: when it holds anything else.
    """
    if not out.is_dir():
        raise ReleaseError(f"{out}: found a file, expected a folder")
    if catalog.is_shipped(out):
        raise ReleaseError(f"{out}: a shipped release does not change; choose another folder")
    if not _foreign(out):
        return False  # empty, or what an interrupted pull into an empty folder left there
    if not (out / format.CONFIG).is_file():
        raise ReleaseError(f"{out}: not an empty folder, and no release; choose another")
    config = format.read_json(out / format.CONFIG)
    found = config["zoo"].get("name") if isinstance(config.get("zoo"), dict) else None
    if found != release.name:
        raise ReleaseError(
            f'{out}: found the release "{found}", expected "{release.name}"; choose another folder'
        )
    if _same_files(out, release.path):
        return True
    if reading.kind == "hub" and _is_older(out, release, reading.target, token):
        return False
    raise ReleaseError(
        f'{out}: found "{found}" with changes that no earlier state of {reading.target} has; they would be'
        " lost, choose another folder"
    )


def _foreign(out: Path) -> bool:
    """Whether a folder holds anything but the beginnings of a pull that was killed."""
    rest = [file for file in out.iterdir() if not files.is_staging(file, out)]
    return bool(rest)


def _same_files(one: Path, other: Path) -> bool:
    def hashes(folder: Path) -> dict[str, str]:
        return {file.name: format.sha256(file) for file in manifest.local_files(folder)}

    return hashes(one) == hashes(other)


def _is_older(out: Path, release: Release, repo_id: str, token: str | bool | None) -> bool:
    """Whether a folder is what the repository held before this release, or what was pushed as that."""
    client, commit = hub.api(token), release.path.name  # of a snapshot in the cache
    with hub.talking(repo_id, commit):
        history = [entry.commit_id for entry in client.list_repo_commits(repo_id, revision=commit)]
    downloaded = {file.name: file for file in manifest.local_files(out)}
    pushed = manifest.contents(out, repo_id)
    for ancestor in history[1 : 1 + _MAX_VERSIONS]:
        there = hub.listing(client, repo_id, ancestor).files
        if not manifest.differing(downloaded, there) or not manifest.differing(pushed, there):
            return True
    return False
