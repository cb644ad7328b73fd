"""Commands that train: demo, pretrain, finetune and snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer import Argument, BadParameter, Option

from zoo.cli.app import DATA, INIT, OUT, RESUME, SET, TRAIN_DEVICE, check_early, with_device
from zoo.cli.show import print_release


def demo(
    out: Path = Option(Path("zoo-demo"), "--out", help="Folder for the releases and pictures."),
    seed: int = Option(0, "--seed", help="Seed of every training."),
) -> None:
    """Pretrain MoCo + FT and, on long-tailed digits, PaCo; release, load back, compare with baselines."""
    from zoo.demo import run

    run(out, seed)


def pretrain(
    recipe: str | None = Argument(None, help="A shipped name or a file. Default: one made for --data."),
    data: str | None = DATA,
    init: str | None = INIT,
    arch: str | None = Option(None, "--arch", help="Instead of --init: a timm architecture, random weights."),
    objective: str | None = Option(None, "--objective", help="Without a recipe: moco (default) or simclr."),
    out: Path | None = OUT,
    overrides: list[str] | None = SET,
    device: str | None = TRAIN_DEVICE,
    resume: bool = RESUME,
) -> None:
    """Train by a recipe, evaluate, and write a release; without a recipe, on images of your own."""
    if recipe is data is init is arch is None:
        raise BadParameter("missing; or give --data DIR with --init or --arch", param_hint="RECIPE")
    given = with_device(overrides, device)
    check_early(recipe=recipe, changes=given, data=data, out=out)
    import zoo

    start: Any = {"init": init, "arch": arch, "objective": objective}
    print_release(zoo.pretrain(recipe, data=data, out=out, overrides=given, resume=resume, **start))


def finetune(
    recipe: str | None = Argument(None, help="Usually of objective classify. Default: one made for --init."),
    init: str = Option(..., "--init", help=INIT.help),
    head: str | None = Option(
        None, "--head", help="fresh, centers: the learned ones, or means: of each class's features."
    ),
    data: str | None = DATA,
    out: Path | None = OUT,
    overrides: list[str] | None = SET,
    device: str | None = TRAIN_DEVICE,
    resume: bool = RESUME,
) -> None:
    """Train from a release instead of random weights, on any data."""
    given = with_device(overrides, device)
    starts = [f"init.release={init}", *([] if head is None else [f"init.head={head}"])]
    check_early(init, recipe=recipe, changes=[*given, *starts], data=data, out=out)
    import zoo

    made = zoo.finetune(recipe, init=init, head=head, data=data, out=out, overrides=given, resume=resume)
    print_release(made)


def snapshot(
    run: Path = Argument(help="Folder of the training: the --out of zoo pretrain or zoo finetune."),
    step: int | None = Option(None, "--step", help="Step of the checkpoint. Default: the newest."),
    data: str | None = DATA,
    out: Path | None = OUT,
    device: str | None = TRAIN_DEVICE,
) -> None:
    """Make a release from a checkpoint of a training; the training is only read and may continue."""
    check_early(data=data, out=out)
    import zoo

    print_release(zoo.snapshot(run, step=step, data=data, out=out, overrides=with_device(None, device)))
