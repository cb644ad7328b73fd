"""`zoo.pull`: a release into the local cache, or into a folder of one's own."""

from __future__ import annotations

import shutil
from pathlib import Path

from zoo import catalog
from zoo.errors import ReleaseError
from zoo.files import is_file, is_unused, replacing
from zoo.hub.fetch import LOG, client, fetch, folder_of, named, release_files
from zoo.hub.merge import base_of, branch_of, differing, merge, note_base, snapshot
from zoo.hub.names import named_repository, resolve
from zoo.hub_client import talking
from zoo.release import Release, format


def pull(
    name: str | Path | Release,
    *,
    out: str | Path | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
) -> Release:
    """Fetch a release whole, and compare every file with the hash that the Hub, and the release, state.

    Args:
        name: which release, see `zoo.open`.
        out: a folder to put it into, where it can be changed; by default it stays in huggingface_hub's
            cache. A new folder appears whole or not at all. One that holds a version of the same repository
            is brought up to date: changes of its own stay, and are refused where they contradict.
        revision: branch, tag or commit, by default the branch `main`.
        token: access token for the Hub; by default the one that huggingface_hub has stored.
        cache_dir: where downloads are kept, by default huggingface_hub's cache.

    Raises:
        ReleaseError: naming the repository or folder, what was found and what was expected.
    """
    ref = resolve(named(name), revision, cache_dir)
    folder = folder_of(ref, token=token, cache_dir=cache_dir)
    if ref.kind == "hub":
        _mend(ref.target, folder, token, cache_dir)
    release = Release.at(folder)
    release.verify()
    if out is None:
        return release
    out = Path(out).expanduser()
    branch = branch_of(ref.revision)
    if is_unused(out):
        with replacing(out) as staging:
            for file in release_files(folder).values():
                shutil.copyfile(file, staging / file.name)
    elif catalog.is_shipped(out) or not is_file(out / format.CONFIG):
        raise ReleaseError(f"{out}: found no empty folder, and no release of yours; choose another folder")
    elif (here := Release.at(out)).name != release.name or ref.kind != "hub":
        raise ReleaseError(f'{out}: holds the release "{here.name}"; choose another folder')
    else:
        there, known = snapshot(ref.target, folder.name, token), base_of(out, ref.target, branch)
        if there is not None and differing(release_files(out), there):
            old = snapshot(ref.target, known, token) if known else None
            merge(out, release_files(out), old, there, token=token, cache_dir=cache_dir)
    if ref.kind == "hub":
        note_base(out, ref.target, branch, folder.name)
    return Release.at(out)


def _mend(repo_id: str, folder: Path, token: str | bool | None, cache_dir: str | Path | None) -> None:
    """Fetch again what is damaged in the cache."""
    where = named_repository(repo_id)
    for _ in range(2):
        try:
            with talking(where, ReleaseError):
                found = client(token).verify_repo_checksums(
                    repo_id, revision=folder.name, cache_dir=cache_dir
                )
        except ReleaseError as error:
            LOG.warning("%s. Taking what the local cache has", error)
            return
        damaged = [each["path"] for each in found.mismatches]
        for name in damaged:
            (folder / name).resolve().unlink(missing_ok=True)
            (folder / name).unlink(missing_ok=True)
        if not damaged:
            return
        fetch(repo_id, folder.name, token=token, cache_dir=cache_dir)
    raise ReleaseError(f"{where}: {', '.join(damaged)} came damaged; run the same command again")
