"""The tables of a report: what recipes differ in, and every number, over seeds where there are several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from zoo.evaluation.comparison import Estimate, estimate
from zoo.evaluation.diagnosis.labels import differences
from zoo.evaluation.diagnosis.page import Table
from zoo.evaluation.diagnosis.subject import Subject

_SECTIONS = {
    "accuracy": "Accuracies of the release's own evaluations, in percent",
    "features": "Features of the sample of test images",
    "recorded": "Recorded while training: means over the last fifth of the recorded steps",
}
"""Prefix of a number's name, and the caption of the table that has those numbers; in the order shown."""

_WORDS = {"ft": "after FT", "p": "P", "sup": "sup", "lr": "learning rate", "gb": "GB", "map": "mAP"}


def differences_table(subjects: Sequence[Subject]) -> Table | None:
    """Return in what the recipes differ; None where they do not.

    There is a row for each key, or for each subject where there are more of those.
    """
    if len(subjects) < 2:
        return None
    found = differences([subject.recipe for subject in subjects])
    rows = [[each.key, *each.texts()] for each in found if each.key != "description"]
    if not rows:
        return None
    caption = "Every key with its value in each recipe, but for how and where it was computed."
    table = [["", *(each.label for each in subjects)], *rows]
    if len(subjects) > len(rows):  # many runs of a sweep: a row for each
        table = [list(column) for column in zip(*table, strict=True)]
    return Table(caption, table[0], table[1:])


def estimates(subjects: Sequence[Subject]) -> dict[str, dict[str, Estimate]]:
    """Return every number of every group: mean and 95 % interval over the group's subjects that have it."""
    found: dict[str, dict[str, Estimate]] = {}
    for group in dict.fromkeys(subject.group for subject in subjects):
        members = [subject for subject in subjects if subject.group == group]
        names = dict.fromkeys(name for member in members for name in member.numbers)
        found[group] = {}
        for name in names:
            values = [member.numbers[name] for member in members if name in member.numbers]
            finite = [value for value in values if math.isfinite(value)]
            if finite:
                found[group][name] = estimate(finite)
    return found


def numbers_tables(subjects: Sequence[Subject]) -> list[Table]:
    """Return the tables of all numbers: a row for each, a column for each group of subjects."""
    by_group = estimates(subjects)
    names = dict.fromkeys(name for numbers in by_group.values() for name in numbers)
    sizes = {group: sum(subject.group == group for subject in subjects) for group in by_group}
    heads = [group if sizes[group] < 2 else f"{group} ({sizes[group]} seeds)" for group in by_group]
    several = " Mean over seeds ± 95 % interval of the mean (Student's t)." if max(sizes.values()) > 1 else ""
    prefixes = dict.fromkeys([*_SECTIONS, *(name.partition("/")[0] for name in names)])
    tables = []
    for prefix in prefixes:
        rows = [
            [_words(name), *(_cell(by_group[group].get(name), sizes[group]) for group in by_group)]
            for name in names
            if name.partition("/")[0] == prefix
        ]
        if rows:
            caption = _SECTIONS.get(prefix, prefix)
            tables.append(Table(f"{caption}.{several}", ["", *heads], rows))
    return tables


def record_of(subjects: Sequence[Subject]) -> dict[str, dict[str, dict[str, float | int | None]]]:
    """Return the estimates as numbers.json has them: mean, half width of the interval, number of seeds."""
    return {
        group: {
            name: {"mean": each.mean, "half_width": each.half_width, "seeds": len(each.values)}
            for name, each in numbers.items()
        }
        for group, numbers in estimates(subjects).items()
    }


def _words(name: str) -> str:
    """Return a number's name as a person reads it; protocols stay as they are written."""
    prefix, _, rest = name.partition("/")
    if prefix != "recorded":
        return rest.replace("_", " ").replace("/", ", ") or name
    words = [_WORDS.get(word, word) for word in rest.split("_")]
    text = " ".join(words)
    return text.replace("P sup", "P_sup")


def _cell(found: Estimate | None, size: int) -> str:
    if found is None:
        return "-"
    text = in_figures(found.mean, found.half_width)
    return text if len(found.values) == size else f"{text} (of {len(found.values)})"


def in_figures(value: float, half_width: float | None = None) -> str:
    """Write a number with three significant figures, or to the second figure of its interval."""
    size = abs(value) if half_width is None else half_width
    if size == 0 or not math.isfinite(size):
        return f"{value:g}"
    if not 1e-4 <= max(abs(value), size) < 1e6:
        return f"{value:.2e}" + ("" if half_width is None else f" ± {half_width:.1e}")
    figures = 2 if half_width is None else 1
    decimals = min(max(figures - math.floor(math.log10(size)), 0), 6)
    return f"{value:.{decimals}f}" + ("" if half_width is None else f" ± {half_width:.{decimals}f}")


def plain_numbers(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """Return numbers as JSON has them: what is not finite becomes null."""
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}
