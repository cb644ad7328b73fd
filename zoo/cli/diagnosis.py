"""`zoo diagnose`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zoo.cli.app import Data, app


@app.command()
def diagnose(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="RELEASE_OR_RUN...",
            help="Weights names, folders or org/repo; or runs that are not finished. Several: side by side.",
        ),
    ],
    data: Data = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder of the report. Default: runs/diagnosed/NAME.")
    ] = None,
    sample: Annotated[int, typer.Option("--sample", help="Test images to look at.")] = 2000,
    seed: Annotated[int, typer.Option("--seed", help="Of the sample.")] = 0,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    workers: Annotated[
        int | None, typer.Option("--workers", help="Processes that decode images. Default: the recipes'.")
    ] = None,
) -> None:
    """See what trainings did: one HTML report of scores, features, classes and numbers, with its figures."""
    from zoo import api

    report = api.diagnose(
        *names, out=out, data=data, sample=sample, seed=seed, device=device, workers=workers
    )
    for subject in report.subjects:
        if subject.without_look is not None:
            print(f"{subject.label}: no look at its images: {subject.without_look}")
    drawn = [each for each in report.figures if each.missing is None]
    for each in report.figures:
        if each.missing is not None:
            print(f"not drawn: {each.title}: {each.missing}")
    print(f"{len(drawn)} figures, as PNG and SVG: {report.folder / 'figures'}")
    print(f"numbers: {report.folder / 'numbers.json'}")
    print(f"report: {report.html}")
