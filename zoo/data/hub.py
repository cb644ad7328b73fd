"""Data sets on the Hub: their parquet files are fetched into its cache, and read there.

`datasets.load_dataset("org/name")` asks the Hub each time, and without an answer reads nothing of a pinned
commit whose files are there; `huggingface_hub.snapshot_download` does.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from zoo.data.config import HubDataset, Parquet
from zoo.data.dataset import Split
from zoo.data.stores import Opened
from zoo.data.table import features_of, open_parquet, split_files, split_matches
from zoo.errors import DataError, did_you_mean

IMAGE_COLUMNS = ("image", "img")


def open_hub(source: HubDataset, split: Split, root: Path | None) -> Opened:
    """Return a split of a data set on the Hub, fetched into huggingface_hub's cache where it is not there.

    A test split brings the training split's files, which say what the classes are. Where the Hub does not
    answer, what the cache has of the commit, or of the branch's last known one, is taken.

    Raises:
        DataError: for a repository or revision that is not there or not open to the token, one without such
            files, and one whose files are of several configurations.
    """
    from huggingface_hub import snapshot_download

    from zoo import hub_client

    del root  # nothing of it lies in a data folder
    where = f'Hub data set "{source.repo}"' + (f' at revision "{source.revision}"' if source.revision else "")
    wanted = source.train if split == "train" else source.test
    with hub_client.talking(where, DataError):
        fetched = snapshot_download(
            source.repo,
            repo_type="dataset",
            revision=source.revision,
            allow_patterns=[
                pattern for name in {source.train, wanted} for pattern in _patterns(source, name)
            ],
            library_name="zoo",
        )
    snapshot = Path(fetched)
    found = {
        (file.parent.parent if file.parent.name == wanted else file.parent).relative_to(snapshot).as_posix()
        for file in snapshot.rglob("*.parquet")
        if split_matches(wanted)(file.name) or file.parent.name == wanted
    }
    if source.config is None and len(found) > 1:
        raise DataError(
            f"{where}: found the configurations {', '.join(sorted(found))}, expected one of them in "
            f'data.source.config, in a spec "hub:{source.repo}?config={min(found)}"'
        )
    inside = source.config or next(iter(found), ".")
    if inside not in found:
        raise _nothing(source, split, wanted, where)
    image = source.image
    if image is None:
        columns = [*features_of(split_files(snapshot / inside, wanted)[0])]
        image = next((name for name in IMAGE_COLUMNS if name in columns), IMAGE_COLUMNS[0])
    section = Parquet(train=source.train, test=source.test, image=image, label=source.label)
    # files of this machine are nobody else's to name
    opened = open_parquet(section, split, snapshot / inside, linked=False)
    origin = {"hub_id": source.repo, "hub_commit": snapshot.name, "hub_folder": inside}
    return opened._replace(origin=origin)


def _patterns(source: HubDataset, name: str) -> list[str]:
    """Return the names of a split's files in a repository; "*" is any text, with "/" in it too."""
    is_pattern = name.endswith(".parquet") or "*" in name
    files = [name] if is_pattern else [f"{name}.parquet", f"{name}-*.parquet", f"{name}/*.parquet"]
    if source.config is None:
        return [*files, *(f"*/{file}" for file in files)]
    return [file if source.config == "." else f"{source.config}/{file}" for file in files]


def _nothing(source: HubDataset, split: Split, wanted: str, where: str) -> DataError:
    """Say which files a repository has, where none of them are a split's."""
    from huggingface_hub import HfApi

    names: list[str] = []
    with suppress(Exception):  # without an answer the cache has been taken, which lacks them
        names = HfApi(library_name="zoo").list_repo_files(
            source.repo, repo_type="dataset", revision=source.revision
        )
    there = [name for name in names if name.endswith(".parquet")]
    if names and not there:
        return DataError(
            f"{where}: found no parquet files, expected {wanted}-*.parquet; of many data sets in other "
            'formats the Hub keeps a copy in such: revision "refs/convert/parquet"'
        )
    folders = {str(Path(name).parent) for name in there}
    hint = did_you_mean(source.config, folders) if source.config else ""
    config = f' of the configuration "{source.config}"' if source.config else ""
    return DataError(
        f'{where}: no {split} files "{wanted}"{config}, found {", ".join(there[:6]) or "none in the cache"}; '
        f"others are named by data.source.{split} and data.source.config.{hint}"
    )
