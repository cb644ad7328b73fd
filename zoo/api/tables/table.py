"""`zoo.table`: the results of finished trainings as one table, from their own records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from zoo import catalog
from zoo.api.given import listed
from zoo.api.sweep_file import is_sweep, read_sweep
from zoo.api.tables.finished import RESULTS, Finished, read_results
from zoo.api.tables.unfinished import still_open
from zoo.errors import RecipeError, ZooError, did_you_mean
from zoo.evaluation.figures.results import plot_results
from zoo.evaluation.results.order import in_order
from zoo.evaluation.results.rows import Published, RunResult, Unfinished, in_rows
from zoo.evaluation.results.table import Line, cells, lines, markdown, notes, reading
from zoo.files import exists, is_dir, is_file, read_text, write_text, writing
from zoo.release import Release
from zoo.release.files import replacing

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
"""Between these lines of a README stands the table."""

FILES = ("results.png", "results.svg", "results.md", RESULTS)

_LARGEST = 1 << 24  # bytes of a README


@dataclass(frozen=True)
class Results:
    """Finished trainings as a table.

    Attributes:
        lines: the rows, each of the runs that differ in the seed alone.
        runs: every finished run once, also those that no row counts.
        unfinished: those that were planned or begun, with how far they are.
        left_out: why others are not counted.
    """

    lines: Sequence[Line]
    runs: Sequence[RunResult]
    unfinished: Sequence[Unfinished]
    left_out: Sequence[str]

    def cells(self) -> list[list[str]]:
        """Return headings and a line of cells for each row."""
        return cells(self.lines)

    def markdown(self) -> str:
        """Return the table in Markdown, with what has to be said below it."""
        return markdown(self.lines, self.unfinished, self.left_out)

    def reading(self) -> str:
        """Return what the figures of the rows are."""
        return reading(self.lines)

    def notes(self) -> list[str]:
        """Return what has to be known of the rows, and of what is in none."""
        return notes(self.lines, self.unfinished, self.left_out)

    def record(self) -> dict[str, Any]:
        """Return what `results.json` holds: every run's numbers, and the rows made of them."""
        return {
            "format": 1,
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "rows": [_row(line) for line in self.lines],
            "runs": [run.model_dump() for run in self.runs],
            "unfinished": [each.model_dump() for each in self.unfinished],
            "left_out": list(self.left_out),
        }

    def write(self, out: Path) -> list[Path]:
        """Write `results.md`, `results.json` and, where there is a number, the picture, all or none.

        Raises:
            ZooError: if something else lies there under these names, or it cannot be written.
        """
        _check_out(out)
        with writing(f'results in "{out}"'), replacing(out, last=RESULTS, stale=FILES) as staging:
            drawn = plot_results(self.lines, [staging / name for name in FILES[:2]])
            picture = "\n![Accuracy of each row, with every seed and what was published](results.png)\n"
            text = f"# Results\n\n{self.markdown()}{picture if drawn else ''}"
            write_text(staging / FILES[2], text)
            write_text(staging / RESULTS, json.dumps(self.record(), indent=1) + "\n")
        return [out / name for name in FILES if (out / name).exists()]


def table(
    *names: str | Path | Release | Sequence[str | Path | Release],
    out: str | Path | None = None,
    published: Sequence[str | Path] | None = None,
    readme: str | Path | None = None,
) -> Results:
    """Put the results of finished trainings into one table: means over seeds, time, published figures.

    Everything is read from the releases' own records. A run that lies in several places is counted once;
    runs share a row where recipe (but for the seed and how it is computed), images (by their hash) and
    evaluation are the same. Unfinished runs are named, not counted; one of a finished run's recipe and seed
    is that run where the images are the same, by the hash that a run and a plan have recorded. Data sets and
    rows are in the order of `zoo.evaluation.results.order.in_order`.

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
    found = Finished()
    for name in each_one:
        found.add(name)
    made = results_of(found, beside)
    if out is not None:
        made.write(Path(out))
    if readme is not None and around is not None:
        before, after = around
        with writing(f'"{readme}"'):
            write_text(Path(readme), f"{before}{BEGIN}\n\n{made.markdown()}\n{END}{after}")
    return made


def results_of(found: Finished, published: Mapping[str, Published]) -> Results:
    """Make a table of what was found."""
    rows, runs, twice = in_rows(found.runs)
    unfinished, taken = still_open(found.unfinished, found.planned, runs)
    return Results(
        lines(in_order(rows), published),
        runs,
        unfinished,
        [*found.left_out, *twice, *taken],
    )


def published_figures(sweeps: Sequence[str | Path] | None) -> dict[str, Published]:
    """Return the published figures of sweeps by recipe; of all shipped ones when None.

    Raises:
        ZooError: for what is no sweep, or where two of those given say different things of a recipe.
    """
    found: dict[str, Published] = {}
    if isinstance(sweeps, str | Path):
        raise ZooError(f"published: found {str(sweeps)!r}, expected a list of sweeps")
    for name in catalog.list_sweeps() if sweeps is None else sweeps:
        if not is_sweep(name):
            hint = did_you_mean(name, catalog.list_sweeps())
            raise RecipeError(f'published: "{name}" is neither a shipped sweep nor the file of one.{hint}')
        for recipe, figure in read_sweep(name).published.items():
            if found.setdefault(recipe, figure) != figure:
                raise RecipeError(f'published: "{name}" says of {recipe} something else than a sweep before')
    return found


def _row(line: Line) -> dict[str, Any]:
    row = line.row
    return {
        "method": line.method,
        "recipe": line.recipe,
        "data": line.data,
        "protocol": None if row.evaluated is None else row.evaluated.protocol,
        "seeds": [run.seed for run in row.runs],
        "weights_sha256": [run.weights_sha256 for run in row.runs],
        "figures": {
            name: {"mean": each.mean, "deviation": each.deviation, "n": len(each.values)}
            for name, each in row.figures.items()
        },
        "seconds": row.times,
        "published": None if line.published is None else line.published.model_dump(),
        "notes": list(row.notes),
    }


def _check_out(out: Path) -> None:
    """Refuse to write over what no table made."""
    if exists(out) and not is_dir(out):
        raise ZooError(f'"{out}" is no folder; choose another --out')
    if is_file(out / RESULTS):
        try:
            read_results(out / RESULTS)
        except ZooError as error:
            raise ZooError(f"{error}; it is left as it is, choose another --out") from None


def _around(readme: Path) -> tuple[str, str]:
    """Return what stands before and after the table."""
    try:
        text = read_text(readme, _LARGEST)
    except (OSError, UnicodeDecodeError) as error:
        raise ZooError(f'"{readme}" cannot be read: {error}') from None
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in before or END in after:
        raise ZooError(
            f'"{readme}": found {text.count(BEGIN)} x {BEGIN} and {text.count(END)} x {END}, expected one of '
            "each, in this order"
        )
    return before, after
