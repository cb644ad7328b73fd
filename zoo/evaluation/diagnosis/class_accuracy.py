"""Accuracy of each class against its training images, as a release's evaluations have recorded it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zoo.errors import DataError
from zoo.evaluation.diagnosis.accuracy import draw_accuracies
from zoo.evaluation.diagnosis.overlay import Group, heading, legend_of, recorded
from zoo.evaluation.diagnosis.subject import Subject
from zoo.evaluation.series import Array

_MOST = 4  # protocols, further ones would hide each other


def plot_class_accuracy(subject: Subject, entries: Sequence[Mapping[str, Any]], paths: Sequence[Path]) -> str:
    """Draw what each protocol has measured on the release's own test images; return the caption.

    Of several evaluations by one protocol the first is drawn, as the recipe asked for it; those on other data
    than the release's own are not.

    Args:
        subject: gives name, seed and training images.
        entries: of metrics.json; those with an accuracy of every class are drawn, four at most.
        paths: .png, .svg or .pdf.

    Raises:
        DataError: where no evaluation has accuracies of the classes, or their training images are not known.
    """
    counts = np.asarray(subject.class_counts.double().numpy())
    found: dict[str, tuple[Array, Mapping[str, Any]]] = {}
    own = [entry for entry in entries if entry.get("data", subject.data) == subject.data]
    for entry in own:
        values = per_class(entry, len(counts))
        if values is not None:
            found.setdefault(str(entry["protocol"]), (values, entry))
    if len(counts) < 2:
        raise DataError("one class")
    if not found:
        raise DataError(f"no evaluation on {subject.data} has accuracies of its classes")
    if counts.min() < 0:
        raise DataError("the training images of each class are not known")
    drawn = dict(list(found.items())[:_MOST])
    groups = [Group(protocol, (subject,), place) for place, protocol in enumerate(drawn)]
    _, first = next(iter(drawn.values()))
    images = first["metrics"].get("test_images")
    caption = f"Top-1 accuracy of each class by {' / '.join(drawn)}; {first['data']}, {first['split']} split"
    caption += f", all {images:,} images" if isinstance(images, int) else ""
    caption += f". Trained on {recorded([subject])}."
    members = [(group, counts, [values]) for group, (values, _) in zip(groups, drawn.values(), strict=True)]
    if counts.min() == counts.max():
        caption += f" Every class has {counts[0]:,.0f} training images: sorted by accuracy."
    title = "Accuracy of each class" if counts.min() == counts.max() else "Accuracy by training images"
    title = heading(title, [groups[0]._replace(label=subject.name)])
    draw_accuracies(paths, members, caption, title, legend_of(groups))
    return caption


def per_class(entry: Mapping[str, Any], classes: int) -> Array | None:
    """Return the accuracy of each class in percent `[C]`, NaN without a test image; None if not recorded."""
    values = (entry.get("metrics") or {}).get("per_class")
    if not isinstance(values, list) or len(values) != classes:
        return None
    return np.asarray([np.nan if value is None else value for value in values], dtype=float)
