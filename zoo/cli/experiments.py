"""Commands that run or collect several trainings: sweep, compare, table, reproduce."""

from __future__ import annotations

from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument, Option

from zoo import catalog
from zoo.cli.app import DATA, INIT, RESUME, SET, TRAIN_DEVICE, check_early, comma_separated, with_device
from zoo.errors import ZooError, few
from zoo.files import RUNS
from zoo.recipe.overrides import PLAIN, as_overrides

if TYPE_CHECKING:
    from zoo.experiments.sweep import Sweep


def sweep(
    recipes: list[str] = Argument(help="Recipes, or a sweep (name or file) and recipes in place of its own."),
    settings: list[str] | None = Option(None, "--set", metavar="A.B=C,D,...", help="Values to sweep over."),
    seeds: str | None = Option(None, "--seeds", help="Default: the sweep's, or 0,1,2."),
    data: str | None = DATA,
    out: Path | None = Option(None, "--out", help="Folder of the sweep. Default: runs/sweeps/NAME."),
    resume: bool = RESUME,
) -> None:
    """Train a recipe with every combination of values and seeds, and compare the results.

    Processes started with --resume share the runs. The exit status is 1 if a run failed.
    """
    pairs = [pair.partition("=") for pair in settings or []]
    vary = {key.strip(): comma_separated(f"--set {key}", f"[{values}]") for key, _, values in pairs}
    first = as_overrides({key: values[0] for key, values in vary.items() if values}, "--set: ")
    for each in recipes if recipes[0] not in catalog.list_sweeps() and not isfile(recipes[0]) else ():
        check_early(recipe=each, changes=first)
    check_early(data=data, out=out)
    import zoo

    numbers = None if seeds is None else comma_separated("--seeds", seeds)
    found = zoo.sweep(*recipes, vary=vary, seeds=numbers, data=data, out=out, resume=resume)
    _print(found, may_fail=False)


def _print(found: Sweep | None, *, may_fail: bool) -> None:
    if found is None:
        print("nothing is left to train here; the process that finishes last writes the results")
        return
    for name in ("sweep.md", "results.md"):
        print((found.folder / name).read_text(encoding="utf-8"))
    print(f"written: {found.folder}")
    if found.failed and not may_fail:
        name, reason = next(iter(found.failed.items()))
        raise ZooError(f"{len(found.failed)} of the runs failed, e.g. {name}: {reason}")


def compare(
    recipe: str | None = Argument(None, help="Default: one made for the weights.", show_default=False),
    init: str = Option(..., "--init", help=INIT.help),
    data: str | None = DATA,
    out: Path | None = Option(None, "--out", help="Folder to create. Default: runs/NAME_compared."),
    methods: str | None = Option(None, "--methods", help="Names, crt,lws. Default: all."),
    seeds: str = Option("0,1,2", "--seeds", help="Of the trainings."),
    overrides: list[str] | None = SET,
    device: str | None = TRAIN_DEVICE,
    resume: bool = RESUME,
) -> None:
    """Fine-tune a release with several long-tailed methods and seeds: a sweep over the key method.

    The exit status is 1 if one of the --methods failed; without --methods, some may not suit the release.
    """
    given = with_device(overrides, device)
    changes = [*PLAIN, *given, f"init.release={init}", "init.head=fresh"]
    check_early(init, recipe=recipe, changes=changes, data=data, out=out)
    import zoo

    more: Any = {"seeds": comma_separated("--seeds", seeds), "overrides": given, "resume": resume}
    names = None if methods is None else comma_separated("--methods", methods)
    _print(zoo.compare(recipe, init=init, data=data, out=out, methods=names, **more), may_fail=names is None)


def table(
    names: list[str] = Argument(help="Folders with runs at any depth, releases, files results.json."),
    out: Path | None = Option(None, "--out", help="Folder for results.md and .json. Default: runs/table."),
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
    tolerance: float | None = Option(None, "--tolerance", help="Points by which percentages may differ."),
    spread: Path | None = Option(None, "--spread", help="Folder or results.json of 5 or more other seeds."),
    resume: bool = RESUME,
) -> None:
    """Train a release again by its own recipe, repeat its evaluations, and compare all metrics.

    Exit status: 0 if all agree, given the number of test images and the spread over seeds, else 1.
    """
    check_early(name, data=data, out=out)
    import zoo

    found = zoo.reproduce(name, data=data, out=out, tolerance=tolerance, spread=spread, resume=resume)
    if found is None:  # another rank prints
        return
    print(found.figures.to_string(index=False, float_format="{:.2f}".format))
    weights = "the same" if found.same_weights else "other"
    print(f"weights: {weights} bits; the new release: {found.made.path}")
    of = f"of {len(found.figures)} figures"
    if wrong := list(found.wrong["evaluation"] + ": " + found.wrong["metric"]):
        raise ZooError(f"{found.recorded.name} was not reproduced: {len(wrong)} {of} differ: {few(wrong)}")
    same = sum(found.figures["verdict"] == "same")
    print(f"{found.recorded.name} was reproduced: {same} {of} exactly, all within the tolerance")
