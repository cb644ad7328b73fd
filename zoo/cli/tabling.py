"""`zoo table`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zoo.cli.app import app
from zoo.cli.show import print_columns
from zoo.files import RUNS

if TYPE_CHECKING:
    from zoo.api import Results


@app.command()
def table(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="FOLDER_OR_RELEASE...",
            help="Folders, in which all runs at any depth are taken; releases; files results.json.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for results.md, .json, .png, .svg. Default: runs/table."),
    ] = None,
    published: Annotated[
        list[str] | None,
        typer.Option(
            "--published",
            metavar="SWEEP",
            help="Sweep with published figures, a shipped name or a file; may be given several times. "
            "Default: all shipped ones.",
        ),
    ] = None,
    readme: Annotated[
        Path | None,
        typer.Option(
            "--readme", help="Put the table between this file's two marks; then --out has no default."
        ),
    ] = None,
) -> None:
    """Put the results of finished trainings into one table: means over seeds, time, published figures.

    Runs share a row where recipe, images and evaluation are the same and the seed alone differs; one that is
    found twice is counted once.
    """
    from zoo import api

    folder = out or (None if readme is not None else RUNS / "table")
    found = api.table(*names, out=folder, published=published, readme=readme)
    print_results(found)
    for place in (folder, readme):
        if place is not None:
            print(f"written: {place}")


def print_results(found: Results) -> None:
    """Print the rows of a table, above them what its figures are, below what a reader has to know of them."""
    if found.lines:
        print(f"{found.reading()}\n")
        print_columns(found.cells())
    else:
        print("no finished run")
    print()
    if notes := found.notes():
        print("\n".join(f"- {note}" for note in notes) + "\n")
