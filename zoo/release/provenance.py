"""The origin of a release's weights: initial weights and teachers, licence, history of the training."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from os.path import isdir
from pathlib import Path
from typing import Any

from zoo.errors import ReleaseError
from zoo.release import format, schema

START, TEACHERS = "init.release", "objective.distill.teachers"
_MOST_ROWS, _MOST_CLASS_ROWS = 400, 8  # in a history: more than a plot can show, in 100 kB

LICENSES = frozenset(files("zoo.release").joinpath("licenses.txt").read_text(encoding="utf-8").split())
"""Those of https://huggingface.co/docs/hub/repositories-licenses, June 2026; any other is `other` there."""


def license_on_hub(license: str) -> tuple[str, str | None]:
    """Return a card's metadata for a licence: `license`, and `license_name` if the Hub does not list it."""
    name = license.lower()
    return (name, None) if name in LICENSES else ("other", re.sub(r"[^a-z0-9.]+", "-", name).strip("-."))


def start_of(recipe: Mapping[str, Any]) -> str | None:
    """Return the weights that a recipe's training started from; None for random weights and conversions."""
    start = (recipe.get("init") or {}).get("release")
    return start if isinstance(start, str) else None


def teachers_of(recipe: Mapping[str, Any]) -> list[str]:
    """Return the teachers in a recipe, in order."""
    distill = (recipe.get("objective") or {}).get("distill")
    teachers = distill.get("teachers") if isinstance(distill, Mapping) else None
    return [name for name in teachers if isinstance(name, str)] if isinstance(teachers, list) else []


def began_with(recipe: Mapping[str, Any]) -> str:
    """Describe the initial weights and teachers of a recipe's training; '' if there are none."""
    start, teachers = start_of(recipe), ", ".join(f'"{name}"' for name in teachers_of(recipe))
    words = [f'started from "{start}"' if start else "", f"learned from {teachers}" if teachers else ""]
    return " and ".join(filter(None, words))


def origins(recipe: Mapping[str, Any], training: Mapping[str, Any]) -> list[tuple[str, str, str | None]]:
    """Return key, name and recorded hash of a training's initial weights and teachers."""
    start, teachers = start_of(recipe), teachers_of(recipe)
    rows = [] if start is None else [(START, start, training.get("init_weights_sha256"))]
    hashes = training.get("teacher_sha256") or [None] * len(teachers)
    if not isinstance(hashes, list) or len(hashes) != len(teachers):
        raise ReleaseError(f"training.teacher_sha256: found {hashes}, expected one of each of {teachers}")
    return rows + [(f"{TEACHERS}.{i}", name, hashes[i]) for i, name in enumerate(teachers)]


def sha256_of(key: str, config: Mapping[str, Any]) -> str:
    """Return the hash that a training records for a release named at `key`, given its `config.json`."""
    return str(config["zoo"]["weights_sha256"]) if key == START else teacher_sha256(config)


def teacher_sha256(config: Mapping[str, Any]) -> str:
    """Hash everything that determines a teacher's logits: encoder, centers and pixel normalisation."""
    zoo, pixels = config["zoo"], config["pretrained_cfg"]
    parts = [zoo["weights_sha256"], zoo["centers_sha256"], [*pixels["mean"]], [*pixels["std"]]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def check_public(folder: Path) -> None:
    """Raise ReleaseError if the recipe names a path on this machine as initial weights or teacher."""
    for key, name, _ in origins(format.read_recipe(folder), {}):
        if name.startswith(("/", "~", "./", "../")) or isdir(name):
            expected = "expected a published one: push it first, and train from ORG/NAME"
            raise ReleaseError(f'{folder / format.RECIPE}: {key}: found the folder "{name}", {expected}')


def gather_history(
    rows: Sequence[Mapping[str, Any]], class_rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Build `history.json` from the rows of metrics.jsonl and classes.jsonl; None if there are none.

    `{"format": 1, "rows": [R], "columns": {"step": [R], "epoch": [R], NAME: [R]}, "classes": [{...}]}`. If
    there are more than 400 rows, neighbours are averaged in blocks, at the step of the last; `rows` has the
    block sizes. Null: not recorded. At most 8 class rows are kept, evenly spaced and including the last.
    """
    import numpy as np
    import pandas as pd

    if not rows:
        return None
    table = pd.DataFrame(rows).groupby("step", as_index=False).last().select_dtypes("number")
    table = table.replace([math.inf, -math.inf], math.nan)
    groups = table.groupby(np.arange(len(table)) * min(len(table), _MOST_ROWS) // len(table))
    means = groups.mean().map(lambda value: float(f"{value:.6g}")).dropna(axis="columns", how="all")
    means[["step", "epoch"]] = groups[["step", "epoch"]].last()
    means = means.astype(object).where(means.notna(), None)
    kept = np.unique(np.linspace(0, len(class_rows) - 1, _MOST_CLASS_ROWS).round().astype(int))
    return {
        "format": 1,
        "rows": groups.size().tolist(),
        "columns": means.to_dict("list"),
        "classes": [class_rows[index] for index in kept] if class_rows else [],
    }


def history_rows(history: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a history in the form of metrics.jsonl, without values that were not recorded."""
    columns = history["columns"]
    rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def read_history(folder: Path) -> dict[str, Any] | None:
    """Read `history.json` in `folder`, None if there is none; ReleaseError names an invalid key."""
    if not (file := folder / format.HISTORY).exists():
        return None
    history = format.read_json(file)
    schema.check(schema.History, history, str(file))
    return history
