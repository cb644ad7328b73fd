"""`zoo.class_map`: a picture of which classes a release holds to be alike."""

from __future__ import annotations

from pathlib import Path

from zoo import hub
from zoo.data.words import data_words
from zoo.release import Release
from zoo.report.classes import draw_centers


def class_map(release: Release | str | Path, path: str | Path) -> Path:
    """Draw the cosine similarity of every two learned class centers of a release, alike ones side by side.

    Args:
        release: a release, its name or folder.
        path: .png, .svg or .pdf.

    Returns:
        The file.

    Raises:
        ZooError: for a release without centers, or a file that cannot be written.
    """
    opened = release if isinstance(release, Release) else hub.open(release)
    words = data_words(dataset) if (dataset := opened.config["zoo"]["dataset"]).get("name") else ""
    draw_centers(opened.require_centers(), Path(path), title=f"{opened.name}: class centers\n{words}".strip())
    return Path(path)
