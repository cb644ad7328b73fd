"""Images that are not where they were looked for: what lies there instead, and what reads it."""

from __future__ import annotations

import shlex
from pathlib import Path

from zoo.data.cifar import COPIES
from zoo.data.config import DataConfig, Folder, Parquet, Source, TorchvisionSource
from zoo.data.recognition import archive_in, as_setting, as_spec, below, first_image, has_parquet
from zoo.files import is_dir


def remedy(config: DataConfig, root: str | Path | None) -> str | None:
    """Return how what is in `root` can be read, or None where there is nothing that could be meant.

    Args:
        config: what was to be read, and was not.
        root: the command line's `--data`.
    """
    source = config.source
    if root is None or _lies_in(Path(root), source):
        return None
    root = Path(root)
    if isinstance(source, Folder):
        if is_dir(root / source.train) or first_image(root) is None:
            return None
        return "There are images in that folder itself, without classes: --set data.source.train=."
    folder = below(root, source)
    if folder is not None:
        spec = as_spec(config, folder)
        told = "" if spec is None else f", in place of a spec {spec}"
        return f"They are in {folder}: --data {shlex.quote(str(folder))}{told}"
    found = _archive(config, root)
    if found is None:
        return None
    archive, other = found
    told = f"a recipe reads it with {as_setting(other.source)}"
    spec = as_spec(other, root)
    if spec is not None:
        told += f", a command that takes other data than a release's own with {spec}"
    if config.long_tail is not None:
        told += "; its long tail has as many images of each class, but other ones"
    return f"There is torchvision's archive, {archive}: {told}"


def from_archive(config: DataConfig, root: str | Path | None) -> DataConfig:
    """Return the same data out of torchvision's archive, if that is what lies in `root` for parquet files.

    The images are the same, their order is not: for those whose content is listed.
    """
    wanted = config.source
    if root is None or not isinstance(wanted, Parquet) or has_parquet(Path(root), wanted):
        return config
    found = _archive(config, Path(root))
    return config if found is None else found[1]


def _lies_in(root: Path, source: Source) -> bool:
    """Whether the files are there, so that something else is the matter."""
    if isinstance(source, Parquet):
        return has_parquet(root, source)
    return source.kind in COPIES and archive_in(root, COPIES[source.kind].archive) is not None


def _archive(config: DataConfig, root: Path) -> tuple[Path, DataConfig] | None:
    """Return the archive in `root` that has the labels of the parquet files, and the same data out of it."""
    if not isinstance(config.source, Parquet):
        return None
    for kind, copy in COPIES.items():
        folder = archive_in(root, copy.archive)
        if folder is not None and copy.label == config.source.label:
            source = TorchvisionSource.model_validate({"kind": kind})
            return folder, config.model_copy(update={"source": source})
    return None
