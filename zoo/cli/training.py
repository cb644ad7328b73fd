"""Commands that train: demo, pretrain, finetune, and snapshot, which releases what goes on training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from typer import Argument, BadParameter, Option

from zoo.cli.app import DATA, INIT, OUT, RESUME, SET, TRAINED_ON, app, changes, check_early
from zoo.cli.show import print_loading, print_release
from zoo.files import RUNS
from zoo.launch import rank

if TYPE_CHECKING:
    from zoo.data.memory import Root
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
        None, help="Recipe: a shipped name or a file. Default: one made for --data.", show_default=False
    ),
    data: str | None = DATA,
    init: str | None = INIT,
    arch: str | None = Option(None, "--arch", help="Or an architecture of timm's, with new weights."),
    objective: str | None = Option(
        None, "--objective", help="Without a recipe: moco or simclr. Default: moco."
    ),
    out: Path | None = OUT,
    overrides: list[str] | None = SET,
    device: str | None = TRAINED_ON,
    resume: bool = RESUME,
    profile: bool = Option(
        False, "--profile", help="Only measure where the time of a step goes; train nothing."
    ),
) -> None:
    """Train as a recipe says, measure the result, and write its release folder.

    Without a recipe, on images of your own, which need no labels: --data DIR with --init or --arch.
    The recipe that is made for them is kept with every value in the release.
    """
    if recipe is None and data is None and init is None and arch is None:
        raise BadParameter("missing; or give --data DIR with --init or --arch", param_hint="RECIPE")
    check_early(recipe=recipe, data=data, out=out)
    from zoo import pretraining
    from zoo.recipe.planning import plan_pretraining

    parsed, root = plan_pretraining(
        recipe, data=data, overrides=changes(overrides, device), init=init, arch=arch, objective=objective
    )
    if profile:
        _print_step_times(parsed, root)
        return
    if recipe is None:
        _tell_made(parsed, out or RUNS / parsed.name)
    _announce(pretraining.pretrain(parsed, out=out, data=root, resume=resume))


def _print_step_times(recipe: Recipe, data: Root) -> None:
    """Print how long each part of a step takes; of a method's first training."""
    from zoo.data import open_dataset
    from zoo.data.any_data import own_root
    from zoo.training import learns_without_labels
    from zoo.training.profile import step_times
    from zoo.training.progress import show_status
    from zoo.training.stages import beginning

    plain = beginning(recipe)
    dataset = open_dataset(
        plain.data, "train", own_root(data, plain.data), unlabelled=learns_without_labels(plain)
    )
    with show_status(f"measuring steps of {recipe.name}"):
        times = step_times(plain, dataset)
    for part, seconds in times.items():
        print(f"{part:10} {1e3 * seconds:10,.1f} ms {seconds / times['step']:7.1%}")


def _tell_made(recipe: Recipe, out: Path) -> None:
    """Say what a made recipe has decided, before hours are spent on it."""
    from zoo.training.progress import say

    section, size = recipe.training, recipe.views.eval.size
    measured = " and ".join(each.protocol for each in recipe.evaluation) or "nothing"
    say(
        f"made {recipe.name}: {section.epochs} epoch(s) in batches of {section.batch_size}, {size} x {size} "
        f"pixels, learning rate {recipe.optimizer.lr:g}; then measured by {measured}; every value: "
        f"{out / 'run' / 'recipe.yaml'}, --set changes it"
    )


@app.command()
def finetune(
    recipe: str | None = Argument(
        None,
        help="Recipe, usually of the objective classify. Default: one made for the release.",
        show_default=False,
    ),
    init: str = Option(..., "--init", help=INIT.help),
    head: str | None = Option(None, "--head", help="fresh, or centers: the learned ones."),
    data: str | None = DATA,
    out: Path | None = Option(
        None, "--out", help="Release folder to make. Default: runs/NAME_finetuned, NAME that of the recipe."
    ),
    overrides: list[str] | None = SET,
    device: str | None = TRAINED_ON,
    resume: bool = RESUME,
) -> None:
    """Train from a release instead of random weights, on any data."""
    check_early(init, recipe=recipe, data=data, out=out)
    import zoo

    given = changes(overrides, device)
    _announce(zoo.finetune(recipe, init=init, head=head, data=data, out=out, overrides=given, resume=resume))


@app.command()
def snapshot(
    run: Path = Argument(help="Folder of the training: the --out of zoo pretrain or zoo finetune."),
    step: int | None = Option(None, "--step", help="Of which checkpoint. Default: the newest."),
    data: str | None = DATA,
    out: Path | None = Option(
        None,
        "--out",
        help="Release folder to make. Default: runs/NAME_epN.",
    ),
    overrides: list[str] | None = SET,
    device: str | None = TRAINED_ON,
) -> None:
    """Make a release of a training that goes on, or was stopped, from one of its checkpoints.

    It is measured as the recipe says, and its card says how far the training was.
    The training is not touched, and can go on meanwhile.
    """
    check_early(data=data, out=out)
    import zoo

    _announce(zoo.snapshot(run, step=step, data=data, out=out, overrides=changes(overrides, device)))


def _announce(release: Release) -> None:
    if rank() == 0:  # torchrun's first process speaks for all
        print_release(release)
        print_loading(release, str(release.path))
