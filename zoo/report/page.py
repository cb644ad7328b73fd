"""The page of a report: one HTML file that opens from the disk, loads nothing and runs no script."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jinja2
import numpy as np
from markupsafe import Markup, escape
from scipy import stats

from zoo.report.figures import Drawn
from zoo.report.labels import differences
from zoo.report.overlay import groups_of
from zoo.report.subject import Subject

_LARGEST_SVG = 300_000  # bytes; a larger figure is shown as PNG
_POLICY = "default-src 'none'; img-src data:; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'"
_SECTIONS = {
    "accuracy": "Accuracy of the releases' own evaluations: percent, test split; test_images: of how many",
    "features": "Features of the sample of test images",
    "recorded": "Recorded while training: means over the last fifth of the records",
    "deviation": "How much it still moves: standard deviation over the same records, drift and noise alike",
    "unsteadiness": "How steady it is: standard deviation of the differences between neighbours of these "
    "records, by √2 and by the size of their mean",
    "balance": "Balance: mean over the most frequent third of the classes by mean over the rarest third",
}
"""First part of a number's name, and the caption of the table of those; others are in numbers.json alone."""


class Estimate(NamedTuple):
    """Mean of a number over the seeds that have it, and half the width of its 95 % interval.

    The interval is t(0.975, n - 1) s / sqrt(n), s the sample's standard deviation; None of one value, and of
    equal ones, which say nothing of chance.
    """

    mean: float
    half_width: float | None
    seeds: int

    def __str__(self) -> str:
        """Write the mean, and the interval to its second figure."""
        if self.half_width is None:
            return f"{self.mean:.4g}"
        places = min(max(1 - math.floor(math.log10(self.half_width)), 0), 6)
        low, high = self.mean - self.half_width, self.mean + self.half_width
        return f"{self.mean:.{places}f} [{low:.{places}f}, {high:.{places}f}]"


class Table(NamedTuple):
    """A table of texts: what it shows, a heading for each column, and rows that begin with their own."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of a number over seeds and its 95 % interval."""
    mean, count = math.fsum(values) / len(values), len(values)
    if len({*values}) == 1:
        return Estimate(mean, None, count)
    error = float(np.std(values, ddof=1)) / math.sqrt(count)
    return Estimate(mean, float(stats.t.ppf(0.975, count - 1)) * error, count)


def estimates(subjects: Sequence[Subject]) -> dict[str, dict[str, Estimate]]:
    """Return every number of every group over the subjects that have it, by group and name."""
    found: dict[str, dict[str, Estimate]] = {}
    for group in groups_of(subjects):
        names = dict.fromkeys(name for member in group.subjects for name in member.numbers)
        found[group.label] = {
            name: estimate([m.numbers[name] for m in group.subjects if name in m.numbers]) for name in names
        }
    return found


def number_tables(subjects: Sequence[Subject]) -> list[Table]:
    """Return the tables of all numbers: a row for each, a column for each group of subjects."""
    by_group = estimates(subjects)
    sizes = {group.label: len(group.subjects) for group in groups_of(subjects)}
    heads = [label if size == 1 else f"{label} ({size} seeds)" for label, size in sizes.items()]
    names = sorted({name for numbers in by_group.values() for name in numbers})
    tables = []
    for section, caption in _SECTIONS.items():
        rows = []
        for name in (name for name in names if name.startswith(f"{section}/")):
            found = [numbers.get(name) for numbers in by_group.values()]
            pairs = zip(found, sizes.values(), strict=True)
            cells = ["-" if each is None else _cell(each, size) for each, size in pairs]
            rows.append([name.partition("/")[2], *cells])
        if rows:
            several = max(sizes.values()) > 1
            over = "; in brackets: 95 % interval of the mean over seeds (Student's t)" if several else ""
            tables.append(Table(f"{caption}{over}.", ["", *heads], rows))
    return tables


def _cell(found: Estimate, size: int) -> str:
    return str(found) if found.seeds == size else f"{found} (of {found.seeds})"


def difference_table(subjects: Sequence[Subject]) -> Table | None:
    """Return in what the recipes differ, a row for each key; None where they do not."""
    found = differences([subject.recipe for subject in subjects])
    rows = [[key, *values] for key, values in found.items()]
    caption = "Every key with its value in each recipe, but for how and where it was computed."
    return Table(caption, ["", *(subject.label for subject in subjects)], rows) if rows else None


def fact_table(facts: Mapping[str, Mapping[str, str]]) -> Table:
    """Return what is known of each subject, by label: a row for each fact, a column for each subject."""
    names = dict.fromkeys(name for each in facts.values() for name in each)
    rows = [[name, *(each.get(name, "-") for each in facts.values())] for name in names]
    return Table("Releases and runs, and the images that were looked at.", ["", *facts], rows)


def render(
    title: str,
    subjects: Sequence[Subject],
    facts: Mapping[str, Mapping[str, str]],
    figures: Sequence[Drawn],
    made: Mapping[str, str],
) -> str:
    """Return the report.

    The document allows its own style sheet, by its hash, and images inside it; anything else a browser would
    refuse to load (Content-Security-Policy).

    Args:
        title: heading.
        subjects: with their numbers.
        facts: what is known of each, by label.
        figures: drawn or missing, which lie in the folder `figures` beside the page.
        made: how the report came to be: sample, seed, versions, date, command.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("zoo.report", ""),
        autoescape=True,  # names of files, classes and recipes are others' text
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["breakable"] = _breakable
    style = environment.get_template("page.css").render()
    missing: dict[str, list[str]] = {}
    for each in figures:
        if each.missing is not None:
            missing.setdefault(each.missing, []).append(each.title)
    text = environment.get_template("page.html.j2").render(
        title=title,
        facts=fact_table(facts),
        differences=difference_table(subjects),
        figures=[(each, *_shown(each)) for each in figures if each.missing is None],
        tables=number_tables(subjects),
        missing=missing,
        made=made,
        style=Markup(style),  # our own file
        policy=_POLICY.format(base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()),
    )
    # a file's name need not be text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _shown(figure: Drawn) -> tuple[str, str]:
    """Return the address of an image within the page, and of which subjects it is not."""
    assert figure.png is not None and figure.svg is not None  # it is not missing
    file = figure.svg if figure.svg.stat().st_size <= _LARGEST_SVG else figure.png
    kind = "image/svg+xml" if file == figure.svg else "image/png"
    left_out = "; ".join(f"{label}: {reason}" for label, reason in figure.left_out.items())
    return f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}", left_out


def _breakable(text: str) -> Markup:
    """Return text in which a long name may go on in the next line after a mark."""
    return Markup(re.sub(r"([_.,/=])(?=\w)", r"\1<wbr>", str(escape(text))))  # no such mark is in an entity
