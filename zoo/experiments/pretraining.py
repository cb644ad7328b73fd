"""`zoo.pretrain`, `zoo.finetune`, `zoo.snapshot`: train, measure, draw, write the release."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import nullcontext
from os.path import isfile
from pathlib import Path
from typing import Any

from zoo import hub
from zoo.data import open_dataset
from zoo.data.any_data import Data, own_root
from zoo.data.config import Folder
from zoo.data.dataset import Root
from zoo.errors import DataError, TrainingError
from zoo.evaluation.evaluate import own_data
from zoo.evaluation.measure import warn_of_shared
from zoo.files import RUNS, write_text
from zoo.recipe import Recipe
from zoo.recipe.overrides import Overrides, as_overrides
from zoo.recipe.planning import make, plan_pretraining
from zoo.release import Release
from zoo.release.format import holds_release
from zoo.release.tensors import ImageList
from zoo.report.finish import Sets, finish
from zoo.training import RunFolder, build_objective, cpu_threads, pick_device
from zoo.training.distributed import join
from zoo.training.facts import checkpoint_of, trained_until
from zoo.training.precision import choose, resolve_auto
from zoo.training.progress import say
from zoo.training.run import check_same_run, is_same
from zoo.training.signals import interruptible
from zoo.training.stages import STAGE, first_stage, train_stages

DATA_FOLDER = "data_folder.txt"
"""File in a run's folder with the location of its data, for `snapshot`; never published."""


def pretrain(
    recipe: Recipe | str | Path | None = None,
    *,
    out: str | Path | None = None,
    data: Data = None,
    resume: bool = False,
    overrides: Overrides = (),
    init: str | Path | Release | None = None,
    arch: str | None = None,
    objective: str | None = None,
    images: Mapping[str, ImageList] | None = None,
) -> Release:
    """Train a recipe, evaluate the result and write its release; torchrun's processes train one model.

    Args:
        recipe: a shipped recipe's name, a file, or a `Recipe`; None: one is made for the images of `data`.
        out: the release folder to make, `runs/NAME` when None; the run's state is in its subfolder `run`.
        data: the folder of the recipe's own data, or any other `zoo.data.any_data.Data`, which replace the
            recipe's source, holdout, long tail and subset.
        resume: continue from the last checkpoint in `out`, or start if there is none.
        overrides: changes, recorded in the released recipe: a list of `a.b=c`, or a mapping `{"a.b": c}`.
            With other data, method or objective the release is called NAME_changed, unless they set a name.
        init: without a recipe, the initial weights: a release, its name or folder, or `timm:ARCH.TAG`.
        arch: without a recipe, instead of `init`: the architecture, with new weights.
        objective: without a recipe: "moco", the default, or "simclr".
        images: those to train on ("train") and measure on ("test"), as listed in another release's
            `Release.images`, to be found in another copy of the data.

    Raises:
        Interrupted: on SIGINT, SIGTERM, SIGHUP or SIGUSR1, after saving the state.
        RanksLost: when another process of several ended.
        ZooError: for anything wrong with recipe, data or folder.
    """
    planned, root = plan_pretraining(
        recipe, data=data, overrides=overrides, init=init, arch=arch, objective=objective
    )
    settings, out = planned.training, RUNS / planned.name if out is None else Path(out)
    if recipe is None:
        how = f"{settings.epochs} epochs, batch size {settings.batch_size}, {planned.views.eval.size} pixels"
        say(f"made {planned.name}: {how}, learning rate {planned.optimizer.lr:g}; --set changes any value")
    source = planned.data.source
    trained_on = Path(str(root), source.train).resolve() if isinstance(source, Folder) else None
    if trained_on in out.resolve().parents:
        found = f'out: "{out}" is in "{trained_on}", where its pictures would be training images'
        raise TrainingError(f"{found}; choose another --out")
    resume = resume or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"  # restarted by torchrun
    if holds_release(out):
        finished = hub.open(out)
        trained = finished.recipe.get("training")  # a converted release has none
        if resume and trained and is_same(dict(finished.recipe), resolve_auto(planned, trained)):
            say(f'"{out}" is finished; nothing was trained')
            return finished
        raise TrainingError(f'"{out}" holds a finished release of "{finished.name}"; choose another --out')
    run, device = RunFolder(out / "run"), pick_device(settings.device)

    def saved() -> str:
        newest = next(iter([run, *run.stages()][-1].checkpoints().values()), None)
        return "nothing was trained yet" if newest is None else f'the state is saved in "{newest}"'

    def chosen() -> dict[str, Any]:
        for begun in (run, run.stage(1)) if resume else ():  # a stage may be copied from another run
            if isfile(begun.recipe_file):
                return Recipe.load(begun.recipe_file).training.model_dump()
        return choose(planned, model.encoder, len(sets[0]), device)

    with interruptible(saved), join(device.type) as ranks:
        first = ranks.rank == 0
        with ranks.first_rank_first():  # the others find what the first one fetched or decoded
            sets = open_sets(planned, root, images)
            model = build_objective(first_stage(planned), sets[0])
        planned = resolve_auto(planned, ranks.broadcast_from_first(chosen))
        if first:
            warn_of_shared(*sets)
        with cpu_threads(settings.threads), run.locked() if first else nullcontext():
            if auto := [key for key in ("precision", "compile") if getattr(settings, key) == "auto"]:
                say(f"auto chose {', '.join(f'{key} {getattr(planned.training, key)}' for key in auto)}")
            if first and isinstance(root, str | Path):
                write_text(run.path / DATA_FOLDER, f"{Path(root).resolve()}\n")
            stages = train_stages(model, sets[0], planned, run, resume=resume, ranks=ranks)
            if stages:
                model = stages[-1].objective
            if first:
                try:
                    finish(planned, model, stages, sets, run.path, out, ranks=ranks.size, images=images)
                except DataError as error:
                    raise DataError(f"{error}; training is done: replace this image, then --resume") from None
            ranks.barrier()
    return hub.open(out)


def open_sets(recipe: Recipe, data: Root, images: Mapping[str, ImageList] | None = None) -> Sets:
    """Open the training images of a recipe, and the test images if it evaluates anything.

    Raises:
        DataError: see `open_dataset`; also if the recipe evaluates, and there are fewer than two classes.
    """
    images, unlabelled = images or {}, recipe.objective.without_labels
    train_set = open_dataset(recipe.data, "train", data, images.get("train"), unlabelled=unlabelled)
    if not recipe.evaluation:
        return train_set, None
    if train_set.num_classes < 2:
        found = "1 class" if train_set.num_classes else "no classes"
        raise DataError(f"evaluation: the training images have {found}, expected --set 'evaluation=[]'")
    return train_set, open_dataset(recipe.data, "test", data, images.get("test"))


def plan_finetuning(
    recipe: Recipe | str | Path | None = None,
    *,
    init: str | Path | Release,
    head: str | None = None,
    data: Data = None,
    overrides: Overrides = (),
) -> tuple[Recipe, Root]:
    """Return the recipe of a fine-tuning and the location of its data, by default the release's own.

    The arguments are those of `finetune`.
    """
    changes = [*as_overrides(overrides), ("init.release", hub.resolve(init).spelling)]
    changes += [] if head is None else [("init.head", head)]
    if recipe is not None:
        return plan_pretraining(recipe, data=data, overrides=changes)
    config, root, _ = own_data(hub.open(init), data)
    return make("finetuning", config, root, changes, init=init), root


def finetune(
    recipe: Recipe | str | Path | None = None,
    *,
    init: str | Path | Release,
    out: str | Path | None = None,
    head: str | None = None,
    data: Data = None,
    resume: bool = False,
    overrides: Overrides = (),
) -> Release:
    """Train from a release instead of random weights; other arguments and errors are those of `pretrain`.

    `init` is a release's name, `org/repo[@rev]`, a folder, a `Release` or `timm:ARCH.TAG`; `head` is "fresh",
    "centers", "means", or None for the recipe's own. The recipe usually has the objective `classify`; None:
    made by `zoo.recipe.planning.make`. `out` is by default `runs/NAME_finetuned`, with the recipe's name.
    """
    own = any(key.startswith("data.") for key, _ in as_overrides(overrides))
    if recipe is None and data is None and not own:  # training on the release's own data would be a surprise
        raise DataError("finetune: found no recipe and no data, expected one of them, e.g. --data DIR")
    planned, root = plan_finetuning(recipe, init=init, head=head, data=data, overrides=overrides)
    suffix = "" if "finetuned" in planned.name else "_finetuned"
    return pretrain(planned, out=out or RUNS / f"{planned.name}{suffix}", data=root, resume=resume)


def snapshot(
    run: str | Path,
    *,
    out: str | Path | None = None,
    data: Data = None,
    step: int | None = None,
    overrides: Overrides = (),
) -> Release:
    """Make a release from a checkpoint, as if the training had ended there; the run is only read.

    Args:
        run: the folder of the training, as `out` of `pretrain`; the recipe must not have a `method`.
        out: the release folder to make; None: `runs/NAME_epN`, or `runs/NAME_stepN` within an epoch.
        data: those of the training; by default in the folder that was given to it.
        step: of the checkpoint; the newest when None.
        overrides: changes of the recipe, of the kind that resuming allows.

    Raises:
        ZooError: for a missing run or checkpoint, other images, or an `out` with a release or a training.
    """
    folder = next(filter(RunFolder.is_run, map(RunFolder, (Path(run) / "run", Path(run)))), None)
    if folder is None:
        raise TrainingError(f'"{run}" holds no training, expected an --out of zoo pretrain or finetune')
    found = Recipe.load(folder.recipe_file)
    if found.method is not None or found.description == STAGE:
        kind = "a stage of a method" if found.method is None else f'of the method "{found.method.name}"'
        raise TrainingError(f'"{folder.path}" is {kind}, expected a single training')
    recipe = Recipe.load(found, overrides)
    check_same_run(found, recipe, folder.path)
    checkpoint = checkpoint_of(folder, step)
    if out is not None:
        _require_free(Path(out))  # fail before data are read
    if data is None and isfile(folder.path / DATA_FOLDER):
        data = Path((folder.path / DATA_FOLDER).read_text("utf-8").strip())
    sets = open_sets(recipe, own_root(data, recipe.data))
    with cpu_threads(recipe.training.threads):
        trained = trained_until(checkpoint, recipe, folder, sets[0])
        reached = f"ep{trained.epoch}" if isinstance(trained.epoch, int) else f"step{trained.steps}"
        recipe = recipe.model_copy(update={"name": f"{recipe.name}_{reached}"})
        out = RUNS / recipe.name if out is None else Path(out)
        _require_free(out)
        trained.objective.to(pick_device(recipe.training.device))
        state = RunFolder(out / "run")
        with state.locked():
            finish(recipe, trained.objective, [trained], sets, state.path, out)
    return hub.open(out)


def _require_free(out: Path) -> None:
    """Refuse the folder of a release, or of a training whose own release would then have no place."""
    if holds_release(out):
        raise TrainingError(f'"{out}" holds a release already; choose another --out')
    for other in (out.resolve() / "run", out.resolve(), *out.resolve().parents):
        if RunFolder(other).is_run():
            raise TrainingError(f'out: "{out}" has a training, in "{other}"; choose another --out')
