"""`zoo keys`."""

from __future__ import annotations

import shutil
import textwrap
from typing import TYPE_CHECKING, Annotated

import typer

from zoo.cli.app import app

if TYPE_CHECKING:
    from zoo.recipe.keys import Section

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
    from zoo.recipe.keys import section

    found = section(name)
    if not found.name:
        print('The keys of a recipe; "zoo keys SECTION" shows those of a section, e.g. "zoo keys paco".\n')
    elif found.text:
        paragraphs = f"{found.name}: {found.text}".split("\n")
        print("\n".join(line for each in paragraphs for line in _wrapped(each, "")) + "\n")
    print("\n".join(_lines(found, deep=bool(found.name))))


def _lines(found: Section, *, deep: bool) -> list[str]:
    """Return lines for each key; `deep`: also for those of a section that alone can stand there."""
    from zoo.recipe.keys import section

    lines: list[str] = []
    for key in found.keys:
        default = "" if key.default is None else f"; default {key.default}"
        lines += _wrapped(f"{key.path}: {key.kind}{default}", "", later="        ")
        lines += _wrapped(key.text, "    ")
        if len(key.sections) == 1 and deep:
            lines += _lines(section(key.sections[0]), deep=True)
        elif len(key.sections) > 1 and deep:
            alike = dict[str, list[str]]()
            for each in key.sections:
                alike.setdefault(section(each).summary, []).append(each)
            for text, names in alike.items():
                lines += _wrapped(f"{', '.join(names)}: {text}", "      ", later="        ")
        elif len(key.sections) > 1:
            lines += _wrapped(", ".join(each.rpartition(".")[2] for each in key.sections), "    ")
    return lines


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
