"""`zoo.pretrain`: train, measure, draw, write the release."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from zoo import hub
from zoo.api.finishing import Finished, finish
from zoo.config import plain_kind
from zoo.data import DataConfig, ImageDataset, open_dataset
from zoo.data.memory import Root
from zoo.data.sources import from_archive
from zoo.errors import DataError, Interrupted, RecipeError, TrainingError, ZooError, ZooWarning
from zoo.files import RUNS, write_text
from zoo.image_list import ImageList
from zoo.launch import handed_on, others_waiting, restarted
from zoo.ranks import ALONE, Ranks
from zoo.recipe import Recipe
from zoo.recipe.naming import renamed
from zoo.recipe.overrides import Overrides, as_overrides
from zoo.release import Release
from zoo.release.format import holds_release
from zoo.training import (
    RunFolder,
    Stage,
    build_objective,
    cpu_threads,
    learns_without_labels,
    pick_device,
)
from zoo.training.changes import is_same
from zoo.training.distributed import join
from zoo.training.signals import interruptible
from zoo.training.stages import beginning, train_stages
from zoo.training.trackers import require_trackers

DATA_FOLDER = "data_folder.txt"
"""File of a run's own folder that says where its data lie, for `zoo.snapshot`; it is never published."""


def pretrain(
    recipe: Recipe | str | Path,
    *,
    out: str | Path | None = None,
    data: Root = None,
    resume: bool = False,
    overrides: Overrides = (),
    stages_at: str | Path | None = None,
    images: Mapping[str, ImageList] | None = None,
) -> Release:
    """Do what `zoo.api.own_pretraining.pretrain` does, which takes the same arguments, with a given recipe.

    Raises:
        Interrupted, RanksLost, ZooError: as there.
    """
    recipe = plan_pretraining(recipe, data=data, overrides=overrides)
    require_trackers(recipe)
    out = RUNS / recipe.name if out is None else Path(out)
    resume = resume or restarted()
    if holds_release(out):
        finished = hub.open(out)
        if resume and is_same(dict(finished.recipe), recipe):
            return finished
        raise TrainingError(f'"{out}" holds a finished release of "{finished.name}"; choose another --out')
    begun = [RunFolder(out / "run")]
    at = None if stages_at is None else Path(stages_at)
    with (
        interruptible(lambda: _saved(begun[-1]), once=not handed_on()),
        join(pick_device(recipe.training.device).type) as ranks,
    ):
        release = _pretrain(recipe, begun, out, data, ranks, resume=resume, at=at, images=images or {})
    return release or hub.open(out)


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
    at: Path | None,
    images: Mapping[str, ImageList],
) -> Release | None:
    """Do what `pretrain` does; only rank 0 measures, and has the release then."""
    (run,) = begun
    with ranks.in_turn():  # what one fetches or decodes, the others find
        train_set, test_set = open_sets(recipe, data, images, ranks)
        objective = build_objective(beginning(recipe), train_set)
    release = None
    with cpu_threads(recipe.training.threads), run.locked() if ranks.rank == 0 else nullcontext():
        if ranks.rank == 0 and isinstance(data, str | Path):
            write_text(run.path / DATA_FOLDER, f"{Path(data).resolve()}\n")
        stages = train_stages(
            objective, train_set, recipe, run, resume=resume, ranks=ranks, at=at, begun=begun
        )
        if stages:
            objective = stages[-1].trained.objective
        if ranks.rank == 0:
            with _trained_already(run), others_waiting():
                finished = finish(
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
                _track(finished, recipe, stages, run, shared=at is not None)
                release = finished.release
        ranks.barrier()
    return release


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
    config = from_archive(recipe.data, data) if images else recipe.data
    train_set = open_dataset(
        config, "train", data, images.get("train"), unlabelled=learns_without_labels(recipe)
    )
    if recipe.evaluation and not train_set.num_classes:
        raise DataError(
            "evaluation: the training images have no classes, by which protocols measure; expected "
            "--set 'evaluation=[]'"
        )
    test_set = _test_set(recipe, config, data, images.get("test"), ranks, classes=train_set.num_classes)
    if recipe.evaluation and train_set.num_classes < 2:
        raise DataError(
            f"evaluation: the data have {train_set.num_classes} class, expected at least 2; "
            'set "evaluation: []"'
        )
    return train_set, test_set


def _test_set(
    recipe: Recipe,
    config: DataConfig,
    data: Root,
    listed: ImageList | None,
    ranks: Ranks,
    *,
    classes: int,
) -> ImageDataset | None:
    """Return the test images; None where there are none, and nothing is to be measured on them."""
    try:
        return open_dataset(config, "test", data, listed)
    except DataError as error:
        if recipe.evaluation:
            raise
        if ranks.rank == 0 and classes:  # who has images alone expects no test images of them
            warnings.warn(f"the release gets no map of test features: {error}", ZooWarning, stacklevel=2)
        return None


def _track(
    finished: Finished, recipe: Recipe, stages: Sequence[Stage], run: RunFolder, *, shared: bool
) -> None:
    """Send the trackers the results, to the last training unless it is `shared` with other recipes."""
    _, entries, pictures = finished
    if stages and not shared:
        recipe, run = stages[-1].recipe, stages[-1].run
    with run.locked():
        run.track_results(recipe, entries, pictures, step=stages[-1].trained.steps if stages else 0)


def plan_pretraining(recipe: Recipe | str | Path, *, data: Root = None, overrides: Overrides = ()) -> Recipe:
    """Return the recipe of a training without running it; the arguments are those of `pretrain`.

    Where overrides change the data or the kind of objective, and not the name, it is called NAME_changed.

    Raises:
        RecipeError: for a recipe or overrides that are none.
    """
    overrides = as_overrides(overrides)
    made = as_recipe(recipe, overrides)
    if not overrides:
        return made
    try:
        before = as_recipe(recipe, ())
    except RecipeError:  # whole only with its overrides: there is nothing to compare with
        return made
    return renamed(made, before, overrides)


def as_recipe(recipe: Recipe | str | Path, overrides: Overrides) -> Recipe:
    """Read what a caller gave as a recipe, with the overrides applied."""
    overrides = as_overrides(overrides)
    if isinstance(recipe, Recipe):
        return Recipe.from_yaml(recipe.to_yaml(), recipe.name, overrides) if overrides else recipe
    if not isinstance(recipe, str | Path):
        raise RecipeError(f"recipe: found {plain_kind(recipe)}, expected a name, a file or a Recipe")
    return Recipe.load(recipe, overrides)


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
