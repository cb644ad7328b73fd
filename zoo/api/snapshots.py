"""`zoo.snapshot`: the release of a training that has not ended."""

from __future__ import annotations

from pathlib import Path

from zoo import hub
from zoo.api.finishing import finish
from zoo.api.pretraining import DATA_FOLDER, open_sets
from zoo.catalog import recipe_text
from zoo.data.any_data import Data, own_root
from zoo.errors import TrainingError
from zoo.files import RUNS, is_file
from zoo.recipe import Recipe
from zoo.recipe.overrides import Overrides, as_overrides
from zoo.release import Release
from zoo.release.format import holds_release
from zoo.training import RunFolder, cpu_threads, pick_device
from zoo.training.run import check_same_run
from zoo.training.snapshot import checkpoint_of, trained_until
from zoo.training.stages import STAGE


def snapshot(
    run: str | Path,
    *,
    out: str | Path | None = None,
    data: Data = None,
    step: int | None = None,
    overrides: Overrides = (),
) -> Release:
    """Make a release of a training that goes on, or was stopped, from one of its checkpoints.

    The weights are those that the training would release if it ended there: their moving average or, with
    early stopping, the best ones so far, where the recipe has them. It is measured as the recipe says, and
    its card says how far the training was. The run's folder is only read, so the training may go on.

    Args:
        run: the folder of the training, as `out` of `zoo.pretrain` or `zoo.finetune`; not of a method with
            several trainings, whose release tells of all of them.
        out: the release folder to make, `runs/NAME_epN` when None: NAME of the recipe, N the epoch, or
            `runs/NAME_stepN` where the checkpoint is not of an epoch's end.
        data: those of the training; the folder that it was given when None.
        step: after which the checkpoint was written; the newest when None.
        overrides: changes of the recipe; only those with which a training could be resumed, e.g.
            `{"evaluation": []}`.

    Returns:
        The release in `out`.

    Raises:
        ZooError: if there is no run or no such checkpoint, for other data than it trains on, or if `out`
            holds a release.
    """
    folder = _run_in(Path(run))
    found = Recipe.from_yaml(recipe_text(folder.recipe_file), str(folder.recipe_file))
    if found.method is not None or found.description == STAGE:
        of = "a stage of a method" if found.method is None else f'of the method "{found.method.name}"'
        raise TrainingError(
            f'"{folder.path}" is {of}, whose release tells of all its trainings: the same command with '
            "--resume ends them; snapshots are of a single training"
        )
    recipe = Recipe.load(found, as_overrides(overrides))
    check_same_run(found, recipe, folder.path)
    checkpoint = checkpoint_of(folder, step)
    if out is not None:
        _require_free(Path(out))  # before the data are read
    if data is None and is_file(folder.path / DATA_FOLDER):
        data = Path((folder.path / DATA_FOLDER).read_text("utf-8").strip())
    train_set, test_set = open_sets(recipe, own_root(data, recipe.data))
    with cpu_threads(recipe.training.threads):
        trained = trained_until(checkpoint, recipe, folder, train_set)
        reached = f"ep{trained.epoch}" if isinstance(trained.epoch, int) else f"step{trained.steps}"
        recipe = recipe.model_copy(update={"name": f"{recipe.name}_{reached}"})
        out = RUNS / recipe.name if out is None else Path(out)
        _require_free(out)
        trained.objective.to(pick_device(recipe.training.device))
        state = RunFolder(out / "run")
        with state.locked():
            finish(recipe, trained.objective, [trained], train_set, test_set, state=state.path, out=out)
    return hub.open(out)


def _require_free(out: Path) -> None:
    """Refuse the folder of a release, or of a training whose own release could not be written any more."""
    place = out.resolve()
    if holds_release(out):
        raise TrainingError(f'"{out}" holds a release already; choose another --out')
    for other in (place / "run", place, *place.parents):
        if RunFolder(other).is_one():
            raise TrainingError(f'out: "{out}" has a training, in "{other}"; choose another --out')


def _run_in(folder: Path) -> RunFolder:
    """Return the run in a folder, or the one that the folder is."""
    for path in (folder / "run", folder):
        run = RunFolder(path)
        if is_file(run.recipe_file) and run.is_one():
            return run
    raise TrainingError(
        f'"{folder}" holds no training; expected the folder that zoo pretrain or zoo finetune was given as '
        "--out"
    )
