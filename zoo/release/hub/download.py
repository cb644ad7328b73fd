"""From a repository on the Hub to files on this disk, whole and checked, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from huggingface_hub import constants, snapshot_download
from huggingface_hub.file_download import repo_folder_name

from zoo.errors import ReleaseError
from zoo.files import write_text
from zoo.release import build, configs, format, hub
from zoo.release.hub import manifest
from zoo.release.schema import LIBRARY
from zoo.revisions import COMMIT

Want = Literal["facts", "model", "all"]


def fetch(
    repo_id: str,
    revision: str | None,
    *,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    want: Want = "model",
) -> Path:
    """Return the folder in huggingface_hub's cache that holds a release, after fetching what is not there.

    A commit that is in the cache costs no request, a branch or tag one. Without an answer of the Hub, and
    with `HF_HUB_OFFLINE=1`, the cache's last state of a branch or tag is taken.

    Args:
        repo_id: the repository.
        revision: branch, tag or commit; by default the branch `main`.
        token: access token, by default the one that huggingface_hub has stored.
        cache_dir: another cache.
        want: "model" for what loading reads; "facts" for that without the weights; "all" also asks for the
            list of files when a release is there that can be loaded: pictures may be missing where another
            program made the cache, and files be damaged.

    Raises:
        ReleaseError: naming the repository, what was found and what to do. The cache is as it was, or
            holds whole files more.
    """
    repo = Path(cache_dir or constants.HF_HUB_CACHE).expanduser() / repo_folder_name(
        repo_id=repo_id, repo_type="model"
    )
    commit = revision if revision and COMMIT.fullmatch(revision) else None
    if commit and want != "all" and _loadable(repo / "snapshots" / commit, want):
        return repo / "snapshots" / commit
    if constants.HF_HUB_OFFLINE:
        return _offline(repo, repo_id, revision, want)
    try:
        listing = hub.listing(hub.api(token), repo_id, revision)
    except hub.UnreachableError as error:
        if _loadable(_remembered(repo, revision), want):
            hub.LOG.warning("%s; taking what the local cache has", error)
            return _remembered(repo, revision)
        raise hub.RepositoryAbsentError(f"{error}; it is not in the local cache either") from error
    folder = repo / "snapshots" / listing.commit
    if want == "all" or not _loadable(folder, want):
        names = manifest.wanted(listing.files, repo_id)
        if want == "facts":
            names.remove(format.WEIGHTS)
        if want == "all":
            _discard(folder, [name for name in names if not _intact(folder / name, listing.files[name])])
        # the weights come after what tells whether these are weights for this program
        for group in (set(names) & set(manifest.LIMITS), names):
            absent = [name for name in group if not (folder / name).is_file()]
            if absent:
                _check_stated(folder, repo_id, listing, absent)
                _download(folder, repo_id, listing, absent, token, cache_dir)
            configs.read_config(folder)
    if commit is None and want != "facts":  # without a network, a name shall lead to what can be loaded
        _remember(repo, revision, listing.commit)
    return folder


def _check_stated(folder: Path, repo_id: str, listing: hub.Listing, names: Sequence[str]) -> None:
    """Refuse weights that are stated to be far larger than their architecture, before they fill the disk."""
    if format.WEIGHTS not in names:
        return
    most = build.most_bytes(folder / format.CONFIG, configs.read_config(folder))
    stated = listing.files[format.WEIGHTS].size or 0
    if stated > most:
        raise ReleaseError(
            f'Hub repository "{repo_id}": {format.WEIGHTS} has {stated:,} bytes, expected at most {most:,} '
            "for its architecture; nothing of it was fetched"
        )


def _loadable(folder: Path, want: Want) -> bool:
    """Whether a snapshot has all that loading, or telling about it, reads; pictures it may lack."""
    if _absent(folder, want):
        return False
    try:
        needed = format.recorded_tensors(format.read_json(folder / format.CONFIG)["zoo"])
    except (ReleaseError, KeyError, TypeError, AttributeError):
        return True  # to be told what is wrong by whoever reads it
    return all((folder / name).is_file() for name in needed)


def _absent(folder: Path, want: Want) -> list[str]:
    try:
        ours = "zoo" in format.read_json(folder / format.CONFIG)
    except ReleaseError:
        ours = True
    needed = manifest.NEEDED if ours else manifest.PLAIN
    return [
        name
        for name in needed
        if not (folder / name).is_file() and not (name == format.WEIGHTS and want == "facts")
    ]


def _remembered(repo: Path, revision: str | None) -> Path:
    """Return the snapshot that the cache last knew by this name; it may not exist."""
    ref = repo / "refs" / (revision or constants.DEFAULT_REVISION)
    commit = ref.read_text(encoding="utf-8").strip() if ref.is_file() else revision or "none"
    return repo / "snapshots" / commit


def _remember(repo: Path, revision: str | None, commit: str) -> None:
    """Note which commit a branch or tag was, as huggingface_hub does, for use without a network."""
    ref = repo / "refs" / (revision or constants.DEFAULT_REVISION)
    if ref.is_file() and ref.read_text(encoding="utf-8") == commit:
        return
    with suppress(OSError):  # a cache that cannot be written to still can be read
        write_text(ref, commit)


def _offline(repo: Path, repo_id: str, revision: str | None, want: Want) -> Path:
    folder = _remembered(repo, revision)
    if _loadable(folder, want):
        return folder
    found = "it is not in the local cache"
    if folder.is_dir():
        found = f"only a part is in the local cache, without {', '.join(_absent(folder, want))}"
    where = f'Hub repository "{repo_id}"' + (f' at revision "{revision}"' if revision else "")
    raise hub.RepositoryAbsentError(f"{where}: {found}, and HF_HUB_OFFLINE is set")


def _download(
    folder: Path,
    repo_id: str,
    listing: hub.Listing,
    names: Sequence[str],
    token: str | bool | None,
    cache_dir: str | Path | None,
) -> None:
    """Fetch files into the cache, and compare them with the hashes that the Hub states."""
    sizes = (listing.files[name].size for name in names)
    hub.LOG.info("fetching %s from %s", manifest.amount(sizes), repo_id)
    with hub.talking(repo_id):
        snapshot_download(
            repo_id,
            revision=listing.commit,
            cache_dir=cache_dir,
            token=token,
            allow_patterns=list(names),
            library_name=LIBRARY,
        )
    absent = [name for name in names if not (folder / name).is_file()]
    if absent:  # the client, without an answer, takes what the cache has
        raise ReleaseError(
            f'Hub repository "{repo_id}": {", ".join(absent)} did not arrive; run the same command again'
        )
    damaged = [name for name in names if not _intact(folder / name, listing.files[name])]
    if damaged:
        _discard(folder, damaged)
        raise ReleaseError(
            f'Hub repository "{repo_id}": {", ".join(damaged)} came damaged, not with the content that the'
            " Hub states, and was thrown away; run the same command again"
        )


def _intact(file: Path, stated: hub.RemoteFile) -> bool:
    return not file.is_file() or manifest.same(file, stated)


def _discard(folder: Path, names: Sequence[str]) -> None:
    """Remove damaged files from the cache, where the next attempt would find them again."""
    for name in names:
        (folder / name).resolve().unlink(missing_ok=True)
        (folder / name).unlink(missing_ok=True)
