"""What `zoo.diagnose` looks at: a release, or a run that is not finished, opened by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from zoo import hub
from zoo.catalog import recipe_text
from zoo.config import parse
from zoo.data import EvalView, open_dataset
from zoo.data.any_data import Data, folder_for
from zoo.data.config import data_words
from zoo.errors import ReleaseError, TrainingError, ZooError
from zoo.files import is_dir, is_file, names_in
from zoo.modules import Centers
from zoo.recipe import Recipe
from zoo.release import Release
from zoo.release import history as histories
from zoo.release.format import CONFIG, holds_release
from zoo.training import RunFolder
from zoo.training.checkpoint import step_of
from zoo.training.snapshot import objective_at
from zoo.training.stages import class_rows_of, rows_of, stages, what

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Opened:
    """A release, or a run that has none yet.

    Attributes:
        folder: of the release, or of the run.
        name: the weights' name.
        objective: of the recipe.
        recipe: plain; of a converted release what it records instead.
        rows: of metrics.jsonl, maybe none.
        class_rows: of classes.jsonl, maybe none.
        state: what it is, in words.
        release: None for an unfinished run.
        run: the run whose newest checkpoint is looked at; None for a release.
        run_recipe: that run's recipe.
        no_record: why there are no rows, where they are damaged.
    """

    folder: Path
    name: str
    objective: str
    recipe: Mapping[str, Any]
    rows: Rows
    class_rows: Rows
    state: str
    release: Release | None = None
    run: RunFolder | None = None
    run_recipe: Recipe | None = None
    no_record: str = ""

    @property
    def data(self) -> str:
        """What it learned from, in words."""
        if self.release is not None:
            described = self.release.config["zoo"]["dataset"]
            return data_words(described) if described.get("name") else "data that are not recorded"
        section, source = self.recipe["data"], self.recipe["data"]["source"]
        return data_words({**section, "name": source.get("name") or source.get("repo") or source["kind"]})

    def load(self, data: Data) -> tuple[nn.Module, Centers | None]:
        """Return the encoder and the class centers as they are in the release or the newest checkpoint.

        Args:
            data: see `zoo.diagnose`; not needed for a release.

        Raises:
            ZooError: if weights or checkpoint are missing or damaged, or a run's own training images, which
                its objective is built with.
        """
        if self.release is not None:
            return self.release.load(), self.release.centers
        assert self.run is not None and self.run_recipe is not None
        config = self.run_recipe.data
        root = folder_for(config, data) if data is None or is_folder(data) else None
        train_set = open_dataset(config, "train", root)
        checkpoint = self.run.load()
        if checkpoint is None:
            raise TrainingError(f'"{self.run.path}" has no checkpoint yet')
        objective = objective_at(checkpoint, self.run_recipe, self.run, train_set)
        return objective.encoder, objective.centers()

    def preprocessing(self) -> tuple[EvalView, tuple[float, ...], tuple[float, ...]]:
        """Return the evaluation view, and mean and standard deviation of the channels."""
        if self.release is None:
            assert self.run_recipe is not None
            data = self.run_recipe.data
            return self.run_recipe.views.eval, tuple(data.mean), tuple(data.std)
        found = self.release.preprocess
        view = {"size": found.input_size, "crop_pct": found.crop_pct, "interpolation": found.interpolation}
        return parse(EvalView, view, f"{self.name}: config.json"), found.mean, found.std

    def architecture(self) -> tuple[str, Mapping[str, Any]]:
        """Return timm's name of the encoder's architecture, and its arguments."""
        if self.release is not None:
            return str(self.release.config["architecture"]), self.release.config["model_args"]
        backbone = self.recipe["backbone"]
        return str(backbone["arch"]), backbone["args"]


def is_folder(data: Data) -> bool:
    """Whether data are given as a folder, in which each training has its own."""
    return isinstance(data, str | Path) and is_dir(data)


def open_subject(name: str | Path | Release) -> Opened:
    """Open a release by name, folder or repository; or the folder of a run, finished or not.

    Raises:
        ZooError: for what is neither, naming what was found and what is near.
    """
    name = hub.named(name)
    if not is_dir(name):
        return _of_release(hub.open(name))
    folder = Path(name).expanduser()
    if holds_release(folder):
        return _of_release(hub.open(folder.absolute()))
    if is_file(folder / "run" / "recipe.yaml"):  # before what else a release leaves that is half written
        return _of_run(RunFolder(folder / "run"))
    if is_file(folder / "recipe.yaml") and not is_file(folder / CONFIG):  # a run's own folder
        above = folder.absolute().parent
        if folder.absolute().name == "run" and holds_release(above):
            return _of_release(hub.open(above))
        return _of_run(RunFolder(folder))
    try:
        return _of_release(hub.open(name))  # a shipped release's name may be that of a folder here
    except ReleaseError as error:
        raise _neither(folder) from error


def _neither(folder: Path) -> ZooError:
    found = names_in(folder)
    below = [folder / each for each in found]
    below += [each / name for each in below for name in names_in(each)]
    inside = [each for each in below if holds_release(each) or is_file(each / "run" / "recipe.yaml")]
    hint = f' Did you mean "{inside[0]}"?' if inside else ""
    shown = ", ".join(found[:4]) + (", ..." if len(found) > 4 else "") if found else "nothing"
    return ZooError(
        f'"{folder}": neither a release nor a run: found {shown}, expected {CONFIG} (a release), '
        f"run/recipe.yaml (an unfinished run) or the run's own folder.{hint}"
    )


def _of_release(release: Release) -> Opened:
    recipe = release.recipe
    folder = release.path / "run"
    rows, class_rows = _rows(RunFolder(folder)) if is_file(folder / "recipe.yaml") else ([], [])
    no_record = ""
    if not rows:
        rows, class_rows, no_record = _history(release)
    training = release.metrics.get("training") or {}
    trained = [f"{training['epochs']} epochs"] if training.get("epochs") else []
    return Opened(
        folder=release.path,
        name=release.name,
        objective=str(release.config["zoo"]["objective"]),
        recipe=recipe,
        rows=rows,
        class_rows=class_rows,
        state=", ".join(["release", *trained]),
        release=release,
        no_record=no_record,
    )


def _of_run(run: RunFolder) -> Opened:
    recipe = Recipe.from_yaml(recipe_text(run.recipe_file), str(run.recipe_file))
    rows, class_rows = _rows(run)
    last, last_recipe = run, recipe
    trainings, begun = stages(recipe), run.stages()
    if begun and trainings:
        last_recipe, last = list(zip(trainings, begun, strict=False))[-1]
    newest = next(iter(last.checkpoints()), None)
    step = None if newest is None else step_of(newest)
    epoch = rows[-1].get("epoch") if rows else None
    epochs = sum(stage.training.epochs for stage in trainings)
    reached = f"; recorded up to epoch {epoch:.1f} of {epochs}" if epoch is not None else ""
    where = "no checkpoint yet" if step is None else f"its newest checkpoint, after step {step}"
    where += f" of {what(last_recipe)}" if step is not None and len(trainings) > 1 else ""
    return Opened(
        folder=run.path,
        name=recipe.name,
        objective=recipe.objective.name,
        recipe=recipe.model_dump(mode="json"),
        rows=rows,
        class_rows=class_rows,
        state=f"unfinished run: {where}{reached}",
        run=last,
        run_recipe=last_recipe,
    )


def _rows(run: RunFolder) -> tuple[Rows, Rows]:
    """Return the rows of a run, or those of its stages after one another where it has some."""
    begun = run.stages()
    return (rows_of(begun), class_rows_of(begun)) if begun else (run.rows(), run.class_rows())


def _history(release: Release) -> tuple[Rows, Rows, str]:
    """Return what a release keeps of the rows of its training, and why there is none of a damaged record."""
    try:
        history = release.history
    except ReleaseError as error:
        return [], [], str(error)
    return ([], [], "") if history is None else (histories.rows_of(history), history["classes"], "")
