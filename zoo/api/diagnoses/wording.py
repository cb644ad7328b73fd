"""What a report says of a training in words: what it is, of which data, where it lies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from zoo.api.diagnoses.look import Seen
from zoo.api.diagnoses.subjects import Opened
from zoo.data.words import data_words
from zoo.evaluation.diagnosis.subject import Subject
from zoo.evaluation.diagnosis.tables import plain_numbers


def record(subject: Subject, opened: Opened, seen: Seen) -> dict[str, Any]:
    """Return what numbers.json says of a subject."""
    return {
        "label": subject.label,
        "group": subject.group,
        "name": subject.name,
        "objective": subject.objective,
        "data": subject.data,
        "seed": subject.seed,
        "folder": str(opened.folder),
        "state": opened.state,
        "looked_at": seen.looked_at,
        "without_look": seen.without_look,
        "notes": list(seen.notes),
        "numbers": plain_numbers(subject.numbers),
    }


def data_of(opened: Opened, seen: Seen) -> str:
    """Say what a training learned from; the recipe says it where there are neither release nor data."""
    if opened.release is not None:
        described = opened.release.config["zoo"]["dataset"]
        return data_words(described) if described.get("name") else "data that are not recorded"
    if seen.trained_on is not None:
        return seen.trained_on
    section = opened.recipe["data"]
    source = section["source"]
    return data_words({**section, "name": source.get("name") or source.get("repo") or source["kind"]})


def facts(subject: Subject, opened: Opened, seen: Seen) -> dict[str, str]:
    """Return what a reader has to know of a subject."""
    steps = [row["step"] for row in subject.rows if "step" in row]
    rows = (
        f"{len(steps):,} row{'s' if len(steps) > 1 else ''} up to step {max(steps):,}" if steps else "nothing"
    )
    training = {} if opened.release is None else opened.release.metrics.get("training") or {}
    took = (
        f"{training['seconds']:,.0f} s on {training['hardware']}"
        if training.get("hardware") and training.get("seconds")
        else None
    )
    centers = "none" if seen.centers is None else f"{len(seen.centers.weight)} learned"
    return {
        **({} if subject.label == subject.name else {"weights": subject.name}),
        "what": opened.state,
        "objective": subject.objective,
        "trained on": f"{subject.data}{_images(seen.class_counts.tolist())}",
        "seed": "not known" if subject.seed is None else str(subject.seed),
        "looked at": seen.looked_at + (f" ({seen.without_look})" if seen.without_look else ""),
        "class centers": centers,
        "recorded": rows,
        **({"training took": took} if took else {}),
        "folder": str(opened.folder),
    }


def _images(counts: Sequence[int]) -> str:
    if not counts or min(counts) < 0:
        return ""
    spread = f"{max(counts):,} to {min(counts):,}" if max(counts) > min(counts) else f"{max(counts):,}"
    return f": {sum(counts):,} images, {len(counts)} class{'es' if len(counts) > 1 else ''} of {spread}"


def title(subjects: Sequence[Subject]) -> str:
    """Return the title of a report that has none of its own."""
    if len(subjects) == 1:
        return subjects[0].name
    names = list(dict.fromkeys(subject.name for subject in subjects))
    return (
        f"{len(subjects)} trainings of {names[0]}"
        if len(names) == 1
        else f"{len(subjects)} trainings side by side"
    )
