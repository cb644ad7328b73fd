"""`zoo.table`: the results of finished trainings as one table, from their own records."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from zoo import catalog
from zoo.config import Config, listed, load_yaml, parse
from zoo.errors import ZooError
from zoo.experiments.records import RESULTS, Evaluated, RunRecord, as_json, find, shipped_leaves
from zoo.experiments.statistics import draw_numbers, duration, mean_text
from zoo.files import read_text, write_text, writing
from zoo.release import Release
from zoo.release.card import escaped, markdown_table
from zoo.release.schema import PREFERRED

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
"""The marks in a README between which the table is written."""

METRICS = ("accuracy", "many", "medium", "few")
"""Columns of figures, in percent."""

LEGEND = (
    "Top-1 accuracy in percent on the test split: mean over seeds ± sample standard deviation. Many, medium, "
    "few: classes with more than 100, 20 to 100, fewer than 20 training images. Classifier: the learned "
    "classifier or class centers; linear: logistic regression on frozen features (balanced: classes weighted "
    "inversely to their images, not to be compared with the unweighted one); linear_full: the published "
    "linear evaluation. Time: of the training alone, median over seeds. The last epoch counts unless a note "
    "says otherwise."
)
_SAME_RESULT = re.compile(r"training\.precision|data\.source\.download|views\.train\.\d+\.\d+\.variant")
"""Keys that may be changed without hiding the published figure; a note names the change."""

_OWN_COLUMN = ("training.epochs", "training.seed", "objective.feature_transform")
_LONGEST = 30  # characters of a value


class Published(Config):
    """A published figure of a recipe."""

    value: Annotated[float, Field(ge=0, le=100)]
    """In percent."""
    protocol: Literal["classifier", "linear", "knn"]
    """By the learned classifier, a linear one on the frozen encoder, or kNN."""
    source: str
    """Where it was published."""
    differs: str
    """One sentence on what differs from the published setting."""


def published_figures() -> dict[str, Published]:
    """Return the published figures of all shipped sweeps, by recipe."""
    found: dict[str, Published] = {}
    for path in map(catalog.sweep_path, catalog.list_sweeps()):
        figures = load_yaml(catalog.recipe_text(path), path.name).get("published", {})
        found |= {recipe: parse(Published, each, path.name) for recipe, each in figures.items()}
    return found


@dataclass(frozen=True)
class Row:
    """Runs that differ in the seed alone.

    Attributes:
        runs: one per seed.
        evaluated: the evaluation that `figures` are of; None where the runs share none.
        figures: of each run, by metric.
        notes: what a reader has to know of these runs.
    """

    runs: tuple[RunRecord, ...]
    evaluated: Evaluated | None
    figures: dict[str, list[float]]
    notes: tuple[str, ...]

    @property
    def first(self) -> RunRecord:
        """A run, for what all of them have in common."""
        return self.runs[0]

    @property
    def accuracy(self) -> float:
        """The mean accuracy, -1 where there is none."""
        return statistics.fmean(self.figures.get("accuracy", [-1.0]))

    @classmethod
    def of(cls, records: Sequence[RunRecord]) -> Row:
        """Make a row of runs that differ in the seed, by the preferred evaluation that all of them have.

        Of several trainings with one seed the earliest counts, since they are not independent samples.
        """
        by_seed: dict[int, RunRecord] = {}
        for run in sorted(records, key=lambda run: (run.seed, run.date, run.weights_sha256)):
            by_seed.setdefault(run.seed, run)
        runs = tuple(by_seed.values())
        common = [each for each in runs[0].evaluations if all(run.evaluated(each.kind) for run in runs)]
        chosen = min(
            (each for each in common if "accuracy" in each.metrics),
            # a classifier as it stands comes before one with a prior subtracted
            key=lambda each: (*(name != each.protocol for name in PREFERRED), len(each.settings), each.kind),
            default=None,
        )
        kind = "" if chosen is None else chosen.kind
        metrics = [each.metrics for run in runs if (each := run.evaluated(kind)) is not None]
        figures = {
            name: [each[name] for each in metrics]
            for name in METRICS
            if metrics and all(name in each for each in metrics)
        }
        return cls(runs, chosen, figures, tuple(_notes(runs, chosen, len(records))))


def _notes(runs: Sequence[RunRecord], chosen: Evaluated | None, trained: int) -> Iterator[str]:
    if chosen is None:
        yield "no evaluation on its own data that every seed has"
    if trained > len(runs):
        yield f"{trained} trainings of {len(runs)} seeds; of each seed the earliest counts"
    if len(machines := dict.fromkeys(run.hardware for run in runs)) > 1:
        yield f"seeds trained on different hardware: {'; '.join(machines)}"
    yield from sorted({run.counted for run in runs} - {"last epoch"})
    noted: dict[str, list[str]] = {}
    for run in runs:
        for note in run.noted:
            noted.setdefault(note, []).append(str(run.seed))
    for note, seeds in noted.items():
        yield note if len(seeds) == len(runs) else f"seed {', '.join(seeds)}: {note}"


def in_rows(records: Sequence[RunRecord]) -> list[Row]:
    """Put records into rows and sort them as papers' tables do.

    Data sets: the larger first (by the images before a long tail was cut); of one data set exponential long
    tails, then steps, then the rest, the most imbalanced first. Within one: by accuracy. Images that go by
    several names, because they were read in different ways, are shown by the shortest.
    """
    names: dict[str, str] = {}
    for run in sorted(records, key=lambda run: (len(run.data), run.data)):
        names.setdefault(run.train_sha256, run.data)
    groups: dict[str, list[RunRecord]] = {}
    for run in records:
        groups.setdefault(run.group, []).append(run.model_copy(update={"data": names[run.train_sha256]}))
    sizes: dict[str, int] = {}
    for run in records:
        sizes[_base(run)] = max(sizes.get(_base(run), 0), run.classes * run.largest)

    def key(row: Row) -> tuple[Any, ...]:
        run = row.first
        profile = ("exponential", "step", None).index(run.profile)
        imbalance = run.imbalance or run.largest / max(run.smallest, 1)
        data = (-sizes[_base(run)], _base(run), profile, -imbalance, run.data, run.train_sha256)
        return *data, -row.accuracy, run.name, run.group

    return sorted(map(Row.of, groups.values()), key=key)


def _base(run: RunRecord) -> str:
    """Return the name of the data set without what was selected of it."""
    return run.data.partition(", ")[0]


@dataclass(frozen=True)
class Results:
    """Finished trainings as a table.

    Attributes:
        rows: of the runs that differ in the seed alone.
        records: every finished run once.
        published: figures by recipe.
    """

    rows: Sequence[Row]
    records: Sequence[RunRecord]
    published: Mapping[str, Published]

    @classmethod
    def of(cls, records: Sequence[RunRecord], published: Mapping[str, Published]) -> Results:
        """Make a table of records."""
        return cls(in_rows(records), records, published)

    def frame(self) -> pd.DataFrame:
        """Return the table, one line of cells (text) per row."""
        return pd.DataFrame(map(self._cells, self.rows))

    def _cells(self, row: Row) -> dict[str, str]:
        run, published = row.first, self.published_figure(row)
        ambiguous = len({r.first.train_sha256 for r in self.rows if r.first.data == run.data}) > 1
        time = duration(statistics.median(each.seconds for each in row.runs))
        return {
            "method": run.method,
            "recipe": ", ".join([run.name, *self._distinguishing(row)]),
            "data": run.data + (f" (images {run.train_sha256[:8]})" if ambiguous else ""),
            "epochs": str(run.epochs),
            "measured by": "-" if row.evaluated is None else row.evaluated.measure,
            **{metric: mean_text(row.figures.get(metric, []), "z.1f") for metric in METRICS},
            "seeds": f"n = {len(row.runs)}",
            "time to train": f"{time}, {run.hardware}, {run.precision}",
            "published": "-" if published is None else f"{published.value:.1f}",
        }

    def _distinguishing(self, row: Row) -> list[str]:
        """Return the values in which a row differs from others of its name and from the shipped recipe."""
        run, alike = row.first, [each.first for each in self.rows if each.first.name == row.first.name]
        shipped = alike[0].recipe if run.changed is None else shipped_leaves(run.name)
        return [
            f"{_leaf(key)} {_short(value)}"
            for key, value in run.recipe.items()
            if any(key in each.recipe and each.recipe[key] != shipped.get(key, ...) for each in alike)
            and any(each.recipe.get(key, ...) != value for each in alike)
            and not key.startswith("data.")
            and key not in _OWN_COLUMN
        ]

    def published_figure(self, row: Row) -> Published | None:
        """Return the published figure of a row: of the shipped recipe, measured by the same protocol."""
        found, changed = self.published.get(row.first.name), row.first.changed
        if found is None or changed is None or row.evaluated is None:
            return None
        kind = "linear" if row.evaluated.protocol == "linear_full" else row.evaluated.protocol
        return found if kind == found.protocol and all(map(_SAME_RESULT.fullmatch, changed)) else None

    def markdown(self) -> str:
        """Return the table in Markdown: a part for each data set, a legend, and notes."""
        frame = self.frame()
        parts = []
        for data, part in frame.groupby("data", sort=False):
            recipe = part["recipe"].str.replace(r"^([^,]*)", r"`\1`", regex=True)
            shown = part.drop(columns="data").assign(recipe=recipe)
            if (shown[["medium", "few"]] == "-").all(axis=None):  # balanced data: "many" repeats the accuracy
                shown = shown.drop(columns=list(METRICS[1:]))
            if (shown["published"] == "-").all():
                shown = shown.drop(columns="published")
            numbers = {*METRICS, "epochs", "published"}
            words = [place for place, name in enumerate(shown.columns) if name not in numbers]
            parts += [
                f"**{escaped(data)}**",
                markdown_table(list(shown), shown.to_numpy().tolist(), left=words),
            ]
        parts.append(LEGEND)
        if notes := self.notes():
            parts.append("\n".join(f"- {escaped(note)}" for note in notes))
        return "\n\n".join(parts) + "\n"

    def notes(self) -> list[str]:
        """Return what has to be known of each row: its published figure, changed keys, and its own notes."""
        by_text: dict[str, list[str]] = {}  # rows with the same notes share one
        for row, recipe in zip(self.rows, self.frame()["recipe"], strict=True):
            notes = list(row.notes)
            if published := self.published_figure(row):
                notes.insert(0, f"published: {published.source.rstrip('.')}; {published.differs.rstrip('.')}")
            if changed := row.first.changed:
                values = ", ".join(f"{key} {_short(now)}" for key, (_, now) in changed.items())
                notes.append(f"changed from the recipe: {values}")
            for note in notes:
                by_text.setdefault(note, []).append(f"`{recipe}`")
        return [f"{', '.join(dict.fromkeys(recipes))}: {note}." for note, recipes in by_text.items()]

    def write(self, out: Path) -> None:
        """Write `results.md`, `results.json` and `results.png`.

        Raises:
            ZooError: if they cannot be written.
        """
        names = self.frame()[["method", "recipe", "data"]].agg(", ".join, axis=1)
        runs = [
            {"point": name, "seed": run.seed} | {key: values[i] for key, values in row.figures.items()}
            for name, row in zip(names, self.rows, strict=True)
            for i, run in enumerate(row.runs)
        ]
        with writing(f'results in "{out}"'):
            out.mkdir(parents=True, exist_ok=True)
            if any(row.figures for row in self.rows):
                draw_numbers(pd.DataFrame(runs).set_index(["point", "seed"]), out / "results.png")
            write_text(out / "results.md", f"# Results\n\n{self.markdown()}")
            write_text(out / RESULTS, as_json(self.records))


def table(
    *names: str | Path | Release | Sequence[str | Path | Release],
    out: str | Path | None = None,
    readme: str | Path | None = None,
) -> Results:
    """Put the results of finished trainings into one table: means over seeds, time, published figures.

    Everything is read from the releases' own records. A run that lies in several places counts once; runs
    share a row where recipe (but for the seed and how it is computed), images (by their hash) and evaluation
    are equal.

    Args:
        names: folders with runs at any depth (sweeps, releases, files in folders called `results`), releases
            by name, or files `results.json`; also in one list.
        out: folder for `results.md`, `results.json` and `results.png`; None writes nothing.
        readme: a Markdown file in which the table replaces what stands between `BEGIN` and `END`.

    Raises:
        ZooError: for a name that is none of these, a folder without any run, a README without its marks, or
            if something cannot be written.
    """
    given = listed(names)
    records = find(given) if given else []
    if not records:
        what = "no finished run" if given else "no name"
        raise ZooError(f"table: found {what}, expected folders, releases or results.json, e.g. runs")
    made = Results.of(records, published_figures())
    if out is not None:
        made.write(Path(out))
    if readme is not None:
        _replace(Path(readme), made.markdown())
    return made


def _replace(readme: Path, table: str) -> None:
    """Put a table between the marks of a README."""
    try:
        text = read_text(readme, 1 << 24)
    except (OSError, UnicodeDecodeError) as error:
        raise ZooError(f'"{readme}" cannot be read: {error}') from None
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ZooError(f'"{readme}": expected a line {BEGIN} and, below it, {END}')
    with writing(f'"{readme}"'):
        write_text(readme, f"{before}{BEGIN}\n\n{table}\n{END}{after}")


def _leaf(key: str) -> str:
    """Return the last telling word of a dotted key."""
    words = key.split(".")
    return (words[-2] if words[-1] in ("name", "kind") and len(words) > 1 else words[-1]).replace("_", " ")


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
