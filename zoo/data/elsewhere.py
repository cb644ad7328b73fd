"""Parquet files that are not where they were looked for: what lies there instead, and what reads it."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

from zoo.data.cifar import COPIES
from zoo.data.config import DataConfig, Parquet
from zoo.files import is_dir, names_in


def remedy(config: DataConfig, root: str | Path | None) -> str | None:
    """Return how what is in `root` can be read, or None where there is nothing that could be meant.

    Args:
        config: what was to be read, and was not.
        root: the command line's `--data`.
    """
    source = config.source
    if root is None or not isinstance(source, Parquet) or _has(Path(root), source):
        return None
    root = Path(root)
    below = next((root / name for name in names_in(root) if _has(root / name, source)), None)
    if below is not None:
        return f"They are in {below}: --data '{below}'"
    archives = {
        kind: root if root.name == copy.archive else root / copy.archive
        for kind, copy in COPIES.items()
        if copy.label == source.label
    }
    kind, archive = next(((k, each) for k, each in archives.items() if is_dir(each)), (None, root))
    if kind is None:
        return None
    tail = config.long_tail
    told = f"a recipe reads it with --set 'data.source={{kind: {kind}}}'"
    if config.subset is None:  # with both, a spec has one seed
        selected = {} if tail is None else tail.model_dump(mode="json")
        words = "&".join(f"{key}={value}" for key, value in selected.items() if value is not None)
        spec = f"{kind}:{root}?{words}" if words else f"{kind}:{root}"
        told += f", a command that takes other data than a release's own with --data '{spec}'"
    if tail is not None:
        told += "; its long tail has as many images of each class, but other ones"
    return f"There is torchvision's archive, {archive}: {told}"


def _has(folder: Path, source: Parquet) -> bool:
    return is_dir(folder) and any(fnmatchcase(name, source.train) for name in names_in(folder))
