"""`zoo.table`: a table of finished trainings, made from their records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

from zoo import catalog
from zoo.config import listed, load_yaml
from zoo.errors import RecipeError, ZooError
from zoo.experiments.records import Evaluated, ResultsFile, RunRecord, find
from zoo.files import read_text, write_text, writing
from zoo.release import Release
from zoo.release.card import escaped, markdown_table
from zoo.release.schema import PREFERRED

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
"""The marks in a README that enclose the table."""

METRICS = ("accuracy", "many", "medium", "few")  # columns of figures, in percent

LEGEND = (
    "Top-1 accuracy in percent on the test split: mean over seeds ± sample standard deviation. Many, medium, "
    "few: classes with more than 100, 20 to 100, fewer than 20 training images. Classifier: the learned one "
    "or class centers; linear: logistic regression on frozen features (balanced: classes count alike); "
    "linear_full: the published one. Time: of the training alone, median over seeds. Last epoch unless noted."
)
_SAME_RESULT = re.compile(r"training\.precision|data\.source\.download|views\.train\.\d+\.\d+\.variant")
"""Keys whose change does not hide the published figure; a note names the change."""
_OWN_COLUMN = ("training.epochs", "objective.feature_transform", "method.name")


@cache
def published_figures() -> dict[str, dict[str, Any]]:
    """Return the published figures by recipe: `value`, `protocol`, `source` and what `differs` here."""
    file = catalog.shared_folder("recipes") / "published" / "figures.yaml"
    return dict(load_yaml(read_text(file, RecipeError), file.name))


@dataclass(frozen=True)
class Results:
    """Finished trainings as a table.

    Attributes:
        records: every finished run, without duplicates.
        frame: one row of text cells for the runs that differ only in the seed.
        notes: remarks, to which the column `notes` refers by their numbers from 1.
    """

    records: list[RunRecord]
    frame: pd.DataFrame
    notes: Sequence[str]

    def markdown(self) -> str:
        """Return the table in Markdown: a section for each data set, a legend, and notes."""
        parts = []
        for data, part in self.frame.groupby("data", sort=False):
            recipe = part["recipe"].str.replace(r"^([^,]*)", r"`\1`", regex=True)
            shown = part.drop(columns="data").assign(recipe=recipe)
            if (shown[["medium", "few"]] == "-").all(axis=None):  # balanced data: "many" repeats the accuracy
                shown = shown.assign(many="-")
            shown = shown.loc[:, (shown != "-").any()]
            left = [i for i, name in enumerate(shown) if name not in (*METRICS, "epochs", "published")]
            table = markdown_table(list(shown), shown.to_numpy().tolist(), left)
            parts += [f"**{escaped(data)}**", table]
        notes = "\n".join(f"{number}. {escaped(note)}" for number, note in enumerate(self.notes, 1))
        return "\n\n".join([*parts, LEGEND, *filter(None, [notes])]) + "\n"

    def write(self, out: Path) -> None:
        """Write `results.md` and `results.json`; raise `ZooError` if that fails."""
        results = ResultsFile(format=2, runs=self.records).model_dump_json(indent=1)
        with writing(f'results in "{out}"'):
            write_text(out / "results.md", f"# Results\n\n{self.markdown()}")
            write_text(out / "results.json", results)


def tabulate(records: list[RunRecord]) -> Results:
    """Arrange records in rows, sorted as in papers: data sets by name, then the most imbalanced first.

    Within a data set rows are sorted by accuracy. Images with several names, because they were read in
    different ways, get the shortest; different images with the same name are shown by their hash. Of several
    trainings with one seed the earliest counts, since they are not independent samples.
    """
    runs = pd.DataFrame([_described(run, records) for run in records])
    runs["repeats"] = runs.groupby(["group", "seeds"])["date"].transform("size") - 1
    runs = runs.sort_values("date").drop_duplicates(["group", "seeds"])
    for own, repeats in zip(runs["notes"], runs.groupby("group")["repeats"].transform("sum"), strict=True):
        if repeats:
            own.append(f"later trainings with the same seeds, not counted: {repeats}")
    runs["data"] = runs.groupby("images")["data"].transform(lambda names: min(names, key=len))
    ambiguous = runs.groupby("data")["images"].transform("nunique") > 1
    runs["data"] += (", images " + runs["images"].str[:8]).where(ambiguous, "")
    runs["base"] = runs["data"].str.partition(", ")[0]
    runs["mean"] = runs.groupby("group")["accuracy"].transform("mean")
    columns = {"base": True, "imbalance": False, "data": True, "mean": False, "group": True, "seeds": True}
    runs = runs.sort_values([*columns], ascending=[*columns.values()])
    notes = list(runs["notes"].explode().dropna().unique())
    runs["notes"] = [", ".join(str(1 + notes.index(note)) for note in own) or "-" for own in runs["notes"]]
    line = {
        **dict.fromkeys(("method", "recipe", "data", "epochs", "measured by"), "first"),
        **dict.fromkeys(METRICS, partial(mean_text, form="z.1f")),
        "seeds": lambda seeds: f"n = {len(seeds)}",
        "time to train": lambda seconds: duration(seconds.median()),
        **dict.fromkeys(("published", "where", "notes"), "first"),
    }
    frame = runs.groupby("group", sort=False).agg(line).reset_index(drop=True)
    frame["time to train"] += ", " + frame.pop("where")
    return Results(records, frame, notes)


def _described(run: RunRecord, records: Sequence[RunRecord]) -> dict[str, Any]:
    """Return a run's cells, using its preferred evaluation."""
    chosen = min(
        (each for each in run.evaluations if "accuracy" in each.metrics),
        # an unchanged classifier is preferred to one with the prior subtracted
        key=lambda each: (*(name != each.protocol for name in PREFERRED), len(each.settings), each.kind),
        default=Evaluated(protocol="-", settings={}, test_sha256=None, metrics={}),
    )
    weighted = chosen.protocol == "linear" and chosen.settings.get("balanced")
    changed, notes, published = run.changed, list(run.noted), published_figures().get(run.name)
    same = published and chosen.protocol.removesuffix("_full") == published["protocol"]
    if not (same and changed is not None and all(map(_SAME_RESULT.fullmatch, changed))):
        published = None
    if published:
        notes.insert(0, f"published: {published['source'].rstrip('.')}. {published['differs'].rstrip('.')}")
    variant = _distinguishing(run, records)
    told = changed or (variant if len(variant) > 2 else {})
    if told:
        values = ", ".join(f"{key} {_plain(value)}" for key, value in told.items())
        notes.append(f"changed from the recipe: {values}" if changed else f"its values: {values}")
    short = [f"{_last(key)} {_plain(value)}" for key, value in variant.items()] if len(variant) <= 2 else []
    # a key that is null or false counts as absent, as in records from before the key existed
    decisive = {key: value for key, value in run.decisive.items() if value is not None and value is not False}
    return {
        "group": json.dumps([run.name, run.train_sha256, decisive, chosen.kind], sort_keys=True),
        "date": run.date,
        "images": run.train_sha256,
        "imbalance": run.largest / max(run.smallest, 1),
        "notes": notes,
        "where": f"{run.hardware}, {run.precision}",
        "method": run.method,
        "recipe": ", ".join([run.name, *short]),
        "data": run.data,
        "epochs": str(run.epochs),
        "measured by": chosen.protocol + (", balanced" if weighted else ""),
        **{name: chosen.metrics.get(name) for name in METRICS},
        "seeds": run.seed,
        "time to train": run.seconds,
        "published": f"{published['value']:.1f}" if published else "-",
    }


def _distinguishing(run: RunRecord, records: Iterable[RunRecord]) -> dict[str, Any]:
    """Return the values in which a run differs from others of its name and from the shipped recipe."""
    alike = [each for each in records if each.name == run.name]
    keys = run.decisive if run.changed is None else run.changed
    return {
        key: value
        for key, value in run.decisive.items()
        if key in keys and any(each.recipe.get(key, ...) != value for each in alike)
        if not key.startswith("data.") and key not in _OWN_COLUMN
    }


def _last(key: str) -> str:
    """Return the last word of a key: "objective.tau" is shown as "tau"."""
    return key.removesuffix(".name").removesuffix(".kind").rpartition(".")[2].replace("_", " ")


def table(
    *names: str | Path | Release | Sequence[str | Path | Release],
    out: str | Path | None = None,
    readme: str | Path | None = None,
) -> Results:
    """Make a table of finished trainings: means over seeds, time, published figures.

    Everything is read from the releases' own records. A run found in several places counts once; runs share
    a row if name, recipe (see `RunRecord.decisive`), images (by their hash) and evaluation are equal.

    Args:
        names: folders with runs at any depth (sweeps, releases, files in folders called `results`), releases
            by name, or files `results.json`; also in one list.
        out: folder for `results.md` and `results.json`; None writes nothing.
        readme: a Markdown file in which the table replaces the text between `BEGIN` and `END`.

    Raises:
        ZooError: for an invalid name, a folder without runs, or a README without the marks.
    """
    if not (records := find(listed(names))):
        raise ZooError("table: found no name, expected folders, releases or results.json, e.g. runs")
    made = tabulate(records)
    if out is not None:
        made.write(Path(out))
    if readme is not None:
        _replace(Path(readme), made.markdown())
    return made


def _replace(readme: Path, table: str) -> None:
    """Put a table between the marks of a README."""
    text = read_text(readme)
    if not (found := re.fullmatch(f"(?s)(.*{BEGIN}).*({END}.*)", text)):
        raise ZooError(f'"{readme}": expected a line {BEGIN} and, below it, {END}')
    with writing(f'"{readme}"'):
        write_text(readme, f"{found[1]}\n\n{table}\n{found[2]}")


def mean_text(values: Sequence[float] | pd.Series, form: str = ".3g") -> str:
    """Return `mean ± sample standard deviation`, a single value alone, or `-`; NaN counts as missing."""
    known = pd.Series(values, dtype=float).dropna()
    if known.empty:
        return "-"
    return f"{known.mean():{form}}" + (f" ± {known.std():{form}}" if len(known) > 1 else "")


def duration(seconds: float) -> str:
    """Format a time with two or three digits."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
