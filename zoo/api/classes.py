"""`zoo.class_map`: a picture of which classes a release holds to be alike."""

from __future__ import annotations

from pathlib import Path

from zoo import release as releases
from zoo.evaluation.class_map import plot_class_map
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
    data = opened.config["zoo"]["dataset"].get("name")
    plot_class_map(
        opened.require_centers(),
        path,
        title=f"{opened.name}: class centers",
        data=f"trained on {data}" if data else "",
    )
    return Path(path)
