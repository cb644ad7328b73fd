"""`zoo sweep`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from zoo.cli.app import Data, Resume, app, list_of, listed
from zoo.cli.show import print_columns
from zoo.cli.tabling import print_results
from zoo.errors import RecipeError, ZooError


@app.command()
def sweep(
    recipes: Annotated[
        list[str],
        typer.Argument(help="Recipes to compare, or a sweep (its name or file) and some of its recipes."),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="A.B=C,D,...",
            help="Several values to sweep over, or one for all runs; values are YAML, sections and lists in "
            "their brackets; or labels of the sweep. May be given several times.",
        ),
    ] = None,
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Default: the sweep's, or 0,1,2.", show_default=False)
    ] = None,
    watch: Annotated[
        str | None,
        typer.Option("--watch", help="Numbers of the report to show, e.g. features/uniformity,accuracy/knn."),
    ] = None,
    data: Data = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the sweep. Default: runs/sweeps/NAME.")
    ] = None,
    resume: Resume = False,
) -> None:
    """Train a recipe with every combination of values and seeds, and show what moves with them.

    Each run is a release of its own in --out; the report compares them all. Several processes share the runs:
    torchrun's, those of a SLURM array job, or others started with --resume. The status is 1 if a run failed.
    """
    from zoo import api

    found = api.sweep(
        *recipes,
        vary=_values(settings or []),
        seeds=None if seeds is None else listed("--seeds", seeds),
        watch=None if watch is None else listed("--watch", watch),
        data=data,
        out=out,
        resume=resume,
    )
    if found is None:
        print("nothing is left to train here; the process that finishes last writes the report")
        return
    print(f"{found.table.caption}\n")
    print_columns([found.table.head, *found.table.rows])
    print()
    print_results(found.results)
    print(f"found:   {found.folder / 'sweep.md'}\nresults: {found.folder / 'results.md'}")
    if found.report is not None:
        print(f"report:  {found.report.html}")
    if found.failed:
        name, why = next(iter(found.failed.items()))
        raise ZooError(f"{len(found.failed)} of {len(found.record['runs'])} runs failed, e.g. {name}: {why}")


def _values(pairs: list[str]) -> dict[str, list[Any]]:
    """Read `KEY=VALUE,VALUE,...` texts."""
    found: dict[str, list[Any]] = {}
    for pair in pairs:
        key, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or not key:
            raise RecipeError(f'--set "{pair}": expected KEY.KEY=VALUE,VALUE,..., e.g. objective.tau=0.1,0.2')
        if key in found:
            raise RecipeError(f'--set: "{key}" is given twice; give all its values at once, e.g. {key}=A,B')
        found[key] = list_of(f'--set "{pair}"', f"[{text}]")
    return found
