"""`zoo keys`."""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from zoo.cli.app import app

if TYPE_CHECKING:
    from zoo.recipe.keys import Key

_NARROWEST, _WIDEST = 60, 110


@app.command()
def keys(
    name: Annotated[
        str,
        typer.Argument(
            metavar="SECTION",
            help="E.g. training, objective, paco, training.ema, training.epochs or lr. Default: lists them.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Explain the keys of a recipe: what each means, its type, and its default where it has one."""
    from zoo.recipe.keys import find_keys

    if not name:
        print('The keys of a recipe; "zoo keys SECTION" shows those of a section, e.g. "zoo keys paco".\n')
    for key in find_keys(name):
        print("\n".join(_lines(key, deep=bool(name))))


def _lines(key: Key, *, deep: bool) -> list[str]:
    """Return lines on a key and, where `deep`, on the keys inside; of several sections only what they are."""
    default = "" if key.default is None else f"; default {key.default}"
    first, *others = f"{key.path}: {key.kind}{default}\n{key.text}".split("\n")
    if not key.kind:  # one of several sections
        first, *others = f"{key.name}: {key.text}".split("\n")
    lines = _wrapped(first, "", later="        ")
    lines += [line for each in others for line in _wrapped(each, "    ")]
    alike = dict[str, list[str]]()
    for each in key.inside:
        if not each.kind:
            alike.setdefault(each.text.partition("\n")[0], []).append(each.name)
    if not deep:
        words = [name.rpartition(".")[2] for names in alike.values() for name in names]
        return lines + _wrapped(", ".join(words), "    ")
    for text, names in alike.items():
        lines += _wrapped(f"{', '.join(names)}: {text}", "      ", later="        ")
    return lines + [line for each in key.inside if each.kind for line in _lines(each, deep=True)]


def _wrapped(text: str, first: str, *, later: str | None = None) -> list[str]:
    width = min(max(shutil.get_terminal_size((_WIDEST, 24)).columns, _NARROWEST), _WIDEST)
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=first if later is None else later,
        break_long_words=False,
        break_on_hyphens=False,
    )
