"""What a training began with: the releases it started and learned from, their names and their licence."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from zoo.errors import ReleaseError
from zoo.files import is_dir
from zoo.release import format

START, TEACHERS = "init.release", "objective.distill.teachers"


class Origin(NamedTuple):
    """A release that a training began with.

    Attributes:
        key: of the recipe, where it is named.
        name: as it is written there.
        sha256: recorded by the training, of the start's weights or of a teacher (`teacher_sha256`); None
            where it is not.
    """

    key: str
    name: str
    sha256: str | None


def origins(recipe: Mapping[str, Any], training: Mapping[str, Any], where: object) -> list[Origin]:
    """Return what a training started from, unless that is random or timm's weights, and its teachers.

    Args:
        recipe: plain.
        training: the section of metrics.json.
        where: the release, for errors.

    Raises:
        ReleaseError: for a record of other teachers than the recipe names.
    """
    start, teachers = format.start_of(recipe), format.teachers_of(recipe)
    recorded = training.get("teacher_sha256") or [None] * len(teachers)
    if not isinstance(recorded, list) or len(recorded) != len(teachers):
        raise ReleaseError(
            f"{where}: {format.METRICS}: training.teacher_sha256: found {recorded!r}, expected one of each "
            f"of the {len(teachers)} teachers in {format.RECIPE}"
        )
    first = [] if start is None else [Origin(START, start, training.get("init_weights_sha256"))]
    rows = enumerate(zip(teachers, recorded, strict=True))
    return first + [Origin(f"{TEACHERS}.{i}", name, sha256) for i, (name, sha256) in rows]


def sha256_of(key: str, config: Mapping[str, Any]) -> str:
    """Return what a training records of a release with this `config.json` that it has under `key`."""
    return str(config["zoo"]["weights_sha256"]) if key == START else teacher_sha256(config)


def teacher_sha256(config: Mapping[str, Any]) -> str:
    """Hash all that decides what a release says of an image: encoder, centers, and what pixels become."""
    zoo, pixels = config["zoo"], config["pretrained_cfg"]
    parts = [zoo["weights_sha256"], zoo["centers_sha256"], [*pixels["mean"]], [*pixels["std"]]]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def inherited_license(licenses: Iterable[str]) -> str:
    """Return the licence of weights that were trained from, or distilled from, weights with these licences.

    They keep a foreign one; of several that differ it is "other", and the card names them all.
    """
    others = [license for license in dict.fromkeys(licenses) if license != format.LICENSE]
    return format.LICENSE if not others else others[0] if len(others) == 1 else "other"


def check_public(folder: Path) -> None:
    """Make sure that no path of this machine is published as what the training began with.

    Raises:
        ReleaseError: naming each, and how the recipe gets a name that others can read.
    """
    found = origins(format.read_recipe(folder), {}, folder)
    private = [origin for origin in found if _is_folder(origin.name)]
    if private:
        told = ", ".join(f'{origin.key} is the folder "{origin.name}"' for origin in private)
        raise ReleaseError(
            f"{folder / format.RECIPE}: {told}: others cannot read it, and its path would be published. "
            "Push that release first, then this one with --start ORG/NAME, which then stands in the recipe"
        )


def rename(folder: Path, config: Mapping[str, Any], new: str, other: Mapping[str, Any]) -> None:
    """Write another name of the start, or of a teacher, into the recipe, which is the same in all else.

    Args:
        folder: of the release.
        config: its `config.json`.
        new: the other name, which can mean nothing else (`ModelRef.spelling`).
        other: the `config.json` that bears it: its hashes tell what is renamed. Where that is in a folder and
            has a public name besides, the folder alone is.

    Raises:
        ReleaseError: for another folder, or weights that are not those that the training began with.
    """
    recipe, where = format.read_recipe(folder), folder / format.RECIPE
    own = origins(recipe, format.read_metrics(folder)["training"], folder)
    if not own:
        raise ReleaseError(
            f"{where}: {START}: the training started from random weights, so there is no other name for it"
        )
    keys = " or ".join(origin.key for origin in own)
    if _is_folder(new):
        raise ReleaseError(
            f'{where}: {keys}: found the folder "{new}", expected what others can read: ORG/NAME'
        )
    known = [origin for origin in own if origin.sha256 is not None]
    if not known:
        what = "weights that training started from" if own[0].key == START else "teachers"
        raise ReleaseError(
            f"{where}: {keys}: {format.METRICS} has no hash of the {what}, so nothing says whether those of "
            f'"{new}" are the same; train again with that name'
        )
    same = [origin for origin in known if origin.sha256 == sha256_of(origin.key, other)]
    if not same:
        told = "; ".join(f'"{origin.name}" with weights of sha256 {origin.sha256}' for origin in known)
        found = sha256_of(known[0].key, other)
        raise ReleaseError(f'{where}: {keys}: the training began with {told}, those of "{new}" have {found}')
    olds = [origin.name for origin in [each for each in same if _is_folder(each.name)] or same]
    changed = {**recipe, "description": _renamed(recipe.get("description"), olds, new)}
    if format.start_of(recipe) in olds:
        changed["init"] = {**recipe["init"], "release": new}
    if teachers := format.teachers_of(recipe):
        distill = {**recipe["objective"]["distill"]}
        distill["teachers"] = [new if name in olds else name for name in teachers]
        changed["objective"] = {**recipe["objective"], "distill": distill}
    description = _renamed(config["zoo"]["description"], olds, new)
    format.rewrite(folder, {**config, "zoo": {**config["zoo"], "description": description}}, changed)


def _is_folder(name: str) -> bool:
    return name.startswith(("/", "~", "./", "../")) or is_dir(name)


def _renamed(text: Any, olds: Sequence[str], new: str) -> Any:
    """Return a text with the new name for the old ones, where these stand by themselves."""
    if not isinstance(text, str):
        return text
    either = "|".join(re.escape(old) for old in sorted(olds, key=len, reverse=True))
    return re.sub(rf"(?<![\w./-])(?:{either})(?!\.?[\w/-])", lambda _: new, text)
