"""Commands that train and measure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zoo.cli.app import Data, Out, Resume, Set, app, key_values
from zoo.cli.show import print_evaluations, print_release, settings_text
from zoo.errors import ZooError
from zoo.files import RUNS
from zoo.launch import launched, rank

if TYPE_CHECKING:
    from zoo.recipe import Recipe
    from zoo.release import Release


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for the releases and pictures.")] = Path(
        "zoo-demo"
    ),
    seed: Annotated[int, typer.Option("--seed", help="Seed of every training.")] = 0,
) -> None:
    """Pretrain MoCo + FT and PaCo on long-tailed digits, release, load back, and compare with baselines."""
    from zoo.demo import run

    run(out, seed)


@app.command()
def pretrain(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="Recipe: a shipped name or a file. Default: one made for --data.", show_default=False
        ),
    ] = None,
    data: Data = None,
    init: Annotated[
        str | None,
        typer.Option(
            "--init",
            help="Without a recipe: release to start from, a name, folder, org/repo or timm:ARCH.TAG.",
        ),
    ] = None,
    arch: Annotated[
        str | None, typer.Option("--arch", help="Or an architecture of timm's, with new weights.")
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective", help="Without a recipe: moco or simclr. Default: moco.", show_default=False
        ),
    ] = None,
    out: Out = None,
    overrides: Set = None,
    resume: Resume = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="Only measure where the time of a step goes; train nothing.")
    ] = False,
) -> None:
    """Train as a recipe says, measure the result, and write its release folder.

    Without a recipe, on images of your own, which need no labels: --data DIR with --init or --arch.
    The recipe that is made for them is kept with every value in the release.
    """
    if recipe is None and data is None and init is None and arch is None:
        raise typer.BadParameter("missing; or give --data DIR with --init or --arch", param_hint="RECIPE")
    from zoo import api

    changes: Sequence[str] = overrides or []
    if recipe is None:
        parsed, root = api.plan_own_pretraining(
            data=data, init=init, arch=arch, objective=objective, overrides=changes
        )
    else:
        api.refuse_beside_a_recipe(init=init, arch=arch, objective=objective)
        root, changes = api.data_in_place(recipe, data, changes)
        parsed = api.plan_pretraining(recipe, data=root, overrides=changes)
    if profile:
        if launched() > 1:
            raise ZooError(f"--profile: started as {launched()} processes, expected one")
        folder = out or RUNS / parsed.name / "profile"
        print("\n".join(api.profile_step(parsed, out=folder, data=root)[1]))
        print(f"\ntorch's table: {folder / 'operations.txt'}")
        return
    if recipe is None:
        _tell_made(parsed, out or RUNS / parsed.name)
    _announce(api.pretrain(parsed, out=out, data=root, resume=resume))


def _tell_made(recipe: Recipe, out: Path) -> None:
    """Say what a made recipe has decided, before hours are spent on it."""
    from zoo.training.progress import say

    section, size = recipe.training, recipe.views.eval.size
    measured = " and ".join(each.protocol for each in recipe.evaluation)
    after = (
        f"then measured by {measured}" if measured else "nothing to measure by: no classes, or no test images"
    )
    epochs = "1 epoch" if section.epochs == 1 else f"{section.epochs} epochs"
    say(
        f"made {recipe.name}: {epochs} in batches of {section.batch_size}, {size} x {size} pixels, learning "
        f"rate {recipe.optimizer.lr:g}; {after}; every value: {out / 'run' / 'recipe.yaml'}, --set changes it"
    )


@app.command()
def snapshot(
    run: Annotated[
        Path, typer.Argument(help="Folder of the training: the --out of zoo pretrain or zoo finetune.")
    ],
    step: Annotated[
        int | None,
        typer.Option("--step", help="Of which checkpoint. Default: the newest.", show_default=False),
    ] = None,
    data: Data = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Release folder to make. Default: runs/NAME_epN, NAME that of the training's recipe.",
        ),
    ] = None,
    overrides: Set = None,
) -> None:
    """Make a release of a training that goes on, or was stopped, from one of its checkpoints.

    It is measured as the recipe says, and its card says how far the training was.
    The training is not touched, and can go on meanwhile.
    """
    from zoo import api

    _announce(api.snapshot(run, step=step, data=data, out=out, overrides=overrides or []))


@app.command()
def finetune(
    recipe: Annotated[
        str | None,
        typer.Argument(
            help="Recipe, usually of the objective classify. Default: one made for the release.",
            show_default=False,
        ),
    ] = None,
    *,
    init: Annotated[
        str, typer.Option("--init", help="Release to start from: name, folder, org/repo or timm:ARCH.TAG.")
    ],
    head: Annotated[str | None, typer.Option("--head", help="fresh, or centers: the learned ones.")] = None,
    data: Data = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Release folder to make. Default: runs/NAME_finetuned, NAME that of the recipe.",
        ),
    ] = None,
    overrides: Set = None,
    resume: Resume = False,
) -> None:
    """Train from a release instead of random weights, on any data."""
    from zoo import api

    release = api.finetune(
        recipe, init=init, out=out, head=head, data=data, resume=resume, overrides=overrides or []
    )
    _announce(release)


def _announce(release: Release) -> None:
    if rank() > 0:  # torchrun's first process speaks for all
        return
    print_release(release)
    print(f'\nload it:  zoo.load("{release.path}")')


@app.command()
def evaluate(
    protocol: Annotated[
        str,
        typer.Argument(help="linear, knn, few_shot, retrieval, classifier, linear_full or semi_supervised."),
    ],
    release: Annotated[
        str, typer.Argument(help="Weights name, folder, org/repo, or timm:ARCH.TAG for timm's own weights.")
    ],
    data: Data = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Setting of the protocol, e.g. k=200."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", help="Processes that decode images. Default: the release's recipe's."),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    save: Annotated[bool, typer.Option(help="Record the result in metrics.json and card.")] = True,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for a training's state. Default: in RELEASE/run or runs/."),
    ] = None,
    resume: Resume = False,
) -> None:
    """Measure an encoder.

    For monitoring and ablation, on features that are computed once:
    linear, a linear probe, its penalty chosen inside the training set;
    knn, a vote of the nearest training images;
    few_shot, a classifier on shots=N images of each class, over 5 draws;
    retrieval, recall@k and mAP among test images, or in gallery=train;
    classifier, the learned centers as they stand, or less tau=T times the log prior.

    For figures that are compared with papers:
    linear_full, the published linear evaluation. 100 epochs of SGD on
    augmented images train a linear layer on the frozen encoder;
    semi_supervised, the network fine-tuned on fraction=0.1 or 0.01 of the
    labels. Both show progress, and go on with --resume when stopped.

    Test labels are used for nothing but the final count.
    """
    from zoo import api

    entry, record, reason = api.evaluate_release(
        release,
        protocol,
        data,
        device=device,
        workers=workers,
        save=save,
        out=out,
        resume=resume,
        settings=key_values(settings or []),
    )
    print_evaluations([entry])
    facts = {**entry["settings"], **{f"chosen {name}": value for name, value in entry["chosen"].items()}}
    print(f"{entry['test_set']['num_images']:,} test images" + (f"; {settings_text(facts)}" if facts else ""))
    if record is not None:
        print(f"recorded in {record} and its card")
    else:
        print(f"not recorded: {reason if save else '--no-save'}")
