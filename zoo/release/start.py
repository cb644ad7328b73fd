"""What a release's training started and learned from: names that others can read, or folders of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.errors import ReleaseError
from zoo.release import format, names

_START, _TEACHERS = "init.release", "objective.distill.teachers"


def check_public(folder: Path) -> None:
    """Make sure that no path of this machine is published as what the training started or learned from.

    Raises:
        ReleaseError: naming it, and how the recipe gets a name that others can read.
    """
    for key, name in _sources(format.read_recipe(folder)):
        if _is_folder(name):
            raise ReleaseError(
                f'{folder / format.RECIPE}: {key} is the folder "{name}": others cannot read it, and its '
                "path would be published. Push that release first, then this one with --start ORG/NAME, or "
                f'in Python zoo.open("{folder}").with_start("ORG/NAME"): that repository then stands in the '
                "recipe"
            )


def _sources(recipe: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return by recipe key what a training started and learned from."""
    start = format.start_of(recipe)
    first = [] if start is None else [(_START, start)]
    return first + [(f"{_TEACHERS}.{i}", name) for i, name in enumerate(format.teachers_of(recipe))]


def rename(folder: Path, config: Mapping[str, Any], reading: names.Reading, weights_sha256: str) -> None:
    """Write another name of the start, or of a teacher, into the recipe, which is the same in all else.

    Args:
        folder: of the release.
        config: its `config.json`.
        reading: of the new name.
        weights_sha256: of the weights that bear it: they tell what is renamed.

    Raises:
        ReleaseError: for another folder, or weights that are not those that the training began with.
    """
    recipe, new, where = format.read_recipe(folder), reading.spelling, folder / format.RECIPE
    own = [(key, name) for key, name in _sources(recipe) if not name.startswith(names.TIMM)]
    if not own:
        start = format.start_of(recipe)
        found = "random weights" if start is None else f'"{start}"'
        raise ReleaseError(
            f"{where}: {_START}: the training started from {found}, so there is no other name for it"
        )
    keys = " or ".join(key for key, _ in own)
    if reading.kind == "folder":
        raise ReleaseError(
            f'{where}: {keys}: found the folder "{new}", expected what others can read: ORG/NAME'
        )
    known = _hashes(format.read_metrics(folder)["training"], recipe)
    if not known:
        raise ReleaseError(
            f"{where}: {keys}: {format.METRICS} has no hash of the weights that training started from, so "
            f'nothing says whether those of "{new}" are the same; train again with --init {new}'
        )
    olds = [name for name, sha256 in known if sha256 == weights_sha256]
    if not olds:
        told = "; ".join(f'"{name}" with weights of sha256 {sha256}' for name, sha256 in known)
        raise ReleaseError(
            f'{where}: {keys}: the training began with {told}, those of "{new}" have {weights_sha256}'
        )
    changed, description = dict(recipe), str(config["zoo"]["description"])
    for old in olds:
        changed = {key: _renamed(value, old, new) for key, value in changed.items()}
        description = description.replace(old, new)
    if format.start_of(recipe) in olds:
        changed["init"] = {**recipe["init"], "release": new}
    if teachers := format.teachers_of(recipe):
        renamed = [new if name in olds else name for name in teachers]
        distill = {**recipe["objective"]["distill"], "teachers": renamed}
        changed["objective"] = {**recipe["objective"], "distill": distill}
    format.rewrite(folder, {**config, "zoo": {**config["zoo"], "description": description}}, changed)


def _hashes(training: Mapping[str, Any], recipe: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return by name the weights that a training started and learned from, as far as they are recorded."""
    start, teachers = format.start_of(recipe), format.teachers_of(recipe)
    known = [] if start is None else [(start, training.get("init_weights_sha256"))]
    known += zip(teachers, training.get("teacher_weights_sha256") or [None] * len(teachers), strict=True)
    return [(name, sha256) for name, sha256 in known if sha256 is not None]


def _is_folder(start: str) -> bool:
    if start.startswith(("/", "~", "./", "../")):
        return True
    try:
        return names.resolve(start).kind == "folder"
    except ReleaseError:  # nothing of this machine; whether anybody has it the Hub knows
        return False


def _renamed(text: Any, old: str, new: str) -> Any:
    """Return a text with the new name for the old: descriptions of older releases have the start's path."""
    return text.replace(old, new) if isinstance(text, str) else text
