"""Records in rows: runs that differ in the seed alone share one, in the order of the papers' tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from zoo.experiments.record import Evaluated, RunRecord
from zoo.experiments.statistics import Summary, summarize
from zoo.release.evaluations import PREFERRED

METRICS = ("accuracy", "many", "medium", "few")
"""What a row shows, in percent."""


@dataclass(frozen=True)
class Row:
    """Runs that differ in the seed alone.

    Attributes:
        runs: by seed, each seed once.
        evaluated: which evaluation the figures are of; None where nothing was measured.
        figures: by metric; without those that a run lacks.
        notes: what a reader has to know of them.
    """

    runs: tuple[RunRecord, ...]
    evaluated: Evaluated | None
    figures: dict[str, Summary]
    notes: tuple[str, ...]

    @property
    def first(self) -> RunRecord:
        """What all have in common can be read from it."""
        return self.runs[0]

    @property
    def measure(self) -> str:
        """What the figures are of, `-` where there are none."""
        return "-" if self.evaluated is None else self.evaluated.measure

    @property
    def accuracy(self) -> float:
        """The mean that rows are ordered by."""
        return self.figures["accuracy"].mean if "accuracy" in self.figures else -1.0


def in_rows(records: Iterable[RunRecord]) -> tuple[list[Row], list[str]]:
    """Put records into rows: of one recipe, on the same images, with different seeds.

    Of several trainings with one seed the earliest counts: they are no independent samples. Where the same
    images go by several names, which come from how they were read, rows have the shortest.

    Returns:
        The rows in the order of `in_order`, and why records are not counted.
    """
    frame = pd.DataFrame({"record": list(records)})
    for column in ("group", "seed", "date", "weights_sha256", "data", "train_sha256"):
        frame[column] = [getattr(record, column) for record in frame["record"]]
    shortest = frame.groupby("train_sha256")["data"].agg(lambda names: min(names, key=lambda n: (len(n), n)))
    rows, left_out = [], list[str]()
    for _, group in frame.groupby("group", sort=False):
        members = group.sort_values(["seed", "date", "weights_sha256"])
        again = members.duplicated("seed")
        first = members[~again].set_index("seed")["record"]
        for run in members[again]["record"]:
            left_out.append(
                f'"{run.place}": {run.name}, seed {run.seed}, was trained before in '
                f'"{first[run.seed].place}", which counts'
            )
        rows.append(_row([run.model_copy(update={"data": shortest[run.train_sha256]}) for run in first]))
    return in_order(rows), left_out


def _row(runs: Sequence[RunRecord]) -> Row:
    chosen = _shared(runs)
    entries = {} if chosen is None else {run.seed: run.evaluated(chosen.kind) for run in runs}
    measured = [entry for entry in entries.values() if entry is not None]
    figures = {
        name: summarize([entry.metrics[name] for entry in measured])
        for name in METRICS
        if measured and all(name in entry.metrics for entry in measured)
    }
    without = [seed for seed, entry in entries.items() if entry is None]
    return Row(tuple(runs), chosen, figures, tuple(_notes(runs, chosen, without)))


def _shared(runs: Sequence[RunRecord]) -> Evaluated | None:
    """Return the evaluation that most runs have, of those the first in `PREFERRED`."""
    found = [each for run in runs for each in run.evaluations if "accuracy" in each.metrics]
    counts = Counter(kind for run in runs for kind in {e.kind for e in run.evaluations})

    def rank(each: Evaluated) -> tuple[int, int, int, str]:
        preferred = PREFERRED.index(each.protocol) if each.protocol in PREFERRED else len(PREFERRED)
        # a classifier as it stands comes before one with a prior subtracted
        return -counts[each.kind], preferred, len(each.settings), each.kind

    return min(found, key=rank, default=None)


def _notes(runs: Sequence[RunRecord], chosen: Evaluated | None, without: Sequence[int]) -> Iterable[str]:
    if chosen is None:
        yield "nothing was measured on its own data"
    elif without:
        seeds = f"seed{'s' if len(without) > 1 else ''} {', '.join(map(str, without))}"
        yield f"{seeds} without this evaluation: figures of {len(runs) - len(without)} of {len(runs)} runs"
    torches = dict.fromkeys(run.versions.get("torch", "unknown") for run in runs)
    if len(torches) > 1:
        yield f"seeds trained with different versions of torch: {', '.join(torches)}"
    machines = dict.fromkeys(run.hardware for run in runs)
    if len(machines) > 1:
        yield f"seeds trained on different hardware: {'; '.join(machines)}"
    yield from sorted({run.counted for run in runs} - {"last epoch"})
    shared = [note for note in runs[0].noted if len(runs) > 1 and all(note in run.noted for run in runs)]
    yield from shared
    for run in runs:
        yield from (f"seed {run.seed}: {note}" for note in run.noted if note not in shared)


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Return rows as the tables of papers have them: what is compared stands together.

    Data sets: the larger first, by the images that it had if all classes had as many as the largest, which is
    what a long tail was cut from; of one data set the exponential long tails, then those in a step, then the
    rest, and of each the most imbalanced first.

    Rows of one data set: by architecture, in that by method, in that the longest training first, then the
    most accurate. Architectures and methods have the same order in every data set: that of their best row in
    the first data set that has them.
    """
    sizes: dict[str, tuple[int, int]] = {}
    for run in (row.first for row in rows):
        sizes[_base(run)] = max(sizes.get(_base(run), (0, 0)), (run.classes * run.largest, run.classes))

    def block(row: Row) -> tuple[int | float | str, ...]:
        run, (size, classes) = row.first, sizes[_base(row.first)]
        profile = ("exponential", "step", None).index(run.profile)
        imbalance = run.imbalance or run.largest / max(run.smallest, 1)
        test = None if row.evaluated is None else row.evaluated.test_sha256
        return (
            *(-size, -classes, _base(run), profile, -imbalance, -run.train_images),
            *(run.data, run.train_sha256, test or ""),
        )

    found = sorted(rows, key=lambda row: (block(row), -row.accuracy, row.first.name, row.first.group))
    architectures = list(dict.fromkeys(row.first.architecture for row in found))
    methods = list(dict.fromkeys(row.first.method for row in found))

    def inside(row: Row) -> tuple[int | float | str, ...]:
        run = row.first
        return (
            *(architectures.index(run.architecture), methods.index(run.method), -run.epochs),
            *(-row.accuracy, run.name, run.group),
        )

    return sorted(found, key=lambda row: (block(row), inside(row)))


def _base(run: RunRecord) -> str:
    """Return the data set without what was selected of it."""
    return run.data.partition(", ")[0]
