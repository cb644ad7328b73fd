"""Data that come with scikit-learn: a folder that is given for them would be read by nobody."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from zoo.data.cifar import COPIES
from zoo.data.config import CandidatesFile, DataConfig, Digits, Folder, Parquet
from zoo.data.parquet import named_by
from zoo.errors import DataError
from zoo.files import is_dir, names_in


def reads_folder(config: DataConfig) -> bool:
    """Whether anything of the data can lie in a folder: images, or candidates for their labels."""
    labels = config.partial_labels
    in_folder = isinstance(labels, CandidatesFile) and not Path(labels.path).is_absolute()
    return in_folder or not isinstance(config.source, Digits)


def folder_for(config: DataConfig, root: str | Path | None) -> str | Path | None:
    """Return the folder that several data share, or None for data of which nothing can lie in it."""
    return root if reads_folder(config) else None


def require_use(configs: Iterable[DataConfig], root: str | Path | None) -> None:
    """Make sure that some of the data can lie in the folder that was given for them.

    Args:
        configs: of the data, which share the folder.
        root: the command line's `--data`.

    Raises:
        DataError: saying what would be read instead, and how what lies in the folder is given.
    """
    if root is None or any(reads_folder(config) for config in configs):
        return
    instead = "the source of these data is digits, which come with scikit-learn: leave --data out"
    if not is_dir(root):
        raise DataError(f'data: no folder "{root}", and none is read: {instead}')
    told = f'data: found the folder "{root}", of which nothing would be read: {instead}'
    if spec := _spec_of(Path(root)):
        kind, _, query = spec.partition(":")
        query = query.partition("?")[2].replace("=", ": ")
        told += (
            f". For the images there a command that takes other data than a release's own has --data '{spec}'"
            f", a recipe --set 'data.source={{kind: {kind}{f', {query}' if query else ''}}}'"
        )
    raise DataError(told)


def without_partial_labels(
    config: DataConfig, root: str | Path | None
) -> tuple[DataConfig, str | Path | None]:
    """Return the same data with their true labels, and their folder if more than candidates lies in it."""
    plain = config.model_copy(update={"partial_labels": None})
    only_candidates = reads_folder(config) and not reads_folder(plain)
    return plain, None if only_candidates else root


def _spec_of(root: Path) -> str | None:
    """Return the data spec of what lies in a folder, or None where it is nothing that a source reads."""
    tree, files = Folder(), Parquet()
    if is_dir(root / tree.train):
        other = not is_dir(root / tree.test) and is_dir(root / "test")
        return f"folder:{root}?test=test" if other else f"folder:{root}"
    for kind, copy in COPIES.items():
        if root.name == copy.archive or is_dir(root / copy.archive):
            return f"{kind}:{root}"
    for folder in (root, *(root / name for name in names_in(root) if is_dir(root / name))):
        if named_by(files.train, names_in(folder)):
            return f"parquet:{folder}"
    return None
