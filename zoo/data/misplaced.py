"""Parquet files that are not where they were looked for: what lies there instead, and what reads it."""

from __future__ import annotations

from pathlib import Path

from zoo.data.cifar import COPIES
from zoo.data.config import DataConfig, Parquet, TorchvisionSource
from zoo.data.parquet import named_by
from zoo.data.spec import data_spec
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
        spec = data_spec(config, below)
        told = "" if spec is None else f", in place of a spec --data {_quoted(spec)}"
        return f"They are in {below}: --data {_quoted(str(below))}{told}"
    found = _archive(source, root)
    if found is None:
        return None
    kind, archive = found
    tail = config.long_tail
    told = f"a recipe reads it with --set 'data.source={{kind: {kind}}}'"
    spec = data_spec(_with_source(config, kind), root)
    if spec is not None:
        told += f", a command that takes other data than a release's own with --data {_quoted(spec)}"
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
    return _with_source(config, found[0])


def _with_source(config: DataConfig, kind: str) -> DataConfig:
    return config.model_copy(update={"source": TorchvisionSource.model_validate({"kind": kind})})


def _quoted(text: str) -> str:
    """Return `text` as a shell takes it: a spec has signs that it would read otherwise."""
    return "'" + text.replace("'", "'\\''") + "'"


def _archive(source: Parquet, root: Path) -> tuple[str, Path] | None:
    """Return which data set's archive lies in `root`, and where, if it is the one with these labels."""
    for kind, copy in COPIES.items():
        folder = root if root.name == copy.archive else root / copy.archive
        if copy.label == source.label and is_dir(folder):
            return kind, folder
    return None


def _has(folder: Path, source: Parquet) -> bool:
    train = folder / source.train  # it may name a folder too
    return is_dir(folder) and bool(named_by(train.name, names_in(train.parent)))
