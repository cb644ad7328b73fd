"""Commands that train: demo, pretrain, finetune and snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, BadParameter, Option

from zoo.cli.app import DATA, INIT, OUT, RESUME, SET, TRAIN_DEVICE, app, check_early, with_device
from zoo.cli.show import print_loading, print_release
from zoo.files import RUNS
from zoo.launch import rank

if TYPE_CHECKING:
    from zoo.data.dataset import Root
    from zoo.recipe import Recipe
    from zoo.release import Release


@app.command()
def demo(
    out: Path = Option(Path("zoo-demo"), "--out", help="Folder for the releases and pictures."),
    seed: int = Option(0, "--seed", help="Seed of every training."),
) -> None:
    """Pretrain MoCo + FT and PaCo on long-tailed digits, release, load back, and compare with baselines."""
    from zoo.demo import run

    run(out, seed)


@app.command()
def pretrain(
    recipe: str | None = Argument(
        None, help="A shipped name or a file. Default: one made for --data.", show_default=False
    ),
    data: str | None = DATA,
    init: str | None = INIT,
    arch: str | None = Option(None, "--arch", help="Instead of --init: a timm architecture, random weights."),
    objective: str | None = Option(None, "--objective", help="Without a recipe: moco (default) or simclr."),
    out: Path | None = OUT,
    overrides: list[str] | None = SET,
    device: str | None = TRAIN_DEVICE,
    resume: bool = RESUME,
    profile: bool = Option(False, "--profile", help="Print the time of each part of a step; train nothing."),
) -> None:
    """Train as a recipe says, evaluate the result, and write its release folder.

    Without a recipe, on your own images, which need no labels: --data DIR with --init or --arch.
    The recipe that is made for them is kept in the release, with every value.
    """
    if recipe is None and data is None and init is None and arch is None:
        raise BadParameter("missing; or give --data DIR with --init or --arch", param_hint="RECIPE")
    check_early(recipe=recipe, data=data, out=out)
    from zoo import pretraining
    from zoo.recipe.planning import plan_pretraining

    planned, root = plan_pretraining(
        recipe, data=data, overrides=with_device(overrides, device), init=init, arch=arch, objective=objective
    )
    if profile:
        _print_step_times(planned, root)
        return
    if recipe is None:
        _print_plan(planned, out or RUNS / planned.name)
    _print_made(pretraining.pretrain(planned, out=out, data=root, resume=resume))


def _print_step_times(recipe: Recipe, data: Root) -> None:
    """Print how long each part of a step takes; with a long-tailed method, of its first training."""
    from zoo.data import open_dataset
    from zoo.data.any_data import own_root
    from zoo.training import learns_without_labels
    from zoo.training.profile import step_times
    from zoo.training.progress import say
    from zoo.training.stages import beginning

    first = beginning(recipe)
    unlabelled = learns_without_labels(first)
    dataset = open_dataset(first.data, "train", own_root(data, first.data), unlabelled=unlabelled)
    say(f"measuring steps of {recipe.name}")
    times = step_times(first, dataset)
    for part, seconds in times.items():
        print(f"{part:10} {1e3 * seconds:10,.1f} ms {seconds / times['step']:7.1%}")


def _print_plan(recipe: Recipe, out: Path) -> None:
    """Print what a recipe made for the user's images decided, before hours are spent on it."""
    from zoo.training.progress import say

    training, size = recipe.training, recipe.views.eval.size
    protocols = " and ".join(each.protocol for each in recipe.evaluation) or "nothing"
    say(
        f"made {recipe.name}: {training.epochs} epoch(s), batch size {training.batch_size}, {size} x {size} "
        f"pixels, learning rate {recipe.optimizer.lr:g}; evaluated by {protocols}; every value: "
        f"{out / 'run' / 'recipe.yaml'}, --set changes it"
    )


@app.command()
def finetune(
    recipe: str | None = Argument(
        None, help="Usually of the objective classify. Default: one made for the weights.", show_default=False
    ),
    init: str = Option(..., "--init", help=INIT.help),
    head: str | None = Option(None, "--head", help="fresh, or centers: start from the learned ones."),
    data: str | None = DATA,
    out: Path | None = Option(
        None, "--out", help="Release folder to create. Default: runs/RECIPE_finetuned."
    ),
    overrides: list[str] | None = SET,
    device: str | None = TRAIN_DEVICE,
    resume: bool = RESUME,
) -> None:
    """Train from a release instead of random weights, on any data."""
    check_early(init, recipe=recipe, data=data, out=out)
    import zoo

    given = with_device(overrides, device)
    _print_made(
        zoo.finetune(recipe, init=init, head=head, data=data, out=out, overrides=given, resume=resume)
    )


@app.command()
def snapshot(
    run: Path = Argument(help="Folder of the training: the --out of zoo pretrain or zoo finetune."),
    step: int | None = Option(None, "--step", help="Step of the checkpoint. Default: the newest."),
    data: str | None = DATA,
    out: Path | None = Option(None, "--out", help="Release folder to create. Default: runs/NAME_epN."),
    overrides: list[str] | None = SET,
    device: str | None = TRAIN_DEVICE,
) -> None:
    """Make a release from a checkpoint of a training that is running or was stopped.

    It is evaluated as the recipe says, and its card names the epoch. The training is only read.
    """
    check_early(data=data, out=out)
    import zoo

    given = with_device(overrides, device)
    _print_made(zoo.snapshot(run, step=step, data=data, out=out, overrides=given))


def _print_made(release: Release) -> None:
    if rank() == 0:
        print_release(release)
        print_loading(release, str(release.path))
