"""Provenance of a release's weights: initial weights, teachers, licence and training history."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.resources import files
from os.path import isdir
from pathlib import Path
from typing import Any

from zoo.errors import ReleaseError
from zoo.release import format, schema

START, TEACHERS = "init.release", "objective.distill.teachers"
_MOST_ROWS, _MOST_CLASS_ROWS = 400, 8  # of a history: more than a figure can show, in 100 kB

LICENSES = frozenset(files("zoo.release").joinpath("licenses.txt").read_text(encoding="utf-8").split())
"""Listed at https://huggingface.co/docs/hub/repositories-licenses, June 2026; any other is `other`."""


def license_on_hub(license: str) -> tuple[str, str | None]:
    """Return a card's metadata for a licence: `license`, and `license_name` if the Hub does not list it."""
    name = license.lower()
    return (name, None) if name in LICENSES else ("other", re.sub(r"[^a-z0-9.]+", "-", name).strip("-."))


def card_metadata(folder: Path) -> dict[str, Any]:
    """Return the metadata of the card in `folder`; empty if there is none that can be read."""
    from huggingface_hub import metadata_load

    with suppress(Exception):  # a user may have written anything
        return metadata_load(folder / format.CARD) or {}
    return {}


def license_of(folder: Path, config: Mapping[str, Any]) -> str:
    """Return a release's licence: the config's, unless somebody edited it in the card, as on the Hub."""
    license, data = str(config["pretrained_cfg"]["license"]), card_metadata(folder)
    stated = data.get("license_name", data.get("license"))
    is_known = not isinstance(stated, str) or stated in (license, *license_on_hub(license))
    return license if is_known else str(stated)[:200]


def start_of(recipe: Mapping[str, Any]) -> str | None:
    """Return the release that a recipe's training started from; None for random weights or a conversion."""
    start = (recipe.get("init") or {}).get("release")
    return start if isinstance(start, str) else None


def teachers_of(recipe: Mapping[str, Any]) -> list[str]:
    """Return the names of a recipe's teachers for distillation, in the recipe's order."""
    distill = (recipe.get("objective") or {}).get("distill")
    teachers = distill.get("teachers") if isinstance(distill, Mapping) else None
    return [name for name in teachers if isinstance(name, str)] if isinstance(teachers, list) else []


def describe_origins(recipe: Mapping[str, Any]) -> str:
    """Describe a recipe's initial weights and teachers in words; '' if it has neither."""
    start, teachers = start_of(recipe), ", ".join(f'"{name}"' for name in teachers_of(recipe))
    words = [f'started from "{start}"' if start else "", f"learned from {teachers}" if teachers else ""]
    return " and ".join(filter(None, words))


def origins(recipe: Mapping[str, Any], training: Mapping[str, Any]) -> list[tuple[str, str, str | None]]:
    """Return the recipe key, name and recorded hash of a training's initial release and of each teacher."""
    start, teachers = start_of(recipe), teachers_of(recipe)
    rows = [] if start is None else [(START, start, training.get("init_weights_sha256"))]
    hashes = training.get("teacher_sha256") or [None] * len(teachers)
    if not isinstance(hashes, list) or len(hashes) != len(teachers):
        raise ReleaseError(f"training.teacher_sha256: found {hashes}, expected one of each of {teachers}")
    return rows + [(f"{TEACHERS}.{i}", name, hashes[i]) for i, name in enumerate(teachers)]


def sha256_of(key: str, config: Mapping[str, Any]) -> str:
    """Return the hash that a training records for the release at recipe key `key` with this `config.json`."""
    return str(config["zoo"]["weights_sha256"]) if key == START else teacher_sha256(config)


def teacher_sha256(config: Mapping[str, Any]) -> str:
    """Hash what determines a teacher's outputs: encoder, centers and the normalisation of pixels."""
    zoo, pixels = config["zoo"], config["pretrained_cfg"]
    parts = [zoo["weights_sha256"], zoo["centers_sha256"], [*pixels["mean"]], [*pixels["std"]]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def check_public(folder: Path) -> None:
    """Raise a `ReleaseError` if the recipe names its initial weights or teachers by a local path."""
    for key, name, _ in origins(format.read_recipe(folder), {}):
        if name.startswith(("/", "~", "./", "../")) or isdir(name):
            expected = "expected a published one: push it first, and train from ORG/NAME"
            raise ReleaseError(f'{folder / format.RECIPE}: {key}: found the folder "{name}", {expected}')


def gather_history(
    rows: Sequence[Mapping[str, Any]], class_rows: Sequence[Mapping[str, Any]]
) -> dict[str, Any] | None:
    """Make `history.json` from the rows of metrics.jsonl and classes.jsonl; None if there are none.

    `{"format": 1, "rows": [R], "columns": {"step": [R], "epoch": [R], NAME: [R]}, "classes": [{...}]}`. Above
    400 rows, each is the mean of a block of neighbours, at the step of its last; `rows` has the block sizes.
    Null marks a value that was not recorded. Up to 8 class rows are kept, evenly spaced, including the last.
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


def read_history(folder: Path) -> dict[str, Any] | None:
    """Read `history.json` in `folder`, None if there is none; a `ReleaseError` names the wrong key."""
    if not (file := folder / format.HISTORY).exists():
        return None
    history = format.read_json(file)
    schema.check(schema.History, history, str(file))
    return history
