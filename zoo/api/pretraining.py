"""`zoo.pretrain` and `zoo.finetune`: train, measure, draw, write the release."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

from zoo import hub
from zoo.api.finishing import finish
from zoo.api.planning import plan_finetuning, plan_pretraining
from zoo.data import ImageDataset, open_dataset
from zoo.data.any_data import Data
from zoo.data.memory import Root
from zoo.errors import DataError, Interrupted, TrainingError, ZooError, ZooWarning
from zoo.files import RUNS, write_text
from zoo.image_list import ImageList
from zoo.launch import handed_on, others_waiting, restarted
from zoo.ranks import ALONE, Ranks
from zoo.recipe import Recipe
from zoo.recipe.overrides import Overrides, as_overrides
from zoo.release import Release
from zoo.release.format import holds_release
from zoo.training import RunFolder, build_objective, cpu_threads, learns_without_labels, pick_device
from zoo.training.distributed import join
from zoo.training.logging import require_trackers
from zoo.training.run import is_same
from zoo.training.signals import interruptible
from zoo.training.stages import beginning, train_stages

DATA_FOLDER = "data_folder.txt"
"""File of a run's own folder that says where its data lie, for `zoo.snapshot`; it is never published."""


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
    """Train as a recipe says, measure the result and write its release.

    Started by torchrun, all its processes train together; `out` has to be a folder that all of them see. Then
    the first one measures and writes.

    Args:
        recipe: a shipped recipe's name, a file, or a `Recipe`; None: one made for the images of `data`, see
            `zoo.recipe.templates.pretraining`.
        out: the release folder to make, `runs/NAME` when None; the run's own state lies in its sub-folder
            `run`.
        data: the folder of the recipe's own data, where it needs one, or any other data, which take the place
            of the recipe's source, long tail and subset; see `zoo.data.any_data.Data`.
        resume: go on from the last checkpoint in `out`, or begin if there is none. A restart by torchrun
            does so in any case.
        overrides: changes, recorded in the released recipe: a list of `a.b=c`, or a mapping `{"a.b": c}`.
            With other data or another objective the release is called NAME_changed, unless they set a name.
        init: without a recipe, the weights to start from: a release, its name or folder, or `timm:ARCH.TAG`.
        arch: without a recipe, in place of `init`: the architecture, with new weights.
        objective: without a recipe "moco", which is the default, or "simclr".
        images: which to train ("train") and measure on ("test"), as `Release.images` of another release lists
            them: out of another copy of the data, where long tail and subset would draw others.

    Returns:
        The release in `out`.

    Raises:
        Interrupted: on SIGINT, SIGTERM, SIGHUP or SIGUSR1, after saving the state.
        RanksLost: when another process of several ended.
        ZooError: for anything wrong with recipe, data or folder.
    """
    planned, root = plan_pretraining(
        recipe, data=data, overrides=overrides, init=init, arch=arch, objective=objective
    )
    require_trackers(planned)
    out = RUNS / planned.name if out is None else Path(out)
    resume = resume or restarted()
    if holds_release(out):
        finished = hub.open(out)
        if resume and is_same(dict(finished.recipe), planned):
            return finished
        raise TrainingError(f'"{out}" holds a finished release of "{finished.name}"; choose another --out')
    begun = [RunFolder(out / "run")]
    with (
        interruptible(lambda: _saved(begun[-1]), once=not handed_on()),
        join(pick_device(planned.training.device).type) as ranks,
    ):
        _pretrain(planned, begun, out, root, ranks, resume=resume, images=images or {})
    return hub.open(out)


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
    """Train from a release instead of random weights; otherwise `pretrain`.

    Args:
        recipe: usually of the objective `classify`; None: one made for the release, see
            `zoo.recipe.templates.finetuning`.
        init: the release to start from: a weights name, `org/repo[@rev]`, a folder, a `Release`, or
            `timm:ARCH.TAG`.
        out: the release folder to make; None: `runs/NAME_finetuned`, NAME that of the recipe.
        head: "fresh" or "centers" (made of the release's learned centers); the recipe's own when None.
        data: see `pretrain`; needed without a recipe.
        resume: see `pretrain`.
        overrides: see `pretrain`.

    Raises:
        ZooError: as `pretrain`, and for a release or data that cannot be found.
    """
    own = any(each.strip().startswith("data.") for each in as_overrides(overrides))
    if recipe is None and data is None and not own:  # else hours on the release's own would be a surprise
        raise DataError("finetune: found no recipe and no data, expected one of them, e.g. --data DIR")
    planned, root = plan_finetuning(recipe, init=init, head=head, data=data, overrides=overrides)
    suffix = "" if "finetuned" in planned.name else "_finetuned"
    return pretrain(planned, out=out or RUNS / f"{planned.name}{suffix}", data=root, resume=resume)


def _saved(run: RunFolder) -> str:
    """Say what there is of a run that is stopped before or after its training."""
    newest = next(iter(run.checkpoints()), None)
    return "nothing was trained yet" if newest is None else f'the state is saved in "{newest}"'


def _pretrain(
    recipe: Recipe,
    begun: list[RunFolder],
    out: Path,
    data: Root,
    ranks: Ranks,
    *,
    resume: bool,
    images: Mapping[str, ImageList],
) -> None:
    """Do what `pretrain` does with a planned recipe; of several ranks the first one measures and writes."""
    (run,) = begun
    with ranks.in_turn():  # what one fetches or decodes, the others find
        train_set, test_set = open_sets(recipe, data, images, ranks)
        objective = build_objective(beginning(recipe), train_set)
    with cpu_threads(recipe.training.threads), run.locked() if ranks.rank == 0 else nullcontext():
        if ranks.rank == 0 and isinstance(data, str | Path):
            write_text(run.path / DATA_FOLDER, f"{Path(data).resolve()}\n")
        stages = train_stages(objective, train_set, recipe, run, resume=resume, ranks=ranks, begun=begun)
        if stages:
            objective = stages[-1].trained.objective
        if ranks.rank == 0:
            with _trained_already(run), others_waiting():
                finish(
                    recipe,
                    objective,
                    stages,
                    train_set,
                    test_set,
                    state=run.path,
                    out=out,
                    ranks=ranks.size,
                    images=images,
                )
        ranks.barrier()


def open_sets(
    recipe: Recipe,
    data: Root,
    images: Mapping[str, ImageList] | None = None,
    ranks: Ranks = ALONE,
) -> tuple[ImageDataset, ImageDataset | None]:
    """Open what a recipe trains and measures on.

    Returns:
        Training images and test images; None for these where there are none and none are needed.

    Raises:
        DataError: see `open_dataset`; for data without classes where the recipe measures by them.
    """
    images = images or {}
    config = recipe.data
    unlabelled = learns_without_labels(recipe)
    train_set = open_dataset(config, "train", data, images.get("train"), unlabelled=unlabelled)
    classes = train_set.num_classes
    if recipe.evaluation and classes < 2:
        raise DataError(
            f"evaluation: the training images have {classes or 'no'} class{'es' if classes != 1 else ''}, "
            "by which protocols measure; expected --set 'evaluation=[]'"
        )
    try:
        return train_set, open_dataset(config, "test", data, images.get("test"))
    except DataError as error:
        if recipe.evaluation:
            raise
        if ranks.rank == 0 and classes:  # who has images alone expects no test images of them
            warnings.warn(f"the release gets no map of test features: {error}", ZooWarning, stacklevel=2)
        return train_set, None


@contextmanager
def _trained_already(run: RunFolder) -> Iterator[None]:
    """Say of an error inside the block that no training is lost by it."""
    try:
        yield
    except (Interrupted, TrainingError):  # which say themselves what is saved
        raise
    except ZooError as error:
        stop = "" if str(error).endswith(("?", ".", "!")) else "."
        raise type(error)(
            f'{error}{stop} The training is done and saved in "{run.path}"; mend this and give the same '
            "command with --resume"
        ) from None
