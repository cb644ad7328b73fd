"""Commands about several trainings: sweep, compare, table, reproduce."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument, Option

from zoo.cli.app import DATA, INIT, RESUME, SET, TRAINED_ON, app, changes, check_early, listed
from zoo.cli.show import print_columns
from zoo.errors import RecipeError, ZooError, few
from zoo.files import RUNS
from zoo.launch import rank

if TYPE_CHECKING:
    import pandas as pd

    from zoo.experiments import Reproduction, Results


@app.command()
def sweep(
    recipes: list[str] = Argument(
        help="Recipes to compare, or a sweep (its name or file) and some of its recipes."
    ),
    settings: list[str] | None = Option(
        None,
        "--set",
        metavar="A.B=C,D,...",
        help="Several values to sweep over, or one for all runs; values are YAML, sections and lists in "
        "their brackets; or labels of the sweep. May be given several times.",
    ),
    seeds: str | None = Option(None, "--seeds", help="Default: the sweep's, or 0,1,2."),
    watch: str | None = Option(
        None, "--watch", help="Numbers of the report to show, e.g. features/uniformity,accuracy/knn."
    ),
    data: str | None = DATA,
    out: Path | None = Option(None, "--out", help="Folder of the sweep. Default: runs/sweeps/NAME."),
    resume: bool = RESUME,
) -> None:
    """Train a recipe with every combination of values and seeds, and show what moves with them.

    Each run is a release of its own in --out; the report compares them all. Several processes share the runs:
    torchrun's, those of a SLURM array job, or others started with --resume. The status is 1 if a run failed.
    """
    vary = _values(settings or [])
    check_early(data=data, out=out)
    import zoo

    found = zoo.sweep(
        *recipes,
        vary=vary,
        seeds=None if seeds is None else listed("--seeds", seeds),
        watch=None if watch is None else listed("--watch", watch),
        data=data,
        out=out,
        resume=resume,
    )
    if found is None:
        print("nothing is left to train here; the process that finishes last writes the report")
        return
    print("mean ± standard deviation over seeds\n")
    _print_frame(found.frame.reset_index())
    if len(found.changes):
        print("\nbetween the ends, paired by seed\n")
        _print_frame(found.changes)
    print()
    print_results(found.results)
    print(f"found:   {found.folder / 'sweep.md'}\nresults: {found.folder / 'results.md'}")
    if found.report is not None:
        print(f"report:  {found.report.html}")
    if found.failed:
        name, why = next(iter(found.failed.items()))
        raise ZooError(f"{len(found.failed)} of the runs failed, e.g. {name}: {why}")


@app.command()
def compare(
    recipe: str | None = Argument(
        None, help="Recipe of the objective classify. Default: one made for the release.", show_default=False
    ),
    init: str = Option(..., "--init", help=INIT.help),
    data: str | None = DATA,
    out: Path | None = Option(
        None, "--out", help="Folder of the comparison. Default: runs/NAME_compared, of the start."
    ),
    methods: str | None = Option(
        None,
        "--methods",
        help='Names, or values of the key method, e.g. "crt,{name: lws, lr: 0.2}". Default: all.',
    ),
    seeds: str = Option("0,1,2", "--seeds", help="Of the trainings."),
    overrides: list[str] | None = SET,
    device: str | None = TRAINED_ON,
    resume: bool = RESUME,
) -> None:
    """Fine-tune a release in several ways to learn from a long tail, over seeds, and print one table."""
    check_early(init, recipe=recipe, data=data, out=out)
    import zoo

    found = zoo.compare(
        recipe,
        init=init,
        data=data,
        out=out,
        methods=None if methods is None else listed("--methods", methods),
        seeds=listed("--seeds", seeds),
        resume=resume,
        overrides=changes(overrides, device),
    )
    if rank() > 0:
        return
    print("percent, test split; mean ± standard deviation over seeds; differences are paired by seed\n")
    _print_frame(found.frame)
    for name, reason in found.left_out.items():
        print(f"left out: {name}: {reason}")
    print(f"\nwritten: {found.folder}")


@app.command()
def table(
    names: list[str] = Argument(
        metavar="FOLDER_OR_RELEASE...",
        help="Folders, in which all runs at any depth are taken; releases; files results.json.",
    ),
    out: Path | None = Option(
        None, "--out", help="Folder for results.md, .json, .png, .svg. Default: runs/table."
    ),
    published: list[str] | None = Option(
        None,
        "--published",
        metavar="SWEEP",
        help="Sweep with published figures, a shipped name or a file; may be given several times. "
        "Default: all shipped ones.",
    ),
    readme: Path | None = Option(
        None, "--readme", help="Put the table between this file's two marks; then --out has no default."
    ),
) -> None:
    """Put the results of finished trainings into one table: means over seeds, time, published figures.

    Runs share a row where recipe, images and evaluation are the same and the seed alone differs; one that is
    found twice is counted once.
    """
    check_early(out=out)
    import zoo

    folder = out or (None if readme is not None else RUNS / "table")
    found = zoo.table(*names, out=folder, published=published, readme=readme)
    print_results(found)
    for place in (folder, readme):
        if place is not None:
            print(f"written: {place}")


@app.command()
def reproduce(
    name: str = Argument(help="Release: weights name, folder or org/repo."),
    data: str | None = DATA,
    out: Path | None = Option(None, "--out", help="Release folder to make. Default: runs/reproduced/NAME."),
    tolerance: float | None = Option(
        None,
        "--tolerance",
        metavar="POINTS",
        help="Points that percentages may differ by; 0: equal. Default: by test images and seeds.",
    ),
    spread: Path | None = Option(
        None,
        "--spread",
        help="Folder or results.json of the same training with five or more other seeds, which show its "
        "spread. Default: what is shipped for this release.",
    ),
    resume: bool = RESUME,
) -> None:
    """Train a release again by its own recipe, repeat its evaluations, and compare all figures.

    The status is 0 if every figure agrees within its tolerance, and 1 if one does not, or if none of an
    evaluation could be compared.
    """
    check_early(data=data, out=out)
    import zoo

    found = zoo.reproduce(name, data=data, out=out, tolerance=tolerance, spread=spread, resume=resume)
    if found is not None:  # torchrun's first process speaks for all
        print_reproduction(found)


def print_results(found: Results) -> None:
    """Print the rows of a table, above them what its figures are, below what a reader has to know of them."""
    if found.rows:
        print(f"{found.reading()}\n")
        _print_frame(found.frame())
    else:
        print("no finished run")
    print("\n" + "".join(f"- {note}\n" for note in found.notes()))


def print_reproduction(found: Reproduction) -> None:
    """Print recorded against reproduced figures.

    Raises:
        ZooError: as the last line, if a figure differs, or none of an evaluation was compared.
    """
    head = ("EVALUATION", "METRIC", "RECORDED", "REPRODUCED", "DIFFERENCE", "TOLERANCE", "VERDICT")
    rows: list[Sequence[str]] = [head]
    for f in found.figures:
        if "." not in f.name or not f.agrees:
            numbers = map(_number, (f.recorded, f.reproduced, f.difference, f.tolerance))
            rows.append((f.of, f.name, *numbers, f.verdict))
    print_columns(rows)
    spread = f"the spread over {found.seeds} other seeds" if found.seeds else "no spread of training"
    print(f"\nall figures judged together, by the number of test images and {spread}")
    for label, reason in found.not_repeated:
        print(f"not repeated: {label}: {reason}")
    print(f"weights: {'the same' if found.same_weights else 'other'} bits (SHA-256)")
    print(f"the new release: {found.made.path}")
    judged = [figure for figure in found.figures if figure.tolerance is not None]
    wrong = [f"{figure.of}: {figure.name}" for figure in judged if not figure.agrees]
    name = found.recorded.name
    if wrong:
        raise ZooError(
            f"{name} was not reproduced: {len(wrong)} of {len(judged)} figures differ: {few(wrong)}"
        )
    if not found.compared:
        raise ZooError(f"{name} was not reproduced: no figure of its evaluations could be compared")
    same = sum(figure.verdict == "same" for figure in judged)
    print(f"{name} was reproduced: {len(judged)} figures agree, {same} exactly")


def _print_frame(frame: pd.DataFrame) -> None:
    print_columns([[str(name) for name in frame.columns], *frame.astype(str).to_numpy().tolist()])


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def _values(pairs: list[str]) -> dict[str, list[Any]]:
    """Read `KEY=VALUE,VALUE,...` texts."""
    found: dict[str, list[Any]] = {}
    for pair in pairs:
        key, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or not key:
            raise RecipeError(f'--set "{pair}": expected KEY.KEY=VALUE,VALUE,..., e.g. objective.tau=0.1,0.2')
        if key in found:
            raise RecipeError(f'--set: "{key}" is given twice; give all its values at once, e.g. {key}=A,B')
        found[key] = listed("--set", f"[{text}]")
    return found
