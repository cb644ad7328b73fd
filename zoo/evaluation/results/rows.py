"""Results of finished trainings: an entry for each run, and a row for those that differ in the seed alone."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from zoo.config import Config
from zoo.release.evaluations import contradiction, headline

PREFERRED = ("classifier", "linear_full", "linear", "knn")
"""Which protocol's figures a row shows: of those that most of its runs have, the first of these."""

GROUPS = {"accuracy": "accuracy", "many": "many", "medium": "medium", "few": "few"}
"""The metrics that a row shows, by their headings."""

_NO_MATTER = re.compile(r"training\.precision|data\.source\.download|views\.train\.\d+\.\d+\.variant")
"""Keys of a recipe with which it is still the published one; the table says which are changed."""

NOT_BEGUN = "not begun"
"""With this begins the state of a training that is planned alone."""

Key = tuple[str | None, int | str | None]
"""Group and seed of a training; which images it is of is no part of it."""

_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Line = Annotated[str, Field(max_length=2_000)]


class Published(Config):
    """A published figure that stands beside those of a recipe."""

    value: Annotated[float, Field(ge=0, le=100)]
    """In percent."""
    metric: Literal["accuracy", "balanced_accuracy", "many", "medium", "few"]
    """Which of a run's figures it is to be compared with."""
    protocol: Literal["classifier", "linear", "knn"] | None = None
    """By the learned classifier, a linear one on the frozen encoder, or kNN; None: one of the first two."""
    source: Annotated[str, Field(min_length=1, max_length=500)]
    """Where it was published."""
    differs: Annotated[str, Field(min_length=1, max_length=500)]
    """One sentence on what is not the same as where it was published."""

    def is_of(self, row: Row) -> bool:
        """Whether a row is comparable: of the shipped recipe, measured by such a protocol."""
        changed = row.first.changed
        if changed is None or row.evaluated is None or not all(map(_NO_MATTER.fullmatch, changed)):
            return False
        kind = "linear" if row.evaluated.protocol == "linear_full" else row.evaluated.protocol
        return kind == self.protocol or (self.protocol is None and kind in ("classifier", "linear"))


class Unfinished(Config):
    """A training that was planned or begun, and has no release."""

    place: str
    name: str
    seed: int | None
    group: str | None
    """As of a finished run; None where nothing is known of its recipe."""
    train_sha256: _Sha256 | None = None
    """As of a finished run; None where its images are not recorded."""
    state: str
    """How far it is, or why it failed."""

    @property
    def key(self) -> Key:
        """The same for trainings of one recipe and seed, wherever they lie, as far as that is known."""
        return (None, self.place) if self.group is None else (self.group, self.seed)


class Evaluated(Config):
    """One evaluation of a run, as its release records it, without the accuracy of each class."""

    protocol: _Line
    settings: dict[str, Any]
    test_sha256: _Sha256 | None
    metric: _Line | None = None
    """What `value` is called."""
    value: float | None = None
    """The figure that tables show first. It follows from the metrics; files of earlier versions lack it."""
    metrics: dict[str, float]
    """Accuracies are in percent."""

    @model_validator(mode="before")
    @classmethod
    def _headline(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("metrics"), dict):
            return data
        if problem := contradiction(data):
            raise ValueError(problem)
        return {**data, **headline(data["metrics"])}

    @property
    def measure(self) -> str:
        """The protocol, and what makes its figures others than those of the same protocol elsewhere."""
        weighted = self.protocol == "linear" and self.settings.get("balanced") is True
        return f"{self.protocol}, balanced" if weighted else self.protocol

    @property
    def kind(self) -> str:
        """What has to be the same where figures of several runs are put together."""
        return json.dumps([self.protocol, self.settings, self.test_sha256], sort_keys=True)


class RunResult(Config):
    """A finished training and all that was measured on it."""

    name: _Line
    """Of the weights, which is the recipe's."""
    seed: Annotated[int, Field(ge=0)]
    method: _Line
    architecture: _Line
    changed: dict[str, list[Any]] | None
    """By key `[shipped, here]` of what the recipe computes; None where no recipe of that name is shipped."""
    group: _Sha256
    """Of all in the recipe that decides what is computed, but for the seed."""
    data: _Line
    train_sha256: _Sha256
    """Of the training images' names and labels."""
    train_images: int
    classes: int
    largest: int
    """Training images of the most frequent class."""
    smallest: int
    profile: Literal["exponential", "step"] | None = None
    """Of the long tail that was selected; None where none was, and in files of earlier versions."""
    imbalance: float | None = None
    """Of that long tail."""
    epochs: int | float
    counted: _Line
    """Which epoch's weights these are."""
    evaluations: list[Evaluated]
    """Those on the training's own data."""
    seconds: Annotated[float, Field(ge=0)]
    """Of the training alone."""
    images_per_second: float
    hardware: _Line
    precision: _Line
    versions: dict[str, str]
    date: _Line
    noted: list[_Line]
    """What was out of the ordinary."""
    recipe_sha256: _Sha256
    weights_sha256: _Sha256
    place: str
    """Where the release lay when it was read."""

    @property
    def identity(self) -> tuple[str, str, str]:
        """The same for copies of one run, and for no others."""
        return self.weights_sha256, self.recipe_sha256, self.date


class Figure(NamedTuple):
    """A metric over the runs of a row.

    Attributes:
        values: of each run, by seed.
        mean: of them.
        deviation: sample standard deviation; None for a single run.
    """

    values: tuple[float, ...]
    mean: float
    deviation: float | None

    def __str__(self) -> str:
        return f"{self.mean:.1f}" + ("" if self.deviation is None else f" ± {self.deviation:.1f}")


def figure(values: Sequence[float]) -> Figure:
    """Summarise the values of one metric; one or more."""
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Figure(tuple(values), statistics.fmean(values), spread)


@dataclass(frozen=True)
class Row:
    """Runs that differ in the seed alone.

    Attributes:
        runs: by seed, each seed once.
        evaluated: which evaluation the figures are of; None where nothing was measured.
        figures: by metric; without those that a run lacks.
        notes: what a reader has to know of them.
    """

    runs: tuple[RunResult, ...]
    evaluated: Evaluated | None
    figures: dict[str, Figure]
    notes: tuple[str, ...]

    @property
    def first(self) -> RunResult:
        """What all have in common can be read from it."""
        return self.runs[0]

    @property
    def measured(self) -> int:
        """How many runs the figures are of."""
        return max((len(each.values) for each in self.figures.values()), default=0)

    @property
    def times(self) -> dict[str, list[float]]:
        """Seconds of training of each run, by hardware and precision."""
        found: dict[str, list[float]] = {}
        for run in self.runs:
            found.setdefault(f"{run.hardware}, {run.precision}", []).append(run.seconds)
        return found


class Sorted(NamedTuple):
    """Runs in rows.

    Attributes:
        rows: in the order in which their first runs were found.
        runs: all that are different, whether a row counts them or not.
        left_out: of these, why some are not counted.
    """

    rows: list[Row]
    runs: list[RunResult]
    left_out: list[str]


def in_rows(found: Iterable[RunResult]) -> Sorted:
    """Put runs into rows: those of one recipe, on the same images, that differ in the seed alone.

    A run that was found twice is counted once. Of several trainings with one seed the earliest counts: they
    are no independent samples. Where the same images go by several names, which come from how they were
    read, rows have the shortest.
    """
    runs = _different(found)
    names: dict[str, str] = {}
    for run in runs:
        known = names.get(run.train_sha256, run.data)
        names[run.train_sha256] = min(known, run.data, key=lambda name: (len(name), name))
    groups: dict[tuple[str, str], list[RunResult]] = {}
    for run in (each.model_copy(update={"data": names[each.train_sha256]}) for each in runs):
        groups.setdefault((run.group, run.train_sha256), []).append(run)
    rows, left_out = [], list[str]()
    for members in groups.values():
        by_seed: dict[int, RunResult] = {}
        for run in sorted(members, key=lambda each: (each.seed, each.date, each.weights_sha256)):
            first = by_seed.setdefault(run.seed, run)
            if first is not run:
                same = "to the same weights" if run.weights_sha256 == first.weights_sha256 else "before"
                left_out.append(
                    f'"{run.place}": {run.name}, seed {run.seed}, was trained {same} in "{first.place}", '
                    "which counts"
                )
        rows.append(_row(tuple(by_seed.values())))
    return Sorted(rows, runs, left_out)


def _different(found: Iterable[RunResult]) -> list[RunResult]:
    """Return each run once, the copy on which most was measured."""
    runs: dict[tuple[str, str, str], RunResult] = {}
    for run in found:
        known = runs.setdefault(run.identity, run)
        if len(run.evaluations) > len(known.evaluations):
            runs[run.identity] = run
    return list(runs.values())


def _row(runs: tuple[RunResult, ...]) -> Row:
    chosen, entries = _shared(runs)
    values = [[entry.metrics.get(name) for entry in entries.values()] for name in GROUPS]
    figures = {
        name: figure([value for value in of if value is not None])
        for name, of in zip(GROUPS, values, strict=True)
        if of and all(value is not None for value in of)
    }
    return Row(runs, chosen, figures, tuple(_notes(runs, chosen, entries)))


def _shared(runs: Sequence[RunResult]) -> tuple[Evaluated | None, dict[int, Evaluated]]:
    """Return the evaluation that most runs have, of those the preferred one, and each run's own by seed."""
    kinds: dict[str, Evaluated] = {}
    counts = Counter[str]()
    for run in runs:
        own = {each.kind: each for each in reversed(run.evaluations) if "accuracy" in each.metrics}
        counts.update(own.keys())
        kinds = {**own, **kinds}
    if not kinds:
        return None, {}

    def rank(each: Evaluated) -> tuple[int, int, int, str]:
        preferred = PREFERRED.index(each.protocol) if each.protocol in PREFERRED else len(PREFERRED)
        # a classifier as it stands comes before one with a prior taken off
        return -counts[each.kind], preferred, len(each.settings), each.kind

    chosen = min(kinds.values(), key=rank)
    return chosen, {
        run.seed: each for run in runs for each in reversed(run.evaluations) if each.kind == chosen.kind
    }


def _notes(
    runs: Sequence[RunResult], chosen: Evaluated | None, entries: dict[int, Evaluated]
) -> Iterable[str]:
    without = [run.seed for run in runs if run.seed not in entries]
    if chosen is None:
        yield "nothing was measured on its own data"
    elif without:
        yield f"{_seeds(without)} without this evaluation: figures of {len(entries)} of {len(runs)} runs"
    torches = dict.fromkeys(run.versions.get("torch", "unknown") for run in runs)
    if len(torches) > 1:
        yield f"seeds trained with different versions of torch: {', '.join(torches)}"
    machines = dict.fromkeys(run.hardware for run in runs)
    if len(machines) > 1:
        yield f"seeds trained on different hardware: {'; '.join(machines)}"
    epochs = {run.counted for run in runs} - {"last epoch"}
    yield from sorted(epochs)
    everywhere = [note for note in runs[0].noted if len(runs) > 1 and all(note in run.noted for run in runs)]
    yield from everywhere
    for run in runs:
        yield from (f"seed {run.seed}: {note}" for note in run.noted if note not in everywhere)


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
