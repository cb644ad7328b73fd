"""Commands about several trainings: sweep, compare, table, reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer import Argument, Option

from zoo.cli.app import DATA, INIT, RESUME, SET, TRAINED_ON, app, changes, check_early, listed
from zoo.errors import RecipeError, ZooError, few
from zoo.files import RUNS

_OTHERS = "nothing is left to train here; the process that finishes last writes what was found"


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
    data: str | None = DATA,
    out: Path | None = Option(None, "--out", help="Folder of the sweep. Default: runs/sweeps/NAME."),
    resume: bool = RESUME,
) -> None:
    """Train a recipe with every combination of values and seeds, and show what moves with them.

    Each run is a release of its own in --out. Several processes share the runs: torchrun's, those of a SLURM
    array job, or others started with --resume. The status is 1 if a run failed.
    """
    vary: dict[str, list[Any]] = {}
    for pair in settings or []:
        key, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or not key:
            raise RecipeError(f'--set "{pair}": expected KEY.KEY=VALUE,VALUE,..., e.g. objective.tau=0.1,0.2')
        vary.setdefault(key, []).extend(listed("--set", f"[{text}]"))
    check_early(data=data, out=out)
    import zoo

    found = zoo.sweep(
        *recipes,
        vary=vary,
        seeds=None if seeds is None else listed("--seeds", seeds),
        data=data,
        out=out,
        resume=resume,
    )
    if found is None:
        print(_OTHERS)
        return
    for name in ("sweep.md", "results.md"):
        print((found.folder / name).read_text(encoding="utf-8"))
    print(f"written: {found.folder}")
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
    out: Path | None = Option(None, "--out", help="Folder to make. Default: runs/NAME_compared."),
    methods: str | None = Option(
        None, "--methods", help='Names or values of the key, "crt,{name: lws, lr: 0.2}". Default: all.'
    ),
    seeds: str = Option("0,1,2", "--seeds", help="Of the trainings."),
    overrides: list[str] | None = SET,
    device: str | None = TRAINED_ON,
    resume: bool = RESUME,
) -> None:
    """Fine-tune a release in several ways, over seeds, and print one table; processes share the runs."""
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
    if found is None:
        print(_OTHERS)
        return
    print((found.folder / "comparison.md").read_text(encoding="utf-8"))
    print(f"written: {found.folder}")


@app.command()
def table(
    names: list[str] = Argument(
        metavar="FOLDER_OR_RELEASE...",
        help="Folders, in which all runs at any depth are taken; releases; files results.json.",
    ),
    out: Path | None = Option(
        None, "--out", help="Folder for results.md, .json and .png. Default: runs/table."
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
    print(zoo.table(*names, out=folder, readme=readme).markdown())
    print(f"written: {', '.join(str(place) for place in (folder, readme) if place)}")


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
    if found is None:  # torchrun's first process speaks for all
        return
    figures = found.figures
    wrong = figures[figures["verdict"].isin(["differs", "missing"])]
    shown = figures[figures["verdict"] != "not judged"]
    print(shown.to_string(index=False, na_rep="-", float_format="{:.2f}".format))
    for label, reason in found.not_repeated.items():
        print(f"not repeated: {label}: {reason}")
    print(f"judged together, by the number of test images and by the spread over {found.seeds} other seeds")
    print(f"weights: {'the same' if found.same_weights else 'other'} bits (SHA-256)")
    print(f"the new release: {found.made.path}")
    if len(wrong):
        names = few(list(wrong["evaluation"] + ": " + wrong["metric"]))
        told = f"{len(wrong)} of {len(shown)} figures differ: {names}"
        raise ZooError(f"{found.recorded.name} was not reproduced: {told}")
    same = sum(shown["verdict"] == "same")
    print(f"{found.recorded.name} was reproduced: {len(shown)} figures agree, {same} exactly")
