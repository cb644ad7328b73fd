"""`zoo.table`: the results of finished trainings as one table, from their own records."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import pandas as pd
from pydantic import Field

from zoo import catalog
from zoo.config import Config, listed, load_yaml, parse
from zoo.errors import ZooError
from zoo.experiments.records import RESULTS, Evaluated, RunRecord, as_json, find
from zoo.experiments.statistics import draw_numbers, duration, mean_text
from zoo.files import read_text, write_text, writing
from zoo.release import Release
from zoo.release.card import escaped, markdown_table
from zoo.release.evaluations import PREFERRED

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
class Results:
    """Finished trainings as a table.

    Attributes:
        records: every finished run once.
        frame: one line of cells (text) for the runs that differ in the seed alone.
        notes: what has to be known of each line.
        numbers: the figures of each run, indexed by `point`, its line, and `seed`.
    """

    records: Sequence[RunRecord]
    frame: pd.DataFrame
    notes: Sequence[str]
    numbers: pd.DataFrame

    def markdown(self) -> str:
        """Return the table in Markdown: a part for each data set, a legend, and notes."""
        parts = []
        for data, part in self.frame.groupby("data", sort=False):
            recipe = part["recipe"].str.replace(r"^([^,]*)", r"`\1`", regex=True)
            shown = part.drop(columns="data").assign(recipe=recipe)
            if (shown[["medium", "few"]] == "-").all(axis=None):  # balanced data: "many" repeats the accuracy
                shown = shown.drop(columns=list(METRICS[1:]))
            if (shown["published"] == "-").all():
                shown = shown.drop(columns="published")
            numbers = {*METRICS, "epochs", "published"}
            words = [place for place, name in enumerate(shown.columns) if name not in numbers]
            table = markdown_table(list(shown), shown.to_numpy().tolist(), left=words)
            parts += [f"**{escaped(data)}**", table]
        notes = "\n".join(f"- {escaped(note)}" for note in self.notes)
        return "\n\n".join([*parts, LEGEND, *filter(None, [notes])]) + "\n"

    def write(self, out: Path) -> None:
        """Write `results.md`, `results.json` and `results.png`; raise `ZooError` if that fails."""
        with writing(f'results in "{out}"'):
            out.mkdir(parents=True, exist_ok=True)
            draw_numbers(self.numbers, out / "results.png")
            write_text(out / "results.md", f"# Results\n\n{self.markdown()}")
            write_text(out / RESULTS, as_json(self.records))


def tabulate(records: Sequence[RunRecord], published: Mapping[str, Published]) -> Results:
    """Put records into lines and sort them as papers' tables do.

    Data sets: the larger first (by the images before a long tail was cut), of one the most imbalanced first.
    Within one: by accuracy. Images that go by several names, because they were read in different ways, are
    shown by the shortest; other images of the same name by their hash.
    """
    longest_first = sorted(records, key=lambda run: len(run.data), reverse=True)
    names = {run.train_sha256: run.data for run in longest_first}
    sizes: Counter[str] = Counter()
    groups: defaultdict[str, list[RunRecord]] = defaultdict(list)
    for run in records:
        base, data = run.data.partition(", ")[0], names[run.train_sha256]
        sizes[base] = max(sizes[base], run.classes * run.largest)
        data += f", images {run.train_sha256[:8]}" if [*names.values()].count(data) > 1 else ""
        groups[run.group].append(run.model_copy(update={"data": data}))

    def place(line: Line) -> tuple[Any, ...]:
        run, base = line.first, line.first.data.partition(", ")[0]
        imbalance = run.imbalance or run.largest / max(run.smallest, 1)
        accuracy = line.figures["accuracy"].mean() if "accuracy" in line.figures else -1
        return -sizes[base], base, -imbalance, run.data, -accuracy, run.name, run.group

    lines = sorted(map(measured, groups.values()), key=place)
    cells, notes, numbers = [], defaultdict[str, list[str]](list), []
    for line in lines:
        run, figure = line.first, _published_figure(line, published)
        recipe = ", ".join([run.name, *_distinguishing(run, [each.first for each in lines])])
        time = duration(statistics.median(each.seconds for each in line.runs))
        cells.append(
            {
                "method": run.method,
                "recipe": recipe,
                "data": run.data,
                "epochs": str(run.epochs),
                "measured by": "-" if line.evaluated is None else line.evaluated.measure,
                **{name: mean_text([*line.figures.get(name, [])], "z.1f") for name in METRICS},
                "seeds": f"n = {len(line.runs)}",
                "time to train": f"{time}, {run.hardware}, {run.precision}",
                "published": "-" if figure is None else f"{figure.value:.1f}",
            }
        )
        for note in _notes(line, figure):  # lines with the same notes share one
            notes[note].append(f"`{recipe}`")
        numbers.append(line.figures.assign(point=f"{run.method}, {recipe}, {run.data}"))
    texts = [f"{', '.join(dict.fromkeys(recipes))}: {note}." for note, recipes in notes.items()]
    found = pd.concat(numbers).reset_index().set_index(["point", "seed"])
    return Results(records, pd.DataFrame(cells), texts, found)


class Line(NamedTuple):
    """Runs that differ in the seed alone, one of each seed; the evaluation they share, and its figures."""

    runs: Sequence[RunRecord]
    evaluated: Evaluated | None
    figures: pd.DataFrame

    @property
    def first(self) -> RunRecord:
        """A run, for what all of them have in common."""
        return self.runs[0]


def measured(records: Sequence[RunRecord]) -> Line:
    """Return runs that differ in the seed, those that have the preferred evaluation of the first.

    Of several trainings with one seed the earliest counts, since they are not independent samples.
    """
    latest_first = sorted(records, key=lambda run: (run.date, run.weights_sha256), reverse=True)
    runs = sorted({run.seed: run for run in latest_first}.values(), key=lambda run: run.seed)
    chosen = min(
        (each for each in runs[0].evaluations if "accuracy" in each.metrics),
        # a classifier as it stands comes before one with a prior subtracted
        key=lambda each: (*(name != each.protocol for name in PREFERRED), len(each.settings), each.kind),
        default=None,
    )
    if chosen is None:
        return Line(runs, None, pd.DataFrame())
    found = {run.seed: each.metrics for run in runs if (each := run.evaluated(chosen.kind))}
    figures = pd.DataFrame.from_dict(found, orient="index").rename_axis("seed").reindex(columns=METRICS)
    return Line([run for run in runs if run.seed in found], chosen, figures.dropna(axis=1))


def _notes(line: Line, published: Published | None) -> Iterator[str]:
    """Yield what a reader has to know of a line."""
    if published is not None:
        yield f"published: {published.source.rstrip('.')}; {published.differs.rstrip('.')}"
    if line.evaluated is None:
        yield "no evaluation on its own data"
    yield from sorted({run.counted for run in line.runs} - {"last epoch"})
    yield from dict.fromkeys(note for run in line.runs for note in run.noted)
    if changed := line.first.changed:
        yield f"changed from the recipe: {', '.join(f'{key} {_plain(now)}' for key, now in changed.items())}"


def _published_figure(line: Line, published: Mapping[str, Published]) -> Published | None:
    """Return the published figure of a line: of the shipped recipe, measured by the same protocol."""
    found, changed = published.get(line.first.name), line.first.changed
    if found is None or changed is None or line.evaluated is None:
        return None
    same = line.evaluated.protocol.removesuffix("_full") == found.protocol
    return found if same and all(map(_SAME_RESULT.fullmatch, changed)) else None


def _distinguishing(run: RunRecord, others: Sequence[RunRecord]) -> list[str]:
    """Return the values in which a run differs from others of its name and from the shipped recipe."""
    alike = [each for each in others if each.name == run.name]
    keys = {key for each in alike for key in (each.recipe if each.changed is None else each.changed)}
    return [
        f"{_leaf(key)} {_plain(value)}"
        for key, value in run.recipe.items()
        if key in keys and any(each.recipe.get(key, ...) != value for each in alike)
        if not key.startswith("data.") and key not in _OWN_COLUMN
    ]


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
    if not (records := find(listed(names))):
        raise ZooError("table: found no name, expected folders, releases or results.json, e.g. runs")
    made = tabulate(records, published_figures())
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


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
