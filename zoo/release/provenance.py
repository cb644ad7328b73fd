"""What a release's weights come from: the releases its training began with, their names and the licence."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from zoo.config import dump_yaml
from zoo.errors import ReleaseError, is_printable
from zoo.files import is_dir, writing
from zoo.release import format

START, TEACHERS = "init.release", "objective.distill.teachers"

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
        if _is_folder(name):
            raise ReleaseError(
                f'{folder / format.RECIPE}: {key} is the folder "{name}", which others cannot read. Push '
                "that release first, then this one with --start ORG/NAME, which then stands in the recipe"
            )


def rename(folder: Path, config: Mapping[str, Any], new: str, other: Mapping[str, Any]) -> None:
    """Write another name of the start, or of a teacher, into the recipe, which is the same in all else.

    `config` is that of the release in `folder`; that of the release called `new`, `other`, has the hashes
    that say what is renamed. A `ReleaseError` refuses a folder, and what the training did not begin with.
    """
    recipe = format.read_recipe(folder)
    own = origins(recipe, format.read_metrics(folder)["training"], folder)
    old = {each.name for each in own if each.sha256 == sha256_of(each.key, other)}
    if _is_folder(new) or not old:
        began = began_with(recipe) or "started from random weights"
        expected = (
            f"found the folder {new}, expected ORG/NAME" if _is_folder(new) else f'nothing of it is "{new}"'
        )
        raise ReleaseError(f"{folder / format.RECIPE}: the training {began}; {expected}")
    if start_of(recipe) in old:
        recipe["init"]["release"] = new
    if teachers := teachers_of(recipe):
        recipe["objective"]["distill"]["teachers"] = [new if name in old else name for name in teachers]
    with writing(str(folder), ReleaseError), format.replacing(folder) as staging:
        (staging / format.RECIPE).write_text(dump_yaml(recipe), encoding="utf-8")
        changed = {**config["zoo"], "recipe_sha256": format.sha256(staging / format.RECIPE)}
        (staging / format.CONFIG).write_text(format.to_json({**config, "zoo": changed}), encoding="utf-8")


def _is_folder(name: str) -> bool:
    return name.startswith(("/", "~", "./", "../")) or is_dir(name)
