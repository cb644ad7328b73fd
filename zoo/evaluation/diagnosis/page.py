"""What a report says beside its figures: tables, a page of the caller's, what is known of each subject."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Table(NamedTuple):
    """A table of texts.

    Attributes:
        caption: what it shows, with unit; also read out by screen readers.
        head: one heading for each column.
        rows: cells; the first of each row is its heading, the others are set as numbers are.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class Picture(NamedTuple):
    """A picture that the report carries with it.

    Attributes:
        file: .png or .svg.
        alt: what it shows, for who cannot see it.
        caption: data, seeds, how to read it.
    """

    file: Path
    alt: str
    caption: str


@dataclass(frozen=True)
class Page:
    """What a report begins with, e.g. the question of a sweep and what was found.

    Attributes:
        title: of the whole report.
        paragraphs: plain text.
        commands: lines for a shell, with which all of it can be made again.
        tables: shown after the paragraphs.
        pictures: shown after the tables.
    """

    title: str
    paragraphs: Sequence[str] = ()
    commands: Sequence[str] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()


@dataclass(frozen=True)
class About:
    """What is known of one subject beside its numbers.

    Attributes:
        label: of the subject.
        facts: name and text, in the order in which they are shown.
        notes: what could not be had of it, each with the reason.
    """

    label: str
    facts: Mapping[str, str]
    notes: Sequence[str] = field(default=())
