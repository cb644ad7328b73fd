"""Rows of results as a table for people: cells, Markdown, and the sentences below it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from zoo.errors import capital
from zoo.evaluation.results.rows import GROUPS, Published, Row, Unfinished
from zoo.markdown import escaped, markdown_table

_PROTOCOLS = {
    "classifier": "the learned classifier or class centers as they stand",
    "linear_full": "the published linear evaluation of the frozen encoder",
    "linear": "a linear probe on cached features of the frozen encoder",
    "linear, balanced": "such a probe whose classes are weighted inversely to their images, which gives rare "
    "ones more than the unweighted one does: not to be compared with that",
    "knn": "a vote of the nearest training images",
}
_TOLD = ("training.epochs", "objective.feature_transform")  # by other columns
_LONGEST = 30  # characters of a value
_MOST = 12  # runs that are named
_ONE_TABLE = 12  # rows


class Line(NamedTuple):
    """A row in words.

    Attributes:
        method: what was trained.
        recipe: its name, and in what the row differs from others of that name.
        data: with its imbalance.
        row: what it says.
        published: beside it; None where it is of another training or protocol than the row.
    """

    method: str
    recipe: str
    data: str
    row: Row
    published: Published | None


def lines(rows: Sequence[Row], published: Mapping[str, Published]) -> list[Line]:
    """Return every row in words that tell it from the others."""
    data = _data(rows)
    return [
        Line(row.first.method, recipe, words, row, _beside(row, published))
        for row, recipe, words in zip(rows, _recipes(rows), data, strict=True)
    ]


def _beside(row: Row, published: Mapping[str, Published]) -> Published | None:
    found = published.get(row.first.name)
    return found if found is not None and found.is_of(row) else None


def measured_groups(shown: Sequence[Line]) -> list[str]:
    """Return which accuracies the lines have: overall, and by shot where that is not the same once more."""
    figures = [line.row.figures for line in shown]
    found = [name for name in GROUPS if any(name in each for each in figures)]
    same = len(found) == 2 and all(each.get(found[0]) == each.get(found[1]) for each in figures)
    return found[:1] if same else found


def cells(shown: Sequence[Line]) -> list[list[str]]:
    """Return headings and a line of cells per row, without columns that would be empty."""
    metrics = measured_groups(shown)
    beside = any(line.published for line in shown)
    head = [
        *("method", "recipe", "data", "epochs", "measured by"),
        *(GROUPS[name] for name in metrics),
        *("seeds", "time to train", *(["published"] if beside else [])),
    ]
    body = []
    for line in shown:
        row = line.row
        figures = (row.figures.get(name) for name in metrics)
        body.append(
            [
                *(line.method, line.recipe, line.data, str(row.first.epochs)),
                "-" if row.evaluated is None else row.evaluated.measure,
                *("-" if found is None else str(found) for found in figures),
                f"n = {len(row.runs)}",
                _times(row),
                *([_published(line.published)] if beside else []),
            ]
        )
    return [head, *body]


def markdown(shown: Sequence[Line], unfinished: Sequence[Unfinished], left_out: Sequence[str]) -> str:
    """Return the table and what has to be said below it, without a heading."""
    parts = [*_tables(shown), reading(shown)] if shown else ["No finished run."]
    if said := notes(shown, unfinished, left_out):
        parts.append("\n".join(f"- {escaped(note)}" for note in said))
    return "\n\n".join(parts) + "\n"


def _tables(shown: Sequence[Line]) -> list[str]:
    """Return one table, or where that is long one for each data set, below its name."""
    blocks: dict[str, list[Line]] = {}
    for line in shown:
        blocks.setdefault(line.data, []).append(line)
    if len(blocks) == 1 or len(shown) <= _ONE_TABLE:
        return [_table(cells(shown))]
    parts = []
    for data, own in blocks.items():
        found = cells(own)
        place = found[0].index("data")
        parts += [
            f"**{escaped(data)}**",
            _table([[*row[:place], *row[place + 1 :]] for row in found]),
        ]
    return parts


def _table(found: Sequence[Sequence[str]]) -> str:
    head, *body = found
    right = {*GROUPS.values(), "epochs", "published"}
    code = head.index("recipe")
    rows = [[*row[:code], _code(row[code]), *row[code + 1 :]] for row in body]
    return markdown_table(head, rows, left=[place for place, name in enumerate(head) if name not in right])


def notes(shown: Sequence[Line], unfinished: Sequence[Unfinished], left_out: Sequence[str]) -> list[str]:
    """Return what has to be known of the rows, and of what is in none."""
    return [*_published_notes(shown), *_row_notes(shown), *_not_counted(unfinished, left_out)]


def duration(seconds: float) -> str:
    """Write a time with two or three figures."""
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _times(row: Row) -> str:
    return "; ".join(
        f"{duration(statistics.median(seconds))}, {machine}" for machine, seconds in row.times.items()
    )


def _published(found: Published | None) -> str:
    if found is None:
        return "-"
    metric = "" if found.metric == "accuracy" else f" ({found.metric.replace('_accuracy', '')})"
    return f"{found.value:.1f}{metric}"


def _recipes(rows: Sequence[Row]) -> list[str]:
    """Name each row's recipe, and in what rows of one name differ where no other cell tells it."""
    named = [row.first.changed or {} for row in rows]
    found = []
    for row, changed in zip(rows, named, strict=True):
        alike = [other for each, other in zip(rows, named, strict=True) if each.first.name == row.first.name]
        keys = [key for key in _keys(alike) if any(other.get(key) != changed.get(key) for other in alike)]
        shipped = {key: pair[0] for other in alike for key, pair in other.items()}
        words = [
            f"{_leaf(key)} {_value(changed[key][1] if key in changed else shipped[key])}"
            for key in keys
            if not key.startswith("data.")
            and key not in _TOLD
            # of a section that this row replaces whole the shipped values are not its own
            and not any(key.startswith(f"{section}.") for section in changed)
        ]
        found.append(", ".join([row.first.name, *words]))
    said = [
        (row.first.method, text, row.first.data, row.first.train_sha256, row.first.epochs)
        for row, text in zip(rows, found, strict=True)
    ]
    return [  # what no words tell apart has its recipe's hash
        text if said.count(all_of) == 1 else f"{text}, recipe {row.first.group[:8]}"
        for row, text, all_of in zip(rows, found, said, strict=True)
    ]


def _keys(changes: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for each in changes for key in each))


def _leaf(key: str) -> str:
    """Return the last word of a key that says something."""
    words = key.split(".")
    return (words[-2] if words[-1] in ("name", "kind") and len(words) > 1 else words[-1]).replace("_", " ")


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "given"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _data(rows: Sequence[Row]) -> list[str]:
    """Name each row's data, with profile, or the hashes of the images, where one name stands for several."""
    known = {row.first.train_sha256: row.first.profile for row in rows if row.first.profile is not None}
    profiles: dict[str, set[str]] = {}
    for row in rows:
        if row.first.train_sha256 in known:
            profiles.setdefault(row.first.data, set()).add(known[row.first.train_sha256])
    named = []
    for row in rows:
        several = len(profiles.get(row.first.data, ())) > 1 and row.first.train_sha256 in known
        profile = f" ({known[row.first.train_sha256]} profile)" if several else ""
        named.append(f"{row.first.data}{profile}")
    images = [
        (row.first.train_sha256, None if row.evaluated is None else row.evaluated.test_sha256) for row in rows
    ]
    found = []
    for words, (train, test) in zip(named, images, strict=True):
        alike = [each for other, each in zip(named, images, strict=True) if other == words]
        other_train = len({each[0] for each in alike}) > 1
        other_test = len({each[1] for each in alike if each[1] is not None}) > 1
        told = [f"training images {train[:8]}"] if other_train else []
        told += [f"test images {test[:8]}"] if other_test and test is not None else []
        found.append(f"{words} ({', '.join(told)})" if told else words)
    return found


def reading(shown: Sequence[Line]) -> str:
    """Say what the columns mean."""
    figures = [found for line in shown for found in line.row.figures.values()]
    several = any(found.deviation is not None for found in figures)
    texts = ["Top-1 accuracy in percent on the test split."]
    if several:
        texts.append("Mean over seeds ± sample standard deviation; a single seed has no spread.")
    elif figures:
        texts.append("Each of a single seed: without a spread.")
    if len(measured_groups(shown)) > 1:
        texts.append(
            "Many, medium, few: classes with more than 100, 20 to 100, fewer than 20 training images."
        )
    used = dict.fromkeys(line.row.evaluated.measure for line in shown if line.row.evaluated is not None)
    texts += [f"{capital(name)}: {_PROTOCOLS[name]}." for name in used if name in _PROTOCOLS]
    if all(line.row.first.counted == "last epoch" for line in shown):
        texts.append("The last epoch counts.")
    texts.append(f"Time: of the training alone{', median over seeds' if several else ''}.")
    return " ".join(texts)


def _published_notes(shown: Sequence[Line]) -> list[str]:
    found: dict[str, dict[str, None]] = {}  # what is said of several is said once
    for line in shown:
        each, name = line.published, line.row.first.name
        if each is not None:
            here = "".join(
                f" Here with {key} {_value(pair[1])}, the recipe has {_value(pair[0])}."
                for key, pair in (line.row.first.changed or {}).items()
            )
            said = f"{_sentence(each.source)} What differs: {_sentence(each.differs)}{here}"
            found.setdefault(said, {})[f"{line.method} (`{name}`), published {_published(each)}"] = None
    return [f"{'; '.join(figures)}: {said}" for said, figures in found.items()]


def _row_notes(shown: Sequence[Line]) -> list[str]:
    notes = [
        f"{line.method} (`{line.recipe}`, {line.data}): {note}." for line in shown for note in line.row.notes
    ]
    common = dict[str, dict[str, None]]()  # what is said of several is said once
    for line in shown:
        name = line.row.first.name
        same = [other for other in shown if other.row.first.name == name]
        alike = [other.row.first.changed or {} for other in same]
        keys = [key for key in _keys(alike) if all(other.get(key) == alike[0].get(key) for other in alike)]
        if keys and not any(other.published for other in same):  # with a published figure it is said there
            words = ", ".join(f"{key} {_value(alike[0][key][1])}" for key in keys)
            common.setdefault(words, {})[f"`{name}`"] = None
    return [*(f"{', '.join(names)} here with {words}." for words, names in common.items()), *notes]


def _not_counted(unfinished: Sequence[Unfinished], left_out: Sequence[str]) -> list[str]:
    notes = []
    if unfinished:
        named = [
            f"`{each.name}`{'' if each.seed is None else f' seed {each.seed}'} ({each.state})"
            for each in unfinished[:_MOST]
        ]
        more = f"; and {len(unfinished) - _MOST} more" if len(unfinished) > _MOST else ""
        are = "runs are" if len(unfinished) > 1 else "run is"
        notes.append(f"{len(unfinished)} {are} not finished and not counted: {'; '.join(named)}{more}.")
    if left_out:
        texts = list(dict.fromkeys(left_out))
        more = f"; and {len(texts) - _MOST} more" if len(texts) > _MOST else ""
        notes.append(f"Not counted: {'; '.join(texts[:_MOST])}{more}.")
    return notes


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _code(text: str) -> str:
    """Set a recipe's name in a code's letters, with what follows it as it is."""
    name, comma, rest = text.partition(", ")
    return f"`{name}`{comma}{rest}"
