"""Data sets on the Hub: their parquet files are fetched into its cache, and read there.

`datasets.load_dataset("org/name")` asks the Hub each time, and without an answer reads nothing of a pinned
commit whose files are there; `huggingface_hub.snapshot_download` does.
"""

from __future__ import annotations

import glob
import logging
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from zoo.data.config import HubDataset, Parquet
from zoo.data.dataset import Split
from zoo.data.parquet import open_parquet, parquet_schema, require_datasets, split_matches
from zoo.data.stores import Opened
from zoo.errors import DataError, did_you_mean
from zoo.files import is_file

LOG = logging.getLogger("zoo.data")
IMAGE_COLUMNS = ("image", "img")


class _NoAnswer(DataError):
    """The Hub does not answer at this time; what the cache has can still be used."""


class _Chosen(NamedTuple):
    """What of a repository is read: the folder of a configuration, "." for the top, and a split's files."""

    folder: str
    files: Sequence[str]


def open_hub(source: HubDataset, split: Split, root: Path | None) -> Opened:
    """Return a split of a data set on the Hub, fetched into huggingface_hub's cache where it is not there.

    A test split brings the training split's files, which say what the classes are. Where the Hub does not
    answer, what the cache has of the commit, or of the branch's last known one, is taken.

    Raises:
        DataError: for a repository or revision that is not there or not open to the token, one without such
            files, and one whose files are of several configurations; offline, for what is not in the cache.
    """
    del root  # nothing of it lies in a data folder
    require_datasets()
    snapshot, chosen = _fetched(source, split)
    image = source.image
    if image is None:
        columns = parquet_schema(snapshot / chosen.files[0]).names
        image = next((name for name in IMAGE_COLUMNS if name in columns), IMAGE_COLUMNS[0])
    section = Parquet(train=source.train, test=source.test, image=image, label=source.label)
    store, labels, class_names = open_parquet(section, split, snapshot / chosen.folder)
    store.linked = False  # files of this machine are nobody else's to name
    origin = {"hub_id": source.repo, "hub_commit": snapshot.name, "hub_folder": chosen.folder}
    return Opened(store, labels, class_names, origin=origin)


def _fetched(source: HubDataset, split: Split) -> tuple[Path, _Chosen]:
    """Return the folder in the cache that has all files of a split, and which these are."""
    from huggingface_hub import HfApi, constants, snapshot_download

    from zoo import hub_client

    where = f'Hub data set "{source.repo}"' + (f' at revision "{source.revision}"' if source.revision else "")
    try:
        with hub_client.talking(where, DataError, _NoAnswer):
            client, timeout = HfApi(library_name="zoo"), constants.HF_HUB_ETAG_TIMEOUT
            info = client.dataset_info(source.repo, revision=source.revision, timeout=timeout)
        chosen = _choose([file.rfilename for file in info.siblings or ()], source, split, where)
        with hub_client.talking(where, DataError, _NoAnswer):
            files = [glob.escape(name) for name in chosen.files]
            fetched = snapshot_download(
                source.repo,
                repo_type="dataset",
                revision=source.revision,
                allow_patterns=files,
                library_name="zoo",
            )
        snapshot = Path(fetched)
        missing = next((name for name in chosen.files if not is_file(snapshot / name)), None)
        if missing is not None:  # the client, without an answer, takes what the cache has
            raise _NoAnswer(f"{where}: {missing} did not arrive; run the same command again")
        return snapshot, chosen
    except _NoAnswer as error:
        lacking = f"{error}; its {split} files are not, or not all, in the local cache either"
        known = _in_cache(source)
        if known is None:
            raise DataError(lacking) from None
        snapshot = known
        names = [file.relative_to(snapshot).as_posix() for file in snapshot.rglob("*.parquet")]
        try:
            chosen = _choose(names, source, split, where)
        except DataError:
            raise DataError(lacking) from None
        LOG.warning("%s; taking what the local cache has", error)
        return snapshot, chosen


def _in_cache(source: HubDataset) -> Path | None:
    """Return what the cache has of a commit, or of a branch's last known one; None: nothing."""
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return None
    for repo in repos:
        if (repo.repo_type, repo.repo_id) == ("dataset", source.repo):
            for revision in repo.revisions:
                if source.revision == revision.commit_hash or (source.revision or "main") in revision.refs:
                    return revision.snapshot_path
    return None


def _choose(names: Sequence[str], source: HubDataset, split: Split, where: str) -> _Chosen:
    """Return which of a repository's files are the data set's, by configuration and split.

    Raises:
        DataError: where there are none, or those of several configurations.
    """
    paths = [PurePosixPath(name) for name in sorted(names) if name.endswith(".parquet")]
    if not paths:
        raise DataError(
            f"{where}: found no parquet files among its {len(names)} files, expected data/train-*.parquet, "
            "CONFIG/train-*.parquet or train-*.parquet. Of many data sets in other formats the Hub keeps a "
            'copy in such: revision "refs/convert/parquet"'
        )
    found: dict[str, dict[str, list[str]]] = {}  # configuration, split, files
    for wanted in (source.train, source.test):
        matches = split_matches(wanted)
        for path in paths:
            folder = path.parent.parent if path.parent.name == wanted else path.parent
            if matches(path.name) or path.parent.name == wanted:
                found.setdefault(folder.as_posix(), {}).setdefault(wanted, []).append(path.as_posix())
    shown = ", ".join(sorted(found) or sorted(map(str, paths))[:6])
    if source.config is not None and source.config not in found:
        raise DataError(
            f'{where}: no configuration "{source.config}" with files of "{source.train}" or '
            f'"{source.test}".{did_you_mean(source.config, found)} Found: {shown}'
        )
    if source.config is None and len(found) > 1:
        raise DataError(
            f"{where}: found the configurations {shown}, expected one of them in data.source.config, in a "
            f'spec "hub:{source.repo}?config={min(found)}"'
        )
    folder_name = source.config or next(iter(found), ".")
    files = found.get(folder_name, {})
    asked = source.train if split == "train" else source.test
    if asked not in files:
        raise DataError(
            f'{where}: no {split} files "{asked}", found {", ".join(sorted(map(str, paths))[:6])}; other '
            f'names are given with data.source.{split}, in a spec "hub:{source.repo}?{split}=NAME"'
        )
    needed = [*files.get(source.train, []), *(files[asked] if split == "test" else [])]
    return _Chosen(folder_name, needed)
