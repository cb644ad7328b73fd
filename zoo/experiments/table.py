"""`zoo.table`: the results of finished trainings as one table, from their own records."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from zoo.config import listed
from zoo.errors import ZooError, capital
from zoo.experiments.plot import plot_rows
from zoo.experiments.reading import RESULTS, as_json, find, read_results
from zoo.experiments.record import RunRecord, shipped_leaves
from zoo.experiments.rows import METRICS, Row, in_rows
from zoo.experiments.statistics import duration
from zoo.experiments.sweep_file import Published, published_figures
from zoo.files import exists, is_dir, is_file, read_text, write_text, writing
from zoo.markdown import escaped, markdown_table
from zoo.release import Release

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
"""Between these lines of a README stands the table."""

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

_TOLD = ("training.epochs", "objective.feature_transform")  # by other columns
_LONGEST, _MOST, _ONE_TABLE = 30, 12, 12  # characters of a value, names that are listed, rows of one table


@dataclass(frozen=True)
class Results:
    """Finished trainings as a table.

    Attributes:
        rows: each of the runs that differ in the seed alone.
        records: every finished run once, also those that no row counts.
        published: figures by recipe.
        unfinished: folders of runs that have no release.
        left_out: why other runs are not counted.
    """

    rows: Sequence[Row]
    records: Sequence[RunRecord]
    published: Mapping[str, Published]
    unfinished: Sequence[str] = ()
    left_out: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        records: Sequence[RunRecord],
        published: Mapping[str, Published],
        unfinished: Sequence[str] = (),
        left_out: Sequence[str] = (),
    ) -> Results:
        """Make a table of records."""
        rows, twice = in_rows(records)
        return cls(rows, records, published, unfinished, [*left_out, *twice])

    def frame(self, data: str | None = None) -> pd.DataFrame:
        """Return the table, a line of cells for each row, without columns that would be empty.

        Args:
            data: the only data set whose rows are wanted.
        """
        named = zip(self.rows, _recipes(self.rows), _data(self.rows), strict=True)
        chosen = [each for each in named if data in (None, each[2])]
        metrics = measured([row for row, _, _ in chosen])
        frame = pd.DataFrame(
            {
                "method": row.first.method,
                "recipe": recipe,
                "data": name,
                "epochs": str(row.first.epochs),
                "measured by": row.measure,
                **{metric: str(row.figures.get(metric, "-")) for metric in metrics},
                "seeds": f"n = {len(row.runs)}",
                "time to train": _times(row),
                "published": str(self.beside(row) or "-"),
            }
            for row, recipe, name in chosen
        )
        unpublished = len(frame) and (frame["published"] == "-").all()
        return frame.drop(columns="published") if unpublished else frame

    def beside(self, row: Row) -> Published | None:
        """Return the published figure of a row: of the shipped recipe, measured by such a protocol."""
        found, changed = self.published.get(row.first.name), row.first.changed
        if found is None or changed is None or row.evaluated is None:
            return None
        kind = "linear" if row.evaluated.protocol == "linear_full" else row.evaluated.protocol
        comparable = kind == found.protocol or (found.protocol is None and kind in ("classifier", "linear"))
        return found if comparable and all(map(_NO_MATTER.fullmatch, changed)) else None

    def markdown(self) -> str:
        """Return the table in Markdown, with what has to be said below it, without a heading."""
        frame = self.frame()
        if not len(frame):
            parts = ["No finished run."]
        elif frame["data"].nunique() == 1 or len(frame) <= _ONE_TABLE:
            parts = [_table(frame), self.reading()]
        else:  # a long one is divided by the data
            parts = []
            for data in frame["data"].unique():
                parts += [f"**{escaped(data)}**", _table(self.frame(data).drop(columns="data"))]
            parts.append(self.reading())
        if notes := self.notes():
            parts.append("\n".join(f"- {escaped(note)}" for note in notes))
        return "\n\n".join(parts) + "\n"

    def reading(self) -> str:
        """Return what the figures of the rows are."""
        several = any(len(each.values) > 1 for row in self.rows for each in row.figures.values())
        texts = ["Top-1 accuracy in percent on the test split."]
        if several:
            texts.append("Mean over seeds ± sample standard deviation; a single seed has no spread.")
        elif self.rows:
            texts.append("Each of a single seed: without a spread.")
        if len(measured(self.rows)) > 1:
            texts.append(
                "Many, medium, few: classes with more than 100, 20 to 100, fewer than 20 training images."
            )
        used = dict.fromkeys(row.measure for row in self.rows)
        texts += [f"{capital(name)}: {_PROTOCOLS[name]}." for name in used if name in _PROTOCOLS]
        if all(row.first.counted == "last epoch" for row in self.rows):
            texts.append("The last epoch counts.")
        texts.append(f"Time: of the training alone{', median over seeds' if several else ''}.")
        return " ".join(texts)

    def notes(self) -> list[str]:
        """Return what has to be known of the rows, and of what is in none."""
        said: dict[str, dict[str, None]] = {}  # what is said of several is said once
        for row in self.rows:
            if each := self.beside(row):
                here = "".join(
                    f" Here with {key} {_value(now)}, the recipe has {_value(shipped)}."
                    for key, (shipped, now) in (row.first.changed or {}).items()
                )
                text = f"{_sentence(each.source)} What differs: {_sentence(each.differs)}{here}"
                said.setdefault(text, {})[f"{row.first.method} (`{row.first.name}`), published {each}"] = None
        notes = [f"{'; '.join(who)}: {text}" for text, who in said.items()]
        notes += self._changed_everywhere()
        for row, recipe in zip(self.rows, _recipes(self.rows), strict=True):
            notes += [f"{row.first.method} (`{recipe}`, {row.first.data}): {note}." for note in row.notes]
        if self.unfinished:
            notes.append(f"{len(self.unfinished)} not finished and not counted: {_few(self.unfinished)}.")
        if self.left_out:
            notes.append(f"Not counted: {_few(list(dict.fromkeys(self.left_out)))}.")
        return notes

    def _changed_everywhere(self) -> list[str]:
        """Say once what all rows of a recipe have changed; with a published figure it is said there."""
        common: dict[str, dict[str, None]] = {}
        for name in dict.fromkeys(row.first.name for row in self.rows):
            same = [row for row in self.rows if row.first.name == name]
            changes = [row.first.changed or {} for row in same]
            shared = {k: v for k, v in changes[0].items() if all(c.get(k) == v for c in changes)}
            if shared and not any(map(self.beside, same)):
                words = ", ".join(f"{key} {_value(now)}" for key, (_, now) in shared.items())
                common.setdefault(words, {})[f"`{name}`"] = None
        return [f"{', '.join(names)} here with {words}." for words, names in common.items()]

    def write(self, out: Path) -> None:
        """Write `results.md`, `results.json`, `results.png` and `.svg`.

        Raises:
            ZooError: if something else lies there under these names, or it cannot be written.
        """
        if exists(out) and not is_dir(out):
            raise ZooError(f'"{out}" is no folder; choose another --out')
        if is_file(out / RESULTS):
            try:
                read_results(out / RESULTS)
            except ZooError as error:
                raise ZooError(f"{error}; it is left as it is, choose another --out") from None
        with writing(f'results in "{out}"'):
            out.mkdir(parents=True, exist_ok=True)
            drawn = plot_rows(self, [out / "results.png", out / "results.svg"])
            picture = "\n![Accuracy of each row, with every seed and what was published](results.png)\n"
            write_text(out / "results.md", f"# Results\n\n{self.markdown()}{picture if drawn else ''}")
            write_text(out / RESULTS, as_json(self.records))


def table(
    *names: str | Path | Release | Sequence[str | Path | Release],
    out: str | Path | None = None,
    published: Sequence[str | Path] | None = None,
    readme: str | Path | None = None,
) -> Results:
    """Put the results of finished trainings into one table: means over seeds, time, published figures.

    Everything is read from the releases' own records. A run that lies in several places is counted once;
    runs share a row where recipe (but for the seed and how it is computed), images (by their hash) and
    evaluation are the same. Unfinished runs are named, not counted.

    Args:
        names: folders, in which everything is taken that lies below them (sweeps, runs, releases, and files
            in folders called `results`), releases by name, or files `results.json`; also in one list.
        out: folder for `results.md`, `results.json`, `results.png` and `.svg`; None writes nothing.
        published: sweeps, by name or file, with published figures; None: all shipped ones.
        readme: a Markdown file, in which the table takes the place of what stands between `BEGIN` and `END`.

    Raises:
        ZooError: for a name that is none of these, or a folder without any run; for a README without its
            marks; if something cannot be written.
    """
    each_one = listed(names)
    if not each_one:
        raise ZooError("table: found no name, expected folders, releases or results.json, e.g. runs")
    beside = published_figures(published)
    around = None if readme is None else _around(Path(readme))
    found = find(each_one)
    made = Results.of(found.records, beside, found.unfinished, found.left_out)
    if out is not None:
        made.write(Path(out))
    if readme is not None and around is not None:
        with writing(f'"{readme}"'):
            write_text(Path(readme), f"{around[0]}{BEGIN}\n\n{made.markdown()}\n{END}{around[1]}")
    return made


def _around(readme: Path) -> tuple[str, str]:
    """Return what stands before and after the table."""
    try:
        text = read_text(readme, 1 << 24)
    except (OSError, UnicodeDecodeError) as error:
        raise ZooError(f'"{readme}" cannot be read: {error}') from None
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ZooError(
            f'"{readme}": found {text.count(BEGIN)} x {BEGIN} and {text.count(END)} x {END}, expected one of '
            "each, in this order"
        )
    return text.partition(BEGIN)[0], text.partition(END)[2]


def measured(rows: Sequence[Row]) -> list[str]:
    """Return which accuracies rows have: overall, and by shot where that is not the same once more."""
    found = [name for name in METRICS if any(name in row.figures for row in rows)]
    same = len(found) == 2 and all(row.figures.get(found[0]) == row.figures.get(found[1]) for row in rows)
    return found[:1] if same else found


def _data(rows: Sequence[Row]) -> list[str]:
    """Name each row's data, with the beginning of the images' hash where one name stands for several."""
    images: dict[str, set[str]] = {}
    for row in rows:
        images.setdefault(row.first.data, set()).add(row.first.train_sha256)
    return [
        row.first.data
        + (f" (images {row.first.train_sha256[:8]})" if len(images[row.first.data]) > 1 else "")
        for row in rows
    ]


def _recipes(rows: Sequence[Row]) -> list[str]:
    """Name each row's recipe, and in what rows of one name differ where no other cell tells it."""
    found = []
    for row in rows:
        alike = [other.first for other in rows if other.first.name == row.first.name]
        shipped = alike[0].recipe if row.first.changed is None else shipped_leaves(row.first.name)
        keys = [
            key
            for key in dict.fromkeys(key for run in alike for key in run.recipe)
            if any(shipped.get(key, ...) != run.recipe[key] for run in alike if key in run.recipe)
            and len({json.dumps(run.recipe.get(key, "-"), sort_keys=True) for run in alike}) > 1
            and not key.startswith(("data.", "training.seed"))
        ]
        words = [
            f"{_leaf(key)} {_value(row.first.recipe[key])}"
            for key in keys
            if key in row.first.recipe and key not in (*_TOLD, "group") and len(alike) > 1
        ]
        found.append(", ".join([row.first.name, *words]))
    cells = [
        (text, row.first.method, row.first.data, row.first.train_sha256, row.first.epochs)
        for row, text in zip(rows, found, strict=True)
    ]
    return [  # what no words tell apart has its weights' hash
        text if cells.count(cell) == 1 else f"{text}, weights {row.first.weights_sha256[:8]}"
        for row, text, cell in zip(rows, found, cells, strict=True)
    ]


def _leaf(key: str) -> str:
    """Return the last word of a key that says something."""
    words = key.split(".")
    return (words[-2] if words[-1] in ("name", "kind") and len(words) > 1 else words[-1]).replace("_", " ")


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _times(row: Row) -> str:
    frame = pd.DataFrame({"on": [f"{r.hardware}, {r.precision}" for r in row.runs]})
    frame["seconds"] = [run.seconds for run in row.runs]
    of = frame.groupby("on", sort=False)["seconds"]
    return "; ".join(f"{duration(statistics.median(seconds))}, {on}" for on, seconds in of)


def _table(frame: pd.DataFrame) -> str:
    frame = frame.assign(recipe=frame["recipe"].str.replace(r"^([^,]*)", r"`\1`", regex=True))
    numbers = {*METRICS, "epochs", "published"}
    left = [place for place, name in enumerate(frame.columns) if name not in numbers]
    return markdown_table(list(frame.columns), frame.to_numpy().tolist(), left=left)


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _few(texts: Sequence[str]) -> str:
    return "; ".join(texts[:_MOST]) + (f"; and {len(texts) - _MOST} more" if len(texts) > _MOST else "")
