"""Paths and names of the shipped recipes, sweeps and releases. Does not import torch."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from os.path import isfile
from pathlib import Path

from zoo.config import type_name
from zoo.errors import RecipeError, ZooError, did_you_mean

_PACKAGE = Path(__file__).resolve().parent


def shared_folder(folder: str) -> Path:
    """Return the path of a shipped folder: inside the package if installed, beside it in a checkout."""
    installed = _PACKAGE / "_share" / folder
    return installed if installed.is_dir() else _PACKAGE.parent / folder


def list_recipes(pattern: str = "*") -> list[str]:
    """Return the sorted names of shipped recipes that match a shell pattern or contain a substring."""
    return _matching((p.stem for p in shared_folder("recipes").glob("*.yaml")), pattern)


def list_models(pattern: str = "*") -> list[str]:
    """Return the sorted names of shipped releases that match a shell pattern or contain a substring."""
    return _matching((p.parent.name for p in shared_folder("model_cards").glob("*/config.json")), pattern)


def list_sweeps(pattern: str = "*") -> list[str]:
    """Return the sorted names of shipped sweeps that match a shell pattern or contain a substring."""
    return _matching((p.stem for p in (shared_folder("recipes") / "sweeps").glob("*.yaml")), pattern)


def _matching(names: Iterable[str], pattern: str) -> list[str]:
    if not isinstance(pattern, str):
        raise ZooError(f'pattern: found {type_name(pattern)}, expected a text, e.g. "*_digits_*"')
    shell = pattern if set(pattern) & set("*?[") else f"*{pattern}*"
    return sorted(name for name in names if fnmatchcase(name, shell))


def sweep_path(name: str) -> Path:
    """Return the path of the shipped sweep `name`; it need not exist."""
    return shared_folder("recipes") / "sweeps" / f"{name}.yaml"


def release_path(name: str) -> Path | None:
    """Return the folder of the shipped release `name`, or None if there is none."""
    folder = shared_folder("model_cards") / name
    return folder if folder.name == name and isfile(folder / "config.json") else None


def is_shipped(folder: Path) -> bool:
    """Whether `folder` is one of the shipped releases, which are read-only."""
    return folder.resolve().parent == shared_folder("model_cards").resolve()


def recipe_path(name: str | Path) -> Path:
    """Return the path of a recipe given by path or shipped name; a `RecipeError` suggests the nearest."""
    path, shipped = Path(name), shared_folder("recipes") / f"{name}.yaml"
    if isfile(path):
        return path
    if isfile(shipped) and shipped.parent == shared_folder("recipes"):
        return shipped
    near = did_you_mean(name, [*list_recipes(), *list_sweeps()])
    raise RecipeError(f'no recipe "{name}": found neither a file nor a shipped recipe of that name.{near}')
