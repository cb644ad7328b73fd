"""Commands that run or collect several trainings: sweep, compare, table, reproduce."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer import Argument, Option

from zoo.cli.app import DATA, INIT, RESUME, SET, TRAIN_DEVICE, check_early, comma_separated, with_device
from zoo.errors import RecipeError, ZooError, few
from zoo.files import RUNS

_UNFINISHED = "nothing is left to train here; the process that finishes last writes the results"


def sweep(
    recipes: list[str] = Argument(
        help="Recipes to compare, or a sweep (name or file) and some of its recipes."
    ),
    settings: list[str] | None = Option(
        None,
        "--set",
        metavar="A.B=C,D,...",
        help="Values to sweep over (YAML), or one for all runs, or labels of the sweep; can be repeated.",
    ),
    seeds: str | None = Option(None, "--seeds", help="Default: the sweep's, or 0,1,2."),
    data: str | None = DATA,
    out: Path | None = Option(None, "--out", help="Folder of the sweep. Default: runs/sweeps/NAME."),
    resume: bool = RESUME,
) -> None:
    """Train a recipe with every combination of values and seeds, and compare the results.

    Each run is a release in --out. Several processes share the runs: torchrun's, those of a SLURM array job,
    or others started with --resume. The exit status is 1 if a run failed.
    """
    vary: dict[str, list[Any]] = {}
    for pair in settings or []:
        key, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or not key:
            raise RecipeError(f'--set "{pair}": expected KEY.KEY=VALUE,VALUE,..., e.g. objective.tau=0.1,0.2')
        vary.setdefault(key, []).extend(comma_separated("--set", f"[{text}]"))
    check_early(data=data, out=out)
    import zoo

    numbers = None if seeds is None else comma_separated("--seeds", seeds)
    found = zoo.sweep(*recipes, vary=vary, seeds=numbers, data=data, out=out, resume=resume)
    if found is None:
        print(_UNFINISHED)
        return
    for name in ("sweep.md", "results.md"):
        print((found.folder / name).read_text(encoding="utf-8"))
    print(f"written: {found.folder}")
    if found.failed:
        name, reason = next(iter(found.failed.items()))
        raise ZooError(f"{len(found.failed)} of the runs failed, e.g. {name}: {reason}")


def compare(
    recipe: str | None = Argument(
        None, help="Of the objective classify. Default: one made for the weights.", show_default=False
    ),
    init: str = Option(..., "--init", help=INIT.help),
    data: str | None = DATA,
    out: Path | None = Option(None, "--out", help="Folder to create. Default: runs/NAME_compared."),
    methods: str | None = Option(
        None, "--methods", help='Names or sections, "crt,{name: lws, lr: 0.2}". Default: all.'
    ),
    seeds: str = Option("0,1,2", "--seeds", help="Of the trainings."),
    overrides: list[str] | None = SET,
    device: str | None = TRAIN_DEVICE,
    resume: bool = RESUME,
) -> None:
    """Fine-tune a release by several long-tailed methods, over seeds, and print one table.

    Processes share the runs as those of a sweep do.
    """
    check_early(init, recipe=recipe, data=data, out=out)
    import zoo

    found = zoo.compare(
        recipe,
        init=init,
        data=data,
        out=out,
        methods=None if methods is None else comma_separated("--methods", methods),
        seeds=comma_separated("--seeds", seeds),
        resume=resume,
        overrides=with_device(overrides, device),
    )
    if found is None:
        print(_UNFINISHED)
        return
    print((found.folder / "comparison.md").read_text(encoding="utf-8"))
    print(f"written: {found.folder}")


def table(
    names: list[str] = Argument(
        metavar="FOLDER_OR_RELEASE...", help="Folders with runs at any depth, releases, files results.json."
    ),
    out: Path | None = Option(
        None, "--out", help="Folder for results.md, .json and .png. Default: runs/table."
    ),
    readme: Path | None = Option(None, "--readme", help="Instead: a file with two marks, to put it between."),
) -> None:
    """Print the results of finished trainings as one table: means over seeds, time, published figures.

    Runs of the same recipe, images and evaluation share a row; a run that is found twice counts once.
    """
    check_early(out=out)
    import zoo

    folder = out or (None if readme is not None else RUNS / "table")
    print(zoo.table(*names, out=folder, readme=readme).markdown())
    print(f"written: {', '.join(str(place) for place in (folder, readme) if place)}")


def reproduce(
    name: str = Argument(help="Release: a shipped name, a folder or org/repo."),
    data: str | None = DATA,
    out: Path | None = Option(None, "--out", help="Release folder to create. Default: runs/reproduced/NAME."),
    tolerance: float | None = Option(
        None,
        "--tolerance",
        metavar="POINTS",
        help="Allowed difference of percentages; 0: equal. Default: by test images and spread over seeds.",
    ),
    spread: Path | None = Option(
        None,
        "--spread",
        help="Folder or results.json of five or more other seeds. Default: what is shipped for this release.",
    ),
    resume: bool = RESUME,
) -> None:
    """Train a release again by its own recipe, repeat its evaluations, and compare all figures.

    The exit status is 0 if all figures agree, and 1 if one differs or nothing could be compared.
    """
    check_early(data=data, out=out)
    import zoo

    found = zoo.reproduce(name, data=data, out=out, tolerance=tolerance, spread=spread, resume=resume)
    if found is None:  # another rank prints
        return
    shown = found.figures[found.figures["verdict"] != "not judged"]
    wrong = shown[shown["verdict"].isin(["differs", "missing"])]
    print(shown.to_string(index=False, na_rep="-", float_format="{:.2f}".format))
    for label, reason in found.not_repeated.items():
        print(f"not repeated: {label}: {reason}")
    print(f"judged together, by the number of test images and the spread over {found.seeds} other seeds")
    print(f"weights: {'the same' if found.same_weights else 'other'} bits (SHA-256)")
    print(f"the new release: {found.made.path}")
    if len(wrong):
        names = few(list(wrong["evaluation"] + ": " + wrong["metric"]))
        raise ZooError(
            f"{found.recorded.name} was not reproduced: {len(wrong)} of {len(shown)} figures differ: {names}"
        )
    same = sum(shown["verdict"] == "same")
    print(f"{found.recorded.name} was reproduced: {len(shown)} figures agree, {same} exactly")
