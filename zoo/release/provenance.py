"""Where a release's weights come from: the releases its training began with, the licence, how it went."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from zoo.config import is_number
from zoo.errors import ReleaseError, is_printable
from zoo.files import is_dir
from zoo.release import format, schema

START, TEACHERS = "init.release", "objective.distill.teachers"
MOST_ROWS, MOST_CLASS_ROWS = 400, 8  # of a history: more than a figure shows, in 100 kB

LICENSES = frozenset(files("zoo.release").joinpath("licenses.txt").read_text(encoding="utf-8").split())
"""Those that the Hub lists; any other one is `other` there, with its own name.

https://huggingface.co/docs/hub/repositories-licenses as of June 2026, with openmdw-1.1 as its newest.
"""


def check_license(license: object, where: str = "licence") -> None:
    """Make sure that a card can name a licence; else a `ReleaseError` begins with `where`."""
    text = license if isinstance(license, str) else ""
    if not _slug(text) or not is_printable(text) or len(text) > 200:  # a name, not the text
        expected = "an identifier of the Hub's such as cc-by-4.0, or the licence's name in one line"
        raise ReleaseError(f"{where}: found {license!r:.200}, expected {expected}")


def license_on_hub(license: str) -> tuple[str, str | None]:
    """Return what a card's metadata say of a licence: `license`, and `license_name` where none is listed."""
    return (license.lower(), None) if license.lower() in LICENSES else ("other", _slug(license))


def _slug(text: str) -> str:
    """Return a text as the Hub takes names: lower-case letters, digits, "." and "-"."""
    return re.sub(r"[^a-z0-9.]+", "-", text.lower().replace("+", "-plus ")).strip("-.")


def inherited_license(licenses: Iterable[str]) -> str:
    """Return the licence of weights that were trained or distilled from weights with these licences.

    They keep a foreign one; of several that differ it is "other", and the card names them all.
    """
    others = {*licenses} - {format.LICENSE}
    return "other" if len(others) > 1 else next(iter(others), format.LICENSE)


def start_of(recipe: Mapping[str, Any]) -> str | None:
    """Return what a recipe's training started from; None for random weights, and of a conversion."""
    start = (recipe.get("init") or {}).get("release")
    return start if isinstance(start, str) else None


def teachers_of(recipe: Mapping[str, Any]) -> list[str]:
    """Return the releases that a recipe's student learns from beside the labels, in its order."""
    distill = (recipe.get("objective") or {}).get("distill")
    teachers = distill.get("teachers") if isinstance(distill, Mapping) else None
    return [name for name in teachers if isinstance(name, str)] if isinstance(teachers, list) else []


def began_with(recipe: Mapping[str, Any]) -> str:
    """Return what a recipe's training started and learned from, in words; '' for random weights."""
    start, teachers = start_of(recipe), ", ".join(f'"{name}"' for name in teachers_of(recipe))
    words = [f'started from "{start}"' if start else "", f"learned from {teachers}" if teachers else ""]
    return " and ".join(filter(None, words))


class Origin(NamedTuple):
    """A release that a training began with: the recipe's key and name of it, and its recorded hash."""

    key: str
    name: str
    sha256: str | None


def origins(recipe: Mapping[str, Any], training: Mapping[str, Any], where: object) -> list[Origin]:
    """Return the release that a training started from, if any, and its teachers, as it recorded them.

    A `ReleaseError`, which names the release `where`, refuses a record of other teachers than the recipe's.
    """
    start, teachers = start_of(recipe), teachers_of(recipe)
    recorded = training.get("teacher_sha256") or [None] * len(teachers)
    if not isinstance(recorded, list) or len(recorded) != len(teachers):
        expected = f"expected one of each of the {len(teachers)} teachers in {format.RECIPE}"
        raise ReleaseError(f"{where}: training.teacher_sha256: found {recorded!r}, {expected}")
    rows = [] if start is None else [Origin(START, start, training.get("init_weights_sha256"))]
    return rows + [Origin(f"{TEACHERS}.{i}", name, recorded[i]) for i, name in enumerate(teachers)]


def sha256_of(key: str, config: Mapping[str, Any]) -> str:
    """Return what a training records of a release with this `config.json` that its recipe names at `key`."""
    return str(config["zoo"]["weights_sha256"]) if key == START else teacher_sha256(config)


def teacher_sha256(config: Mapping[str, Any]) -> str:
    """Hash what decides a teacher's answer: encoder, centers, and the normalisation of pixels."""
    zoo, pixels = config["zoo"], config["pretrained_cfg"]
    parts = [zoo["weights_sha256"], zoo["centers_sha256"], [*pixels["mean"]], [*pixels["std"]]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def check_public(folder: Path) -> None:
    """Refuse, by a `ReleaseError`, to publish a path of this machine as what the training began with."""
    for key, name, _ in origins(format.read_recipe(folder), {}, folder):
        if name.startswith(("/", "~", "./", "../")) or is_dir(name):
            expected = "expected a published one: push it first, and train from ORG/NAME"
            raise ReleaseError(f'{folder / format.RECIPE}: {key}: found the folder "{name}", {expected}')


# --- history.json: how the training went
# {"format": 1, "rows": [R], "columns": {"step": [R], "epoch": [R], NAME: [R]}, "classes": [{...}]}: `rows` says
# of how many recorded rows each one is the mean; null in a column is a value that was not recorded. `classes`
# are rows of classes.jsonl.


def gather_history(
    rows: Sequence[Mapping[str, Any]], class_rows: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any] | None:
    """Make the history of `rows` of metrics.jsonl and `class_rows` of classes.jsonl; None if there are none.

    Above 400 rows every block of neighbours becomes the mean of what is finite in it, at the step of its
    last. Of the classes' rows 8 are kept, evenly spaced, the last one among them.
    """
    merged: dict[int, dict[str, Any]] = {}
    for row in rows:
        merged.setdefault(row["step"], {}).update(row)
    taken = [merged[step] for step in sorted(merged)]
    if not taken:
        return None
    blocks = np.array_split(np.array(taken, dtype=object), min(len(taken), MOST_ROWS))
    names = dict.fromkeys(name for row in taken for name in row if is_printable(name))
    columns = {name: [_mean(block, name) for block in blocks] for name in names}
    columns |= {name: [block[-1][name] for block in blocks] for name in ("step", "epoch")}
    kept = np.linspace(0, len(class_rows) - 1, MOST_CLASS_ROWS).round() if class_rows else np.empty(0)
    return {
        "format": 1,
        "rows": [len(block) for block in blocks],
        "columns": {name: values for name, values in columns.items() if any(v is not None for v in values)},
        "classes": [class_rows[index] for index in np.unique(kept.astype(int))],
    }


def _mean(rows: Iterable[Mapping[str, Any]], name: str) -> float | None:
    """Return the mean of a column's finite numbers, to six digits; None where there is none."""
    known = [row[name] for row in rows if is_number(row.get(name)) and math.isfinite(row[name])]
    return float(f"{math.fsum(known) / len(known):.6g}") if known else None


def history_rows(history: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a history as metrics.jsonl has them; what was not recorded is left out."""
    columns = history["columns"]
    rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def read_history(folder: Path) -> dict[str, Any] | None:
    """Read `history.json` in `folder`, None if there is none; a `ReleaseError` names the wrong key."""
    file = folder / format.HISTORY
    if not file.exists():
        return None
    history = format.read_json(file)
    schema.check(schema.History, history, str(file))
    return history
