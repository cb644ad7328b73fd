"""Data in no folder of the user's: of those that share a folder, which can have anything in it."""

from __future__ import annotations

from pathlib import Path

from zoo.data.config import CandidatesFile, DataConfig, Digits, HubDataset, Memory
from zoo.data.memory import MemoryImages, Root


def reads_folder(config: DataConfig) -> bool:
    """Whether anything of the data can lie in a folder: images, or candidates for their labels."""
    labels = config.partial_labels
    in_folder = isinstance(labels, CandidatesFile) and not Path(labels.path).is_absolute()
    return in_folder or not isinstance(config.source, Digits | HubDataset | Memory)


def folder_for(config: DataConfig, root: Root) -> Root:
    """Return the folder that several data share, or None for data of which nothing can lie in it."""
    return root if reads_folder(config) or isinstance(root, MemoryImages) else None


def without_partial_labels(config: DataConfig, root: Root) -> tuple[DataConfig, Root]:
    """Return the same data with their true labels, and their folder if more than candidates lies in it."""
    plain = config.model_copy(update={"partial_labels": None})
    only_candidates = reads_folder(config) and not reads_folder(plain)
    return plain, None if only_candidates else root
