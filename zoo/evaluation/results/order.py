"""In which order a table of results has its data sets, and the rows of each."""

from __future__ import annotations

from collections.abc import Sequence

from zoo.evaluation.results.rows import Row

_PROFILES = ("exponential", "step", None)


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Return rows as the tables of papers have them: what is compared stands together.

    Data sets: the larger first, by the images that it had if all classes had as many as the largest, which is
    what a long tail was cut from; of one data set the exponential long tails, then those in a step, then the
    rest, and of each the most imbalanced first: imbalance 100, 50, 10, all images.

    Rows of one data set: by architecture, in that by method, in that the longest training first, then the
    most accurate. Architectures and methods have the same order in every data set, so that a method is found
    at the same place: that of their best row in the first data set that has them, the most accurate first.
    Accuracy alone would order methods anew in every data set, and part the lengths of one.
    """
    sizes = dict[str, tuple[int, int]]()
    for row in rows:
        run, before = row.first, sizes.get(_name(row), (0, 0))
        sizes[_name(row)] = max(before, (run.classes * run.largest, run.classes))
    tails = dict[str, tuple[int, float]]()
    for row in rows:  # one of a file of an earlier version does not know what another of the same images does
        tails[row.first.train_sha256] = min(_tail(row), tails.get(row.first.train_sha256, _tail(row)))

    def block(row: Row) -> tuple[int | float | str, ...]:
        (size, classes), run = sizes[_name(row)], row.first
        test = None if row.evaluated is None else row.evaluated.test_sha256
        return (
            *(-size, -classes, _name(row), *tails[run.train_sha256], -run.train_images),
            *(run.data, run.train_sha256, test or ""),
        )

    found = sorted(rows, key=lambda row: (block(row), -_accuracy(row), row.first.name, row.first.group))
    architectures = list(dict.fromkeys(row.first.architecture for row in found))
    methods = list(dict.fromkeys(row.first.method for row in found))

    def inside(row: Row) -> tuple[int | float | str, ...]:
        run = row.first
        return (
            *(architectures.index(run.architecture), methods.index(run.method), -run.epochs),
            *(-_accuracy(row), run.name, run.group),
        )

    return sorted(found, key=lambda row: (block(row), inside(row)))


def _name(row: Row) -> str:
    """Return the data set without what was selected of it."""
    return row.first.data.partition(", ")[0]


def _tail(row: Row) -> tuple[int, float]:
    """Return what orders the selections of a data set."""
    run = row.first
    found = run.imbalance or run.largest / max(run.smallest, 1)
    return _PROFILES.index(run.profile), -found


def _accuracy(row: Row) -> float:
    return row.figures["accuracy"].mean if "accuracy" in row.figures else -1.0
