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
    tail, drawn, spec = config.long_tail, "", f"{kind}:{root}"
    if tail is not None:
        drawn = "; its long tail has as many images of each class, but other ones"
        spec += f"?imbalance={tail.imbalance:g}"
        spec += "" if tail.profile == "exponential" else f"&profile={tail.profile}"
    return (
        f"There is torchvision's archive, {archive}: a recipe reads it with "
        f"--set 'data.source={{kind: {kind}}}', a command that takes other data than a release's own with "
        f"--data '{spec}'{drawn}"
    )


def _has(folder: Path, source: Parquet) -> bool:
    return is_dir(folder) and any(fnmatchcase(name, source.train) for name in names_in(folder))
