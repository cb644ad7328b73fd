"""The tables of a report: what recipes differ in, and every number, over seeds where there are several."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from zoo.evaluation.diagnosis.labels import differences
from zoo.evaluation.diagnosis.page import Table
from zoo.evaluation.diagnosis.subject import Subject
from zoo.evaluation.results.comparison import COLUMNS, Estimate, estimate
from zoo.evaluation.series import GROUPS, Scalar

_ACCURACY = "accuracy"
_SECTIONS = {
    "features": "Features of the sample of test images",
    "recorded": "Recorded while training: means over the last fifth of the records",
    "deviation": "How much it still moves: standard deviation over the same records, drift and noise alike",
    "unsteadiness": "How steady from record to record: standard deviation of the differences between "
    "neighbours of these records, by √2 and by the size of their mean",
    "balance": "Balance: mean over the most frequent third of the classes by mean over the rarest third",
}
"""Prefix of a number's name, and the caption of the table that has those numbers; in the order shown."""

_IMAGES = "test_images"
COUNTS = frozenset({_IMAGES, "queries", "gallery_images"})
"""Metrics that are no percentages, but how many images those are of."""
_NOT_STEADY = frozenset({"lr", "images_per_second"})  # of which a deviation says nothing about learning
_NOT_SHOWN = frozenset({_ACCURACY, "beginning", "relative_deviation"})  # has tables of its own; for sweeps
_FEATURES = {
    "uniformity": "uniformity: log E exp(-2 |x - y|²)",
    "tolerance": "tolerance: mean cosine within a class",
    "alignment": "alignment of two views: E |q - k|²",
    "accuracy": "accuracy in the sample, percent",
    "positive_score": "cosine of two views: mean",
    "positive_deviation": "cosine of two views: standard deviation",
    "same_class_score": "cosine within a class: mean",
    "same_class_deviation": "cosine within a class: standard deviation",
    "other_class_score": "cosine with other classes: mean",
    "other_class_deviation": "cosine with other classes: standard deviation",
}
_VARIANTS = {"": "", "optimum": ", optimum", "ft": " after FT"}
_ON = " on "  # before the words of data that are not the subject's own, in a protocol's name
_SEEDS = " Mean over seeds ± 95 % interval of the mean (Student's t)."


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


def accuracy_tables(subjects: Sequence[Subject]) -> list[Table]:
    """Return the accuracies of the releases' own evaluations, in percent.

    Of a single group one table with a row for each protocol, else a table for each protocol with a row for
    each group. They say which data the figures are of, and of how many images.
    """
    by_group, sizes = estimates(subjects), _sizes(subjects)
    data = {subject.group: subject.data for subject in subjects}
    names = dict.fromkeys(name for numbers in by_group.values() for name in numbers)
    split = [name.split("/") for name in names if name.startswith(f"{_ACCURACY}/")]
    protocols = dict.fromkeys(parts[1] for parts in split)
    metrics = dict.fromkeys(["accuracy", *COLUMNS, *(parts[2] for parts in split if len(parts) > 2)])

    def cells(group: str, protocol: str, shown: Sequence[str]) -> list[str]:
        numbers = by_group[group]
        return [_cell(numbers.get(_named(protocol, metric)), sizes[group], str) for metric in shown]

    def shown(*protocols: str) -> list[str]:
        wanted = {_named(protocol, metric) for protocol in protocols for metric in metrics} & {*names}
        return [
            metric
            for metric in metrics
            if metric not in COUNTS and any(_named(protocol, metric) in wanted for protocol in protocols)
        ]

    def heads(metrics: Sequence[str]) -> list[str]:
        return [*(COLUMNS.get(metric, metric.replace("_", " ")) for metric in metrics), "test images"]

    def images(group: str, protocol: str) -> str:
        found = by_group[group].get(_named(protocol, _IMAGES))
        return "-" if found is None else f"{found.mean:,.0f}"

    if not protocols:
        return []
    if len(by_group) == 1:
        (group,) = by_group
        columns = shown(*protocols)
        rows = [[name, *cells(group, name, columns), images(group, name)] for name in protocols]
        caption = f"Percent, test split, as the release records it. Where it says no other: {data[group]}."
        return [Table(f"{caption}{_over(sizes)}", ["protocol", *heads(columns)], rows)]
    tables = []
    for protocol in protocols:
        columns = shown(protocol)
        there = [
            group for group in by_group if any(_named(protocol, each) in by_group[group] for each in metrics)
        ]
        own = {data[group] for group in there}
        named = _ON in protocol  # then the name says the data
        several = len(own) > 1 and not named
        of = "each one's own data" if several else next(iter(own))
        per_group = [
            [
                _head(group, sizes),
                *([data[group] if group in there else "-"] if several else []),
                *cells(group, protocol, columns),
                images(group, protocol),
            ]
            for group in by_group
        ]
        where = "test split" if named else f"test split of {of}"
        caption = f"Protocol {protocol}. Percent, {where}, as the release records it."
        head = ["", *(["data"] if several else []), *heads(columns)]
        tables.append(Table(f"{caption}{_over(sizes)}", head, per_group))
    return tables


def numbers_tables(subjects: Sequence[Subject]) -> list[Table]:
    """Return the tables of all other numbers: a row for each, a column for each group of subjects."""
    by_group, sizes = estimates(subjects), _sizes(subjects)
    names = dict.fromkeys(name for numbers in by_group.values() for name in numbers)
    prefixes = dict.fromkeys([*_SECTIONS, *(name.partition("/")[0] for name in names)])
    tables = []
    for prefix in prefixes:
        rows = [
            [_words(name), *(_cell(by_group[group].get(name), sizes[group]) for group in by_group)]
            for name in sorted(names, key=_order)
            if name.partition("/")[0] == prefix and not _left_out(name)
        ]
        if rows:
            caption = f"{_SECTIONS.get(prefix, prefix)}.{_over(sizes)}"
            heads = ["value"] if len(subjects) == 1 else [_head(group, sizes) for group in by_group]
            tables.append(Table(caption, ["", *heads], rows))
    return tables


def _sizes(subjects: Sequence[Subject]) -> Counter[str]:
    return Counter(subject.group for subject in subjects)


def _over(sizes: Mapping[str, int]) -> str:
    return _SEEDS if max(sizes.values()) > 1 else ""


def _head(group: str, sizes: Mapping[str, int]) -> str:
    return group if sizes[group] < 2 else f"{group} ({sizes[group]} seeds)"


def _named(protocol: str, metric: str) -> str:
    return f"{_ACCURACY}/{protocol}" + ("" if metric == "accuracy" else f"/{metric}")


def _left_out(name: str) -> bool:
    prefix, _, rest = name.partition("/")
    return prefix in _NOT_SHOWN or (prefix in ("deviation", "unsteadiness") and rest in _NOT_STEADY)


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
    """Return a number's name as a person reads it."""
    prefix, _, rest = name.partition("/")
    if prefix == "features" and rest in _FEATURES:
        return _FEATURES[rest].replace("-2", "\N{MINUS SIGN}2").replace("- ", "\N{MINUS SIGN} ")
    quantity, variant, group = Scalar.of(rest)
    words = "learning rate" if quantity == "lr" else quantity.replace("_", " ").replace("p sup", "P_sup")
    return f"{words}{_VARIANTS[variant]}{f', {group}' if group else ''}" or name


def _order(name: str) -> tuple[str, str, int]:
    """Sort groups of classes as everywhere, an optimum after what it is of; features as they come."""
    prefix, _, rest = name.partition("/")
    quantity, variant, group = Scalar.of(rest)
    return (quantity if prefix != "features" else "", variant, ("", *GROUPS).index(group))


def _cell(found: Estimate | None, size: int, write: Callable[[Estimate], str] = Estimate.in_figures) -> str:
    if found is None:
        return "-"
    text = write(found)
    return text if len(found.values) == size else f"{text} (of {len(found.values)})"


def plain_numbers(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """Return numbers as JSON has them: what is not finite becomes null."""
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}
