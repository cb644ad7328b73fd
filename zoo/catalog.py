"""Where the recipes and the shipped releases lie, and which names they have. Imports no torch."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from zoo.config import MAX_YAML_BYTES, plain_kind
from zoo.errors import RecipeError, ZooError, did_you_mean
from zoo.files import is_file, read_text

_PACKAGE = Path(__file__).resolve().parent


def _shared(folder: str) -> Path:
    """Return the folder inside an installed wheel, or the one beside the package in a checkout."""
    installed = _PACKAGE / "_share" / folder
    return installed if installed.is_dir() else _PACKAGE.parent / folder


def list_recipes(pattern: str = "*") -> list[str]:
    """Return the names of the shipped recipes that match `pattern`, sorted.

    A text without `*`, `?` and `[` finds every name that contains it.
    """
    return _matching((p.stem for p in _shared("recipes").glob("*.yaml")), pattern)


def list_models(pattern: str = "*") -> list[str]:
    """Return the names of the shipped releases that match `pattern`, sorted.

    A text without `*`, `?` and `[` finds every name that contains it.
    """
    return _matching((p.parent.name for p in _shared("model_cards").glob("*/config.json")), pattern)


def list_sweeps(pattern: str = "*") -> list[str]:
    """Return the names of the shipped sweeps that match `pattern`, sorted.

    A text without `*`, `?` and `[` finds every name that contains it.
    """
    return _matching((p.stem for p in (_shared("recipes") / "sweeps").glob("*.yaml")), pattern)


def wildcards(pattern: str) -> str:
    """Return a shell pattern as it is, and of a text without wildcards that of all names that contain it."""
    return pattern if set(pattern) & set("*?[") else f"*{pattern}*"


def _matching(names: Iterable[str], pattern: str) -> list[str]:
    if not isinstance(pattern, str):
        raise ZooError(f'pattern: found {plain_kind(pattern)}, expected a text, e.g. "*_digits_*"')
    shell = wildcards(pattern)
    return sorted(name for name in names if fnmatchcase(name, shell))


def sweep_path(name: str) -> Path:
    """Return the file of the shipped sweep `name`; it need not exist."""
    return _shared("recipes") / "sweeps" / f"{name}.yaml"


def spread_path(name: str) -> Path:
    """Return the file of records that show a training's spread over seeds; it need not exist."""
    return _shared("recipes") / "spread" / f"{name}.json"


def recipe_header(text: str) -> dict[str, str]:
    """Read the facts in a recipe's first comment lines, `# Target: ...`, with their continuation lines.

    Returns:
        Name of each fact, e.g. `Target`, and its text on one line.
    """
    facts: dict[str, str] = {}
    name = ""
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        fact = re.match(r"# ([A-Z][a-z]+): +(.*)", line)
        if fact:
            name = fact[1]
            facts[name] = fact[2].strip()
        elif name and line.startswith("#   "):
            facts[name] += " " + line[1:].strip()
        else:
            name = ""
    return facts


def recipe_sections(text: str, *names: str) -> str:
    """Return only these top-level sections of a recipe: who lists a hundred need not read their views."""
    pattern = rf"^(?:{'|'.join(names)}):.*\n(?:[ \t#\n].*\n?|\n)*"
    return "".join(re.findall(pattern, text, re.MULTILINE))


def release_path(name: str) -> Path | None:
    """Return the folder of the shipped release `name`, or None when there is none."""
    return _shared("model_cards") / name if name in list_models() else None


def is_shipped(folder: Path) -> bool:
    """Whether `folder` is one of the shipped releases, which nothing changes."""
    return folder.resolve().parent == _shared("model_cards").resolve()


def recipe_path(name_or_file: str | Path) -> Path:
    """Resolve a recipe's name or file.

    Raises:
        RecipeError: naming the nearest recipe when there is none of that name.
    """
    as_file = Path(name_or_file)
    if is_file(as_file):
        return as_file
    shipped = _shared("recipes") / f"{name_or_file}.yaml"
    if shipped.parent == _shared("recipes") and is_file(shipped):
        return shipped
    names = list_recipes()
    hint = did_you_mean(name_or_file, names)
    raise RecipeError(
        f'no recipe "{name_or_file}": neither a file nor one of the {len(names)} shipped recipes.{hint}'
        ' "zoo list" shows them'
    )


def recipe_text(path: Path) -> str:
    """Read a recipe's file, for `load_yaml` or to be shown.

    Raises:
        RecipeError: naming the file, when it is no text, or larger than a recipe can be.
    """
    try:
        return read_text(path, MAX_YAML_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f'recipe "{path}" cannot be read: {error}') from None
