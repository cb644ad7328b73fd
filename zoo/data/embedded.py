"""Data that come with scikit-learn: a folder that is given for them would be read by nobody."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from zoo.data.config import CandidatesFile, DataConfig, Digits
from zoo.data.recognition import as_setting, as_spec, recognised
from zoo.errors import DataError
from zoo.files import is_dir


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
    if found := recognised(Path(root)):
        source, folder = found
        setting = as_setting(source)
        if folder != Path(root):
            setting = f"--data {shlex.quote(str(folder))} {setting}"
        told += f". For the images there a recipe has {setting}"
        if spec := as_spec(DataConfig(source=source), folder):
            told += f", a command that takes other data than a release's own {spec}"
    raise DataError(told)


def without_partial_labels(
    config: DataConfig, root: str | Path | None
) -> tuple[DataConfig, str | Path | None]:
    """Return the same data with their true labels, and their folder if more than candidates lies in it."""
    plain = config.model_copy(update={"partial_labels": None})
    only_candidates = reads_folder(config) and not reads_folder(plain)
    return plain, None if only_candidates else root
