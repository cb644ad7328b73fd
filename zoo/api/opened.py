"""Data as a command opens them: where they are not, what lies there instead is said, and what reads it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from zoo.data import ImageDataset, open_dataset
from zoo.data.cifar import COPIES
from zoo.data.config import DataConfig, Parquet
from zoo.data.dataset import Split
from zoo.errors import DataError
from zoo.files import is_dir, names_in


def open_data(
    config: DataConfig, split: Split, root: str | Path | None, *, as_spec: bool = False
) -> ImageDataset:
    """Open one split as `zoo.data.open_dataset` does.

    Args:
        config: what to read.
        split: `train` or `test`.
        root: the command line's `--data`.
        as_spec: whether the command takes a spec of other data there, and has no `--set` for a recipe's.

    Raises:
        DataError: as that does; for a recipe of parquet files also with what reads the archive that lies in
            their place, or with the folder below that has them.
    """
    try:
        return open_dataset(config, split, root)
    except DataError as error:
        if root is None or not isinstance(config.source, Parquet):
            raise
        remedy = _remedy(config, config.source, Path(root), as_spec=as_spec)
        if remedy is None:
            raise
        raise DataError(f"{error}. {remedy}") from None


def _remedy(config: DataConfig, source: Parquet, root: Path, *, as_spec: bool) -> str | None:
    if _has(root, source):  # something else is wrong
        return None
    below = next((root / name for name in names_in(root) if _has(root / name, source)), None)
    if below is not None:
        return f"They are in {below}: --data '{below}'"
    for kind, copy in COPIES.items():
        there = root if root.name == copy.archive else root / copy.archive
        if copy.label != source.label or not is_dir(there):
            continue
        tail = config.long_tail
        spec = f"{kind}:{root}" + ("" if tail is None else f"?imbalance={tail.imbalance:g}")
        spec += "" if tail is None or tail.profile == "exponential" else f"&profile={tail.profile}"
        how = f"--data '{spec}'" if as_spec else f"--set 'data.source={{kind: {kind}}}'"
        drawn = "" if tail is None else "; its long tail has as many images of each class, but other ones"
        return f"There is torchvision's archive, {there}: {how} reads it{drawn}"
    return None


def _has(folder: Path, source: Parquet) -> bool:
    return is_dir(folder) and any(fnmatchcase(name, source.train) for name in names_in(folder))
