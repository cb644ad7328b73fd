"""`zoo.table`: the results of finished trainings as one table, from their own records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field

from zoo import catalog
from zoo.config import Config, listed, load_yaml, parse
from zoo.errors import ZooError
from zoo.experiments.records import RESULTS, RunRecord, as_json, find
from zoo.experiments.statistics import duration, mean_text
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


class Published(Config):
    """A published figure of a recipe."""

    value: Annotated[float, Field(ge=0, le=100)]
    protocol: Literal["classifier", "linear", "knn"]
    """By the learned classifier, a linear one on the frozen encoder, or kNN."""
    source: str
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
    """

    records: Sequence[RunRecord]
    frame: pd.DataFrame
    notes: Sequence[str]

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
        """Write `results.md` and `results.json`; raise `ZooError` if that fails."""
        with writing(f'results in "{out}"'):
            write_text(out / "results.md", f"# Results\n\n{self.markdown()}")
            write_text(out / RESULTS, as_json(self.records))


def tabulate(records: Sequence[RunRecord], published: Mapping[str, Published]) -> Results:
    """Put records into lines, sorted as in papers: data sets by name, of one the most imbalanced first.

    Within one: by accuracy. Images that go by several names, because they were read in different ways, are
    shown by the shortest; other images of the same name by their hash. Of several trainings with one seed the
    earliest counts, since they are not independent samples.
    """
    runs = pd.DataFrame([_described(run, published.get(run.name), records) for run in records])
    runs = runs.sort_values("date").drop_duplicates(["group", "seeds"])
    runs["data"] = runs.groupby("images")["data"].transform(lambda names: min(names, key=len))
    ambiguous = runs.groupby("data")["images"].transform("nunique") > 1
    runs["data"] += (", images " + runs["images"].str[:8]).where(ambiguous, "")
    runs["base"] = runs["data"].str.partition(", ")[0]
    runs["mean"] = runs.groupby("group")["accuracy"].transform("mean")
    columns = {"base": True, "imbalance": False, "data": True, "mean": False, "group": True, "seeds": True}
    runs = runs.sort_values([*columns], ascending=[*columns.values()])
    line = {
        **dict.fromkeys(("method", "recipe", "data", "epochs", "measured by"), "first"),
        **dict.fromkeys(METRICS, partial(mean_text, form="z.1f")),
        "seeds": lambda seeds: f"n = {len(seeds)}",
        "time to train": lambda seconds: duration(seconds.median()),
        **dict.fromkeys(("published", "where"), "first"),
    }
    frame = runs.groupby("group", sort=False).agg(line).reset_index(drop=True)
    frame["time to train"] += ", " + frame.pop("where")
    notes = runs.drop_duplicates("group").explode("notes").groupby("notes", sort=False)["recipe"].unique()
    texts = [f"{', '.join(f'`{name}`' for name in names)}: {note}." for note, names in notes.items()]
    return Results(records, frame, texts)


def _described(run: RunRecord, published: Published | None, records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return what a run has for its line, by the preferred evaluation that it has."""
    chosen = min(
        (each for each in run.evaluations if "accuracy" in each.metrics),
        # a classifier as it stands comes before one with a prior subtracted
        key=lambda each: (*(name != each.protocol for name in PREFERRED), len(each.settings), each.kind),
        default=None,
    )
    weighted = chosen and chosen.protocol == "linear" and chosen.settings.get("balanced")
    changed, notes = run.changed, list(run.noted)
    same = chosen and published and chosen.protocol.removesuffix("_full") == published.protocol
    if not (same and changed is not None and all(map(_SAME_RESULT.fullmatch, changed))):
        published = None
    if published:
        notes.insert(0, f"published: {published.source.rstrip('.')}; {published.differs.rstrip('.')}")
    if changed:
        values = ", ".join(f"{key} {_plain(value)}" for key, value in changed.items())
        notes.append(f"changed from the recipe: {values}")
    return {
        "group": run.group + (chosen.kind if chosen else ""),
        "date": run.date,
        "images": run.train_sha256,
        "imbalance": run.largest / max(run.smallest, 1),
        "notes": notes,
        "where": f"{run.hardware}, {run.precision}",
        "method": run.method,
        "recipe": ", ".join([run.name, *_distinguishing(run, records)]),
        "data": run.data,
        "epochs": str(run.epochs),
        "measured by": chosen.protocol + (", balanced" if weighted else "") if chosen else "-",
        **{name: chosen.metrics.get(name) if chosen else None for name in METRICS},
        "seeds": run.seed,
        "time to train": run.seconds,
        "published": f"{published.value:.1f}" if published else "-",
    }


def _distinguishing(run: RunRecord, records: Iterable[RunRecord]) -> list[str]:
    """Return the values in which a run differs from others of its name and from the shipped recipe."""
    alike = [each for each in records if each.name == run.name]
    keys = {key for each in alike for key in (each.decisive if each.changed is None else each.changed)}
    return [
        f"{_leaf(key)} {_plain(value)}"
        for key, value in run.decisive.items()
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
        out: folder for `results.md` and `results.json`; None writes nothing.
        readme: a Markdown file in which the table replaces what stands between `BEGIN` and `END`.

    Raises:
        ZooError: for a name that is none of these, a folder without any run, or a README without its marks.
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
    return key.removesuffix(".name").removesuffix(".kind").rpartition(".")[2].replace("_", " ")


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
