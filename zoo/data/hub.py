"""Data sets on the Hub: their parquet files are fetched into its cache, and read there."""

from __future__ import annotations

import glob
import logging
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from zoo.data.config import HubDataset, Parquet
from zoo.data.dataset import Split
from zoo.data.parquet import is_split_name, named_by, open_parquet, parquet_schema, require_pyarrow
from zoo.data.paths import fetching
from zoo.data.stores import Opened
from zoo.errors import DataError, did_you_mean
from zoo.files import is_dir, is_file, write_text
from zoo.revisions import COMMIT

LOG = logging.getLogger("zoo.data")
IMAGE_COLUMNS = ("image", "img")
_OF_HOW_MANY = re.compile(r"(.*?)(\d+)[-_]of[-_](\d+)(?:-[0-9a-f]+)?\.parquet")


class _NoAnswer(DataError):
    """The Hub does not answer at this time; what the cache has can still be used."""


class _Chosen(NamedTuple):
    """What of a repository is read.

    Attributes:
        folder: of the files, in the repository; "." for its top.
        train, test: names or patterns for the parquet reader, from the top of the repository.
        files: all that opening a split needs.
    """

    folder: str
    train: str
    test: str
    files: Sequence[str]


def open_hub(source: HubDataset, split: Split, root: Path | None) -> Opened:
    """Return a split of a data set on the Hub, fetched into huggingface_hub's cache where it is not there.

    A test split brings the training split's files, which say what the classes are. A commit whose files are
    in the cache costs no request; a branch or tag costs one, and where the Hub does not answer its last
    known state is taken.

    Raises:
        DataError: for a repository or revision that is not there or not open to the token, one without such
            files, and one whose files are of several configurations; offline, for what is not in the cache.
    """
    del root  # nothing of it lies in a data folder
    require_pyarrow()
    folder, chosen = _fetched(source, split)
    image = source.image
    if image is None:
        columns = parquet_schema(folder / chosen.files[0]).names
        image = next((name for name in IMAGE_COLUMNS if name in columns), IMAGE_COLUMNS[0])
    section = Parquet(train=chosen.train, test=chosen.test, image=image, label=source.label)
    store, labels, class_names = open_parquet(section, split, folder)
    store.linked = False  # files of this machine are nobody else's to name
    origin = {"hub_id": source.repo, "hub_commit": folder.name, "hub_folder": chosen.folder}
    return Opened(store, labels, class_names, origin=origin)


def _fetched(source: HubDataset, split: Split) -> tuple[Path, _Chosen]:
    """Return a commit's folder in the cache that has all files of a split, and which these are."""
    from huggingface_hub import constants

    repo = _cache() / f"datasets--{source.repo.replace('/', '--')}"
    cached = _cached(repo, source, split)
    if cached is not None and (COMMIT.fullmatch(source.revision or "") or constants.HF_HUB_OFFLINE):
        return cached
    if constants.HF_HUB_OFFLINE:
        raise DataError(
            f"{_where(source)}: its {split} files are not, or not all, in the local cache {repo}, and "
            "HF_HUB_OFFLINE is set"
        )
    try:
        return _fetch(repo, source, split)
    except _NoAnswer as error:
        if cached is None:
            raise DataError(f"{error}; it is not in the local cache either") from None
        LOG.warning("%s; taking what the local cache has", error)
        return cached


def _fetch(repo: Path, source: HubDataset, split: Split) -> tuple[Path, _Chosen]:
    """Ask what the repository holds, and fetch what of it is not in the cache."""
    from huggingface_hub import HfApi, constants, snapshot_download

    with _talking(source):
        client = HfApi(library_name="zoo")
        timeout = constants.HF_HUB_ETAG_TIMEOUT
        info = client.dataset_info(source.repo, revision=source.revision, timeout=timeout)
        commit, names = str(info.sha), [str(file.rfilename) for file in info.siblings or ()]
    chosen = _choose(names, source, split)
    folder = repo / "snapshots" / commit

    def absent() -> list[str]:
        return [name for name in chosen.files if not is_file(folder / name)]

    # one process after another: whoever waited finds what the one before has fetched
    with fetching(repo.parent / ".locks" / repo.name / "zoo", download=bool(absent())):
        if missing := absent():
            LOG.info("fetching %s files of %s from the Hub", len(missing), source.repo)
            with _talking(source):
                snapshot_download(
                    source.repo,
                    repo_type="dataset",
                    revision=commit,
                    allow_patterns=[glob.escape(name) for name in missing],
                    library_name="zoo",
                )
    if missing := absent():  # the client, without an answer, takes what the cache has
        raise _NoAnswer(f"{_where(source)}: {missing[0]} did not arrive; run the same command again")
    if source.revision != commit:
        with suppress(OSError):  # a cache that cannot be written to still can be read
            write_text(_ref(repo, source), commit)  # as the client does, for use without a network
    return folder, chosen


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def _ref(repo: Path, source: HubDataset) -> Path:
    return repo / "refs" / (source.revision or "main")


def _cached(repo: Path, source: HubDataset, split: Split) -> tuple[Path, _Chosen] | None:
    """Return what the cache has of the revision as it last knew it, if that is all of the split's files."""
    ref = _ref(repo, source)
    commit = ref.read_text(encoding="utf-8").strip() if is_file(ref) else source.revision
    folder = repo / "snapshots" / (commit or "none")
    if not is_dir(folder):
        return None
    files = (file for file in folder.rglob("*.parquet") if is_file(file))
    names = [file.relative_to(folder).as_posix() for file in files]
    try:
        chosen = _choose(names, source, split)
    except DataError:
        return None
    return (folder, chosen) if _whole(chosen.files) else None


def _whole(files: Sequence[str]) -> bool:
    """Whether no shard is missing, as far as their names say how many there are."""
    numbers: dict[tuple[str, int], set[int]] = {}
    for name in files:
        if part := _OF_HOW_MANY.fullmatch(name):
            numbers.setdefault((part[1], int(part[3])), set()).add(int(part[2]))
    return all(len(found) >= total for (_, total), found in numbers.items())


def _choose(names: Sequence[str], source: HubDataset, split: Split) -> _Chosen:
    """Return which of a repository's files are the data set's; names are sorted as the reader sorts them.

    Raises:
        DataError: where there are none, or those of several configurations.
    """
    where = _where(source)
    paths = [PurePosixPath(name) for name in sorted(names) if name.endswith(".parquet")]
    if not paths:
        raise DataError(
            f"{where}: found no parquet files among its {len(names)} files, expected data/train-*.parquet, "
            "CONFIG/train-*.parquet or train-*.parquet. Of many data sets in other formats the Hub keeps a "
            'copy in such: revision "refs/convert/parquet"'
        )
    inside: dict[str, list[str]] = {}
    for path in paths:
        inside.setdefault(path.parent.as_posix(), []).append(path.name)

    def found(folder: str, pattern: str) -> tuple[str, list[str]]:
        """The files of a split, beside those of others or in a folder of its own."""
        own = named_by(pattern, inside.get(folder, []))
        deeper = _joined(folder, pattern)
        if not own and is_split_name(pattern) and deeper in inside:
            return f"{deeper}/*.parquet", [f"{deeper}/{name}" for name in inside[deeper]]
        return deeper, [_joined(folder, name) for name in own]

    folders = sorted({each.as_posix() for path in paths for each in (path.parent, path.parent.parent)})
    patterns = (source.train, source.test)
    having = [folder for folder in folders if any(found(folder, pattern)[1] for pattern in patterns)]
    if source.config is not None and source.config not in having:
        raise DataError(
            f'{where}: no configuration "{source.config}" with files of "{source.train}" or '
            f'"{source.test}".{did_you_mean(source.config, having)} Found: {_listed(having or folders)}'
        )
    if source.config is None and len(having) > 1:
        raise DataError(
            f"{where}: found the configurations {_listed(having)}, expected one of them in "
            f'data.source.config, in a spec "hub:{source.repo}?config={having[0]}"'
        )
    folder = source.config or (having[0] if having else ".")
    train, test = (found(folder, pattern) for pattern in patterns)
    if not (train[1] if split == "train" else test[1]):
        pattern = source.train if split == "train" else source.test
        raise DataError(
            f'{where}: no {split} files "{pattern}", found {_listed(list(map(str, paths)))}; other names are '
            f'given with data.source.{split}, in a spec "hub:{source.repo}?{split}=NAME"'
        )
    files = train[1] if split == "train" else [*train[1], *test[1]]
    return _Chosen(folder, train[0], test[0], files)


def _joined(folder: str, name: str) -> str:
    return name if folder == "." else f"{folder}/{name}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")


def _where(source: HubDataset) -> str:
    revision = f' at revision "{source.revision}"' if source.revision else ""
    return f'Hub data set "{source.repo}"{revision}'


def _talking(source: HubDataset) -> AbstractContextManager[None]:
    from zoo import hub_client

    return hub_client.talking(_where(source), {hub_client.Trouble.UNREACHABLE: _NoAnswer}, DataError)
