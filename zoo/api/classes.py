"""`zoo.class_map`: a picture of which classes a release holds to be alike."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo import release as releases
from zoo.data.words import data_words
from zoo.evaluation.figures.class_map import plot_class_map
from zoo.release import Release


def class_map(release: Release | str | Path, path: str | Path) -> Path:
    """Draw the cosine similarity of every two learned class centers of a release, alike ones side by side.

    Args:
        release: a release, its name or folder.
        path: .png or .pdf.

    Returns:
        The file.

    Raises:
        ZooError: for a release without centers, or a file that cannot be written.
    """
    opened = release if isinstance(release, Release) else releases.open(release)
    plot_class_map(
        opened.require_centers(),
        path,
        title=f"{opened.name}: class centers",
        data=trained_on(opened.config["zoo"]["dataset"], _seed(opened)),
    )
    return Path(path)


def trained_on(dataset: Mapping[str, Any], seed: int | None) -> str:
    """Say on what and with which seed, from the facts that a release records; '' where neither is known."""
    on = f" on {data_words(dataset)}" if dataset.get("name") else ""
    using = f" with seed {seed}" if seed is not None else ""
    return f"trained{on}{using}" if on or using else ""


def _seed(release: Release) -> int | None:
    seed = (release.recipe.get("training") or {}).get("seed")
    return seed if isinstance(seed, int) else None
