"""`zoo.pull`: a release into the local cache, or into a folder of one's own."""

from __future__ import annotations

import shutil
from pathlib import Path

from zoo import catalog
from zoo.errors import ReleaseError
from zoo.files import is_file, is_unused, replacing
from zoo.hub.client import COMMIT, hub_errors
from zoo.hub.fetch import LOG, client, folder_of, release_files
from zoo.hub.merge import base_of, merge, note_base
from zoo.hub.names import ModelRef, resolve
from zoo.hub.push import VERSION
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
        revision: as in `zoo.open`.
        token: as in `zoo.open`.
        cache_dir: as in `zoo.open`.

    Raises:
        ReleaseError: naming the repository or folder, what was found and what was expected.
    """
    ref = resolve(name, revision, cache_dir)
    folder = folder_of(ref, token=token, cache_dir=cache_dir)
    if ref.kind == "hub":
        _repair(ModelRef("hub", ref.target, folder.name), folder, token, cache_dir)
    release = Release.at(folder)
    release.verify()
    if out is None:
        return release
    out, at = Path(out).expanduser(), ref.revision or "main"
    branch = "main" if VERSION.fullmatch(at) or COMMIT.fullmatch(at) else at  # versions are made of main
    if is_unused(out):
        with replacing(out) as staging:
            for file in release_files(folder).values():
                shutil.copyfile(file, staging / file.name)
    elif catalog.is_shipped(out) or not is_file(out / format.CONFIG):
        raise ReleaseError(f"{out}: found no empty folder, and no release of yours; choose another folder")
    elif (here := Release.at(out)).name != release.name or ref.kind != "hub":
        raise ReleaseError(f'{out}: holds the release "{here.name}"; choose another folder')
    else:
        base = base_of(out, ref.target, branch)
        merge(out, ref.target, base, folder.name, token=token, cache_dir=cache_dir)
    if ref.kind == "hub":
        note_base(out, ref.target, branch, folder.name)
    return Release.at(out)


def _repair(ref: ModelRef, folder: Path, token: str | bool | None, cache_dir: str | Path | None) -> None:
    """Fetch again what is damaged in the cache."""
    try:
        with hub_errors(ref, ReleaseError):
            checked = client(token).verify_repo_checksums(
                ref.target, revision=ref.revision, cache_dir=cache_dir
            )
    except ReleaseError as error:
        LOG.warning("%s. Taking what the local cache has", error)
        return
    for damaged in checked.mismatches:
        (folder / damaged["path"]).resolve().unlink(missing_ok=True)
        (folder / damaged["path"]).unlink(missing_ok=True)
    if checked.mismatches:
        folder_of(ref, token=token, cache_dir=cache_dir)
