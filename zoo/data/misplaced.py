"""Parquet files that are not where they were looked for: what lies there instead, and what reads it."""

from __future__ import annotations

from pathlib import Path

from zoo.data.cifar import COPIES
from zoo.data.config import DataConfig, Parquet, TorchvisionSource
from zoo.data.parquet import named_by
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
    found = _archive(source, root)
    if found is None:
        return None
    kind, archive = found
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


def from_archive(config: DataConfig, root: str | Path | None) -> DataConfig:
    """Return the same data out of torchvision's archive, if that is what lies in `root` for parquet files.

    The images are the same, their order is not: for those whose content is listed.
    """
    wanted = config.source
    if root is None or not isinstance(wanted, Parquet) or _has(Path(root), wanted):
        return config
    found = _archive(wanted, Path(root))
    if found is None:
        return config
    source = TorchvisionSource.model_validate({"kind": found[0]})
    return config.model_copy(update={"source": source})


def _archive(source: Parquet, root: Path) -> tuple[str, Path] | None:
    """Return which data set's archive lies in `root`, and where, if it is the one with these labels."""
    for kind, copy in COPIES.items():
        folder = root if root.name == copy.archive else root / copy.archive
        if copy.label == source.label and is_dir(folder):
            return kind, folder
    return None


def _has(folder: Path, source: Parquet) -> bool:
    return is_dir(folder) and bool(named_by(source.train, names_in(folder)))
