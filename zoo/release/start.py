"""What a release's training started from: a name that others can read, or a folder of one's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zoo.errors import ReleaseError
from zoo.release import format, names


def check_public(folder: Path) -> None:
    """Make sure that no path of this machine is published as what the training started from.

    Raises:
        ReleaseError: naming it, and how the recipe gets a name that others can read.
    """
    start = format.start_of(format.read_recipe(folder))
    if start is not None and _is_folder(start):
        raise ReleaseError(
            f'{folder / format.RECIPE}: init.release is the folder "{start}": others cannot read it, and its '
            "path would be published. Push that release first, then this one with --start ORG/NAME, or in "
            f'Python zoo.open("{folder}").with_start("ORG/NAME"): that repository then stands in the recipe'
        )


def rename(folder: Path, config: Mapping[str, Any], reading: names.Reading, weights_sha256: str) -> None:
    """Write another name of the start into the recipe, which is the same in all else.

    Args:
        folder: of the release.
        config: its `config.json`.
        reading: of the new name.
        weights_sha256: of the weights that bear it.

    Raises:
        ReleaseError: for another folder, or weights that are not those that the training started from.
    """
    recipe, where = format.read_recipe(folder), f"{folder / format.RECIPE}: init.release"
    old, new = format.start_of(recipe), reading.spelling
    if old is None or old.startswith(names.TIMM):
        found = "random weights" if old is None else f'"{old}"'
        raise ReleaseError(f"{where}: the training started from {found}, so there is no other name for it")
    if reading.kind == "folder":
        raise ReleaseError(f'{where}: found the folder "{new}", expected what others can read: ORG/NAME')
    expected = format.read_metrics(folder)["training"].get("init_weights_sha256")
    if expected is None:
        raise ReleaseError(
            f"{where}: {format.METRICS} has no hash of the weights that training started from, so nothing "
            f'says whether those of "{new}" are the same; train again with --init {new}'
        )
    if weights_sha256 != expected:
        raise ReleaseError(
            f'{where}: the training started from "{old}" with weights of sha256 {expected}, those of "{new}" '
            f"have {weights_sha256}"
        )
    changed = {key: _renamed(value, old, new) for key, value in recipe.items()}
    changed["init"] = {**recipe["init"], "release": new}
    about = {**config["zoo"], "description": _renamed(config["zoo"]["description"], old, new)}
    format.rewrite(folder, {**config, "zoo": about}, changed)


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
