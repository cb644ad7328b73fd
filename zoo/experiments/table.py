"""`zoo.table`: the results of finished trainings as one table, from their own records."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from zoo import catalog
from zoo.config import Config, listed, load_yaml, parse
from zoo.errors import ZooError, capital
from zoo.experiments.records import RESULTS, Evaluated, RunRecord, as_json, find, shipped_leaves
from zoo.experiments.statistics import draw_numbers, duration, mean_text
from zoo.files import read_text, write_text, writing
from zoo.release import Release
from zoo.release.card import escaped, markdown_table
from zoo.release.evaluations import PREFERRED

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
"""Between these lines of a README stands the table."""

METRICS = ("accuracy", "many", "medium", "few")
"""What a row shows, in percent."""

_PROTOCOLS = {
    "classifier": "the learned classifier or class centers as they stand",
    "linear_full": "the published linear evaluation of the frozen encoder",
    "linear": "a linear probe on cached features of the frozen encoder",
    "linear, balanced": "such a probe whose classes are weighted inversely to their images, which gives rare "
    "ones more than the unweighted one does: not to be compared with that",
    "knn": "a vote of the nearest training images",
}
_NO_MATTER = re.compile(r"training\.precision|data\.source\.download|views\.train\.\d+\.\d+\.variant")
"""Keys of a recipe with which it is still the published one; the table says which are changed."""

_TOLD = ("training.epochs", "training.seed", "objective.feature_transform")  # by other columns
_LONGEST = 30  # characters of a value


class Published(Config):
    """A published figure that stands beside those of a recipe."""

    value: Annotated[float, Field(ge=0, le=100)]
    """In percent."""
    protocol: Literal["classifier", "linear", "knn"]
    """By the learned classifier, a linear one on the frozen encoder, or kNN."""
    source: str
    """Where it was published."""
    differs: str
    """One sentence on what is not the same as where it was published."""


def published_figures() -> dict[str, Published]:
    """Return the published figures in all shipped sweeps, by recipe."""
    found: dict[str, Published] = {}
    for path in map(catalog.sweep_path, catalog.list_sweeps()):
        figures = load_yaml(catalog.recipe_text(path), path.name).get("published", {})
        found |= {recipe: parse(Published, each, path.name) for recipe, each in figures.items()}
    return found


@dataclass(frozen=True)
class Row:
    """Runs that differ in the seed alone.

    Attributes:
        runs: by seed, each seed once.
        evaluated: which evaluation the figures are of; None where no runs share one.
        figures: of each run, by metric; without those that a run lacks.
        notes: what a reader has to know of them.
    """

    runs: tuple[RunRecord, ...]
    evaluated: Evaluated | None
    figures: dict[str, list[float]]
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
        return statistics.fmean(self.figures.get("accuracy", [-1.0]))

    @classmethod
    def of(cls, records: Sequence[RunRecord]) -> Row:
        """Put runs that differ in the seed into a row, by an evaluation that all of them have.

        Of several trainings with one seed the earliest counts: they are no independent samples.
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
    machines = dict.fromkeys(run.hardware for run in runs)
    if len(machines) > 1:
        yield f"seeds trained on different hardware: {'; '.join(machines)}"
    yield from sorted({run.counted for run in runs} - {"last epoch"})
    shared = [note for note in runs[0].noted if len(runs) > 1 and all(note in run.noted for run in runs)]
    yield from shared
    for run in runs:
        yield from (f"seed {run.seed}: {note}" for note in run.noted if note not in shared)


def in_rows(records: Sequence[RunRecord]) -> list[Row]:
    """Put records into rows, in the order of papers' tables: what is compared stands together.

    Where the same images go by several names, which come from how they were read, rows have the shortest.

    Data sets: the larger first, by the images that it had if all classes had as many as the largest, which is
    what a long tail was cut from; of one data set the exponential long tails, then those in a step, then the
    rest, and of each the most imbalanced first. Rows of one data set: by architecture, in that by method, in
    that the longest training first, then the most accurate. Architectures and methods have the same order in
    every data set: that of their best row in the first data set that has them.
    """
    names: dict[str, str] = {}
    for run in sorted(records, key=lambda run: (len(run.data), run.data)):
        names.setdefault(run.train_sha256, run.data)
    groups: dict[str, list[RunRecord]] = {}
    for run in records:
        groups.setdefault(run.group, []).append(run)
    rows = [
        Row.of([run.model_copy(update={"data": names[run.train_sha256]}) for run in group])
        for group in groups.values()
    ]
    sizes: dict[str, int] = {}
    for run in (row.first for row in rows):
        sizes[_base(run)] = max(sizes.get(_base(run), 0), run.classes * run.largest)

    def block(row: Row) -> tuple[int | float | str, ...]:
        run = row.first
        profile = ("exponential", "step", None).index(run.profile)
        imbalance = run.imbalance or run.largest / max(run.smallest, 1)
        return -sizes[_base(run)], _base(run), profile, -imbalance, run.data, run.train_sha256

    rows.sort(key=lambda row: (block(row), -row.accuracy, row.first.name, row.first.group))
    architectures = list(dict.fromkeys(row.first.architecture for row in rows))
    methods = list(dict.fromkeys(row.first.method for row in rows))

    def inside(row: Row) -> tuple[int | float, ...]:
        run = row.first
        return architectures.index(run.architecture), methods.index(run.method), -run.epochs, -row.accuracy

    return sorted(rows, key=lambda row: (block(row), inside(row)))


def _base(run: RunRecord) -> str:
    """Return the data set without what was selected of it."""
    return run.data.partition(", ")[0]


@dataclass(frozen=True)
class Results:
    """Finished trainings as a table.

    Attributes:
        rows: each of the runs that differ in the seed alone.
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
        """Return the table, a line of cells for each row."""
        images = Counter(data for data, _ in {(r.first.data, r.first.train_sha256) for r in self.rows})
        return pd.DataFrame(
            {
                "method": row.first.method,
                "recipe": ", ".join([row.first.name, *self._differing(row)]),
                "data": row.first.data
                + (f" (images {row.first.train_sha256[:8]})" if images[row.first.data] > 1 else ""),
                "epochs": str(row.first.epochs),
                "measured by": row.measure,
                **{metric: mean_text(row.figures.get(metric, []), "z.1f") for metric in METRICS},
                "seeds": f"n = {len(row.runs)}",
                "time to train": f"{duration(statistics.median(run.seconds for run in row.runs))}, "
                f"{row.first.hardware}, {row.first.precision}",
                "published": f"{each.value:.1f}" if (each := self.beside(row)) else "-",
            }
            for row in self.rows
        )

    def _differing(self, row: Row) -> list[str]:
        """Return in what a row differs from others of its name, where no other cell tells it."""
        run, alike = row.first, [each.first for each in self.rows if each.first.name == row.first.name]
        shipped = alike[0].recipe if run.changed is None else shipped_leaves(run.name)
        return [
            f"{_leaf(key)} {_value(run.recipe[key])}"
            for key in run.recipe
            if any(key in each.recipe and each.recipe[key] != shipped.get(key, ...) for each in alike)
            and any(each.recipe.get(key, ...) != run.recipe[key] for each in alike)
            and not key.startswith("data.")
            and key not in _TOLD
        ]

    def beside(self, row: Row) -> Published | None:
        """Return the published figure of a row: of the shipped recipe, measured by such a protocol."""
        found, changed = self.published.get(row.first.name), row.first.changed
        if found is None or changed is None or row.evaluated is None:
            return None
        kind = "linear" if row.evaluated.protocol == "linear_full" else row.evaluated.protocol
        return found if kind == found.protocol and all(map(_NO_MATTER.fullmatch, changed)) else None

    def markdown(self) -> str:
        """Return the table in Markdown, a part for each data set, with what has to be said below it."""
        frame = self.frame()
        parts = []
        for data, part in frame.groupby("data", sort=False):
            shown = part.drop(columns="data").assign(
                recipe=part["recipe"].str.replace(r"^([^,]*)", r"`\1`", regex=True)
            )
            if (shown[["medium", "few"]] == "-").all(axis=None):  # "many" is the accuracy once more
                shown = shown.drop(columns=list(METRICS[1:]))
            if (shown["published"] == "-").all():
                shown = shown.drop(columns="published")
            numbers = {*METRICS, "epochs", "published"}
            left = [place for place, name in enumerate(shown.columns) if name not in numbers]
            parts += [
                f"**{escaped(data)}**",
                markdown_table(list(shown), shown.to_numpy().tolist(), left=left),
            ]
        parts.append(self.reading())
        if notes := self.notes():
            parts.append("\n".join(f"- {escaped(note)}" for note in notes))
        return "\n\n".join(parts) + "\n"

    def reading(self) -> str:
        """Return what the figures of the rows are."""
        used = dict.fromkeys(row.measure for row in self.rows)
        return " ".join(
            [
                "Top-1 accuracy in percent on the test split. Mean over seeds ± sample standard deviation; a "
                "single seed has no spread. Many, medium, few: classes with more than 100, 20 to 100, fewer "
                "than 20 training images.",
                *(f"{capital(name)}: {_PROTOCOLS[name]}." for name in used if name in _PROTOCOLS),
                *(["The last epoch counts."] if {r.counted for r in self.records} == {"last epoch"} else []),
                "Time: of the training alone, median over seeds.",
            ]
        )

    def notes(self) -> list[str]:
        """Return what has to be known of the rows: of published figures, changed recipes and single rows."""
        said: dict[str, dict[str, None]] = {}  # what is said of several is said once
        for row in self.rows:
            if each := self.beside(row):
                here = "".join(
                    f" Here with {key} {_value(now)}, the recipe has {_value(shipped)}."
                    for key, (shipped, now) in (row.first.changed or {}).items()
                )
                text = f": {_sentence(each.source)} What differs: {_sentence(each.differs)}{here}"
                said.setdefault(text, {})[
                    f"{row.first.method} (`{row.first.name}`), published {each.value:.1f}"
                ] = None
        notes = [f"{'; '.join(named)}{text}" for text, named in said.items()]
        said = {}
        for name in dict.fromkeys(row.first.name for row in self.rows):
            same = [row for row in self.rows if row.first.name == name]
            changes = [row.first.changed or {} for row in same]
            shared = {k: v for k, v in changes[0].items() if all(c.get(k) == v for c in changes)}
            if shared and not any(map(self.beside, same)):
                words = ", ".join(f"{key} {_value(now)}" for key, (_, now) in shared.items())
                said.setdefault(words, {})[f"`{name}`"] = None
        notes += [f"{', '.join(who)} here with {words}." for words, who in said.items()]
        for row, recipe in zip(self.rows, self.frame()["recipe"], strict=True):
            notes += [f"{row.first.method} (`{recipe}`, {row.first.data}): {note}." for note in row.notes]
        return notes

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

    Everything is read from the releases' own records. A run that lies in several places is counted once;
    runs share a row where recipe (but for the seed and how it is computed), images (by their hash) and
    evaluation are the same.

    Args:
        names: folders, in which everything is taken that lies below them (sweeps, releases, and files in
            folders called `results`), releases by name, or files `results.json`; also in one list.
        out: folder for `results.md`, `results.json` and `results.png`; None writes nothing.
        readme: a Markdown file, in which the table takes the place of what stands between `BEGIN` and `END`.

    Raises:
        ZooError: for a name that is none of these, or a folder without any run; for a README without its
            marks; if something cannot be written.
    """
    each_one = listed(names)
    if not each_one:
        raise ZooError("table: found no name, expected folders, releases or results.json, e.g. runs")
    records = find(each_one)
    if not records:
        raise ZooError("table: found no finished run, expected one or several")
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
    """Return the last word of a key that says something."""
    words = key.split(".")
    return (words[-2] if words[-1] in ("name", "kind") and len(words) > 1 else words[-1]).replace("_", " ")


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."
