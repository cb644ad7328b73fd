"""A report as one HTML file that opens from the disk: nothing external, no script, readable on a phone."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import jinja2
from markupsafe import Markup, escape
from PIL import Image

from zoo.evaluation.diagnosis.figures import Drawn
from zoo.evaluation.diagnosis.page import About, Page, Table

__all__ = ["Contents", "missing", "render"]

_SCALE = 1.3  # of a figure on a wide screen: its text is made for print
_PNG_DPI, _CSS_DPI = 200, 96
_POLICY = "default-src 'none'; img-src data:; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'"
_PARTS = {
    "Training": ("scores", "p_sup", "balance", "extra"),
    "Features": ("plane", "pairs", "hardness", "features", "neighbours"),
    "Classes": ("accuracy", "centers"),
}
"""Headings and the keys of the figures below each; figures of other keys come last."""


@dataclass(frozen=True)
class Contents:
    """All that a report says.

    Attributes:
        page: shown first; its title is the report's.
        subjects: what is known of each.
        differences: in what the recipes differ, where they do.
        accuracies: tables, shown before the figures.
        tables: of all other numbers, shown after them.
        figures: drawn or missing.
        made: how the report came to be: sample, seed, versions, date, and the `command` that makes it again.
    """

    page: Page
    subjects: Sequence[About]
    differences: Table | None
    accuracies: Sequence[Table]
    tables: Sequence[Table]
    figures: Sequence[Drawn]
    made: Mapping[str, str]


class _Shown(NamedTuple):
    """An `img` element: where its bytes are, and its size in CSS pixels."""

    source: str
    width: int
    height: int


class _Figure(NamedTuple):
    drawn: Drawn
    shown: _Shown
    files: dict[str, str]
    """Kind of file, and its address seen from the report."""


class _Part(NamedTuple):
    title: str
    id: str
    figures: list[_Figure]


def render(contents: Contents, folder: Path) -> str:
    """Return the report, for `report.html` in `folder`, where the figures lie.

    The document allows its own style sheet, by its hash, and images inside it; anything else a browser would
    refuse to load (Content-Security-Policy).
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("zoo.evaluation.diagnosis", ""),
        autoescape=True,  # names of files, classes and recipes are others' text
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["slug"] = _slug
    environment.filters["breakable"] = _breakable
    style = environment.get_template("report.css").render()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    drawn = [_figure(each, folder) for each in contents.figures if each.missing is None]
    text = environment.get_template("report.html.j2").render(
        contents=contents,
        page=contents.page,
        shared=_shared(contents.subjects),
        facts=_facts_table(contents.subjects),
        pictures=[(each, _shown(each.file)) for each in contents.page.pictures],
        parts=_parts(drawn),
        missing=missing(contents.figures),
        style=Markup(style),  # our own file
        policy=_POLICY.format(digest),
    )
    # a file's name need not be text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def missing(figures: Sequence[Drawn]) -> dict[str, list[str]]:
    """Return the reasons why figures are missing, each with their titles."""
    found: dict[str, list[str]] = {}
    for each in figures:
        if each.missing is not None:
            found.setdefault(each.missing, []).append(each.title)
    return found


def _shared(subjects: Sequence[About]) -> dict[str, str]:
    """Return the facts that are the same of all subjects; of a single one all."""
    first = subjects[0].facts
    return {
        name: text for name, text in first.items() if all(each.facts.get(name) == text for each in subjects)
    }


def _facts_table(subjects: Sequence[About]) -> Table | None:
    """Return the other facts, a row for each subject."""
    shared = _shared(subjects)
    names = dict.fromkeys(name for about in subjects for name in about.facts if name not in shared)
    if not names:
        return None
    rows = [[about.label, *(about.facts.get(name, "-") for name in names)] for about in subjects]
    return Table("The trainings side by side", ["", *names], rows)


def _parts(figures: Sequence[_Figure]) -> list[_Part]:
    known = {key for keys in _PARTS.values() for key in keys}
    parts = []
    for title, keys in _PARTS.items():
        members = {each.drawn.key: each for each in figures}
        parts.append(_Part(title, f"part-{_slug(title)}", [members[key] for key in keys if key in members]))
    parts.append(_Part("More", "part-more", [each for each in figures if each.drawn.key not in known]))
    return [part for part in parts if part.figures]


def _figure(drawn: Drawn, folder: Path) -> _Figure:
    files = {"PNG": drawn.png, "SVG": drawn.svg, "without caption": drawn.bare}
    addresses = {
        kind: file.relative_to(folder).as_posix() for kind, file in files.items() if file is not None
    }
    assert drawn.bare is not None  # what is not missing has a file
    return _Figure(drawn, _shown(drawn.bare), addresses)


def _shown(file: Path) -> _Shown:
    data = file.read_bytes()
    if file.suffix == ".svg":
        kind, (width, height) = "image/svg+xml", _svg_size(data)
    else:
        kind = "image/png"
        with Image.open(file) as image:
            width, height = (pixels * _CSS_DPI / _PNG_DPI for pixels in image.size)
    encoded = base64.b64encode(data).decode()
    return _Shown(f"data:{kind};base64,{encoded}", round(width * _SCALE), round(height * _SCALE))


def _svg_size(data: bytes) -> tuple[float, float]:
    """Return width and height in CSS pixels of an SVG of matplotlib, which gives them in points."""
    found = re.search(rb'<svg[^>]*?\bheight="([\d.]+)pt"[^>]*?\bwidth="([\d.]+)pt"', data) or re.search(
        rb'<svg[^>]*?\bwidth="([\d.]+)pt"[^>]*?\bheight="([\d.]+)pt"', data
    )
    assert found is not None
    first, second = (float(each) * _CSS_DPI / 72 for each in found.groups())
    return (second, first) if found[0].find(b"height") < found[0].find(b"width") else (first, second)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "part"


def _breakable(text: str) -> Markup:
    """Return text of a table's heading, where a long name may go on in the next line after a mark."""
    return Markup(re.sub(r"([_.,/=])(?=\w)", r"\1<wbr>", str(escape(text))))  # no such mark is in an entity
