"""What `zoo.diagnose` sees of a release or run: images, encoder, centers, or why there are none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from zoo.api.diagnoses.subjects import Opened
from zoo.api.evaluation import own_data
from zoo.api.own_images import open_own
from zoo.config import parse
from zoo.data import DataConfig, EvalView, ImageDataset, ViewsConfig, open_dataset
from zoo.data.any_data import Data, as_data, own_root
from zoo.data.embedded import folder_for
from zoo.data.memory import Root
from zoo.errors import ZooError
from zoo.evaluation.diagnosis.center_loss import center_loss
from zoo.evaluation.diagnosis.look import Look, landmarks_of, look, words_of
from zoo.files import is_dir
from zoo.modules import Centers
from zoo.release import Release


class Seen(NamedTuple):
    """What came of looking.

    Attributes:
        class_names: of the training, C.
        class_counts: training images of each class `[C]`; -1 where not known.
        centers: learned, if there are any and they can be read.
        look: at a sample of images; None: see `without_look`.
        without_look: the reason.
        looked_at: which images, in words.
        trained_on: what an unfinished run learns from, in words; None for a release, which records it, and
            where the data are not there.
        notes: what else could not be had, and why.
    """

    class_names: tuple[str, ...]
    class_counts: Tensor
    centers: Centers | None
    look: Look | None
    without_look: str | None
    looked_at: str
    trained_on: str | None
    notes: tuple[str, ...]


@dataclass
class Looker:
    """Looks at several releases and runs, in the same way, and opens the data that they share once.

    Attributes:
        data: see `zoo.diagnose`.
        sample: test images.
        seed: of the sample.
        device: where to compute.
        workers: processes that decode; None: those of each recipe.
    """

    data: Data
    sample: int
    seed: int
    device: torch.device
    workers: int | None
    _opened: dict[str, ImageDataset | ZooError] = field(default_factory=dict)
    _with_landmarks: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Refuse a spec that no data can have, whatever there is to look at.

        Raises:
            ZooError: naming what is wrong with it.
        """
        is_own = self.data is None or (isinstance(self.data, str | Path) and is_dir(self.data))
        self._spec = None if is_own else as_data(self.data)

    def require_use(self, subjects: Iterable[Opened]) -> None:
        """Refuse a folder in which none of the subjects has its data.

        Raises:
            ZooError: naming it.
        """
        if self._spec is not None:
            return
        try:
            configs = [parse(DataConfig, each.recipe.get("data"), each.name) for each in subjects]
        except ZooError:  # of one that names no data, or other data than this version knows: looking says so
            return
        own_root(self.data, *configs)

    def look_at(self, opened: Opened) -> Seen:
        """Look at one; what cannot be had is left out, with the reason."""
        notes = list(opened.notes)
        encoder, centers = None, None
        train_set = test_set = None
        without = None
        try:
            config, root = self._data_of(opened)
            own = opened.release if self._spec is None else None
            train_set, test_set = (self._open(config, split, root, own) for split in ("train", "test"))
        except ZooError as error:
            without = _sentence(error)
        trained_on = None
        try:
            learned_from = self._training_set(opened)
            trained_on = None if learned_from is None else words_of(learned_from)
            encoder, centers = opened.load(learned_from)
        except ZooError as error:
            without = without or f"its encoder cannot be loaded: {_sentence(error)}"
            notes.append(f"No encoder: {error}")
        names, counts = _classes(opened, centers, train_set if self._spec is None else None)
        seen, looked_at = None, "no image"
        if encoder is not None and train_set is not None and test_set is not None:
            try:
                seen = self._look(opened, encoder, centers, train_set, test_set, config, notes)
                looked_at = f"{len(seen.index):,} of {seen.total:,} test images of {seen.data}"
            except ZooError as error:
                without = _sentence(error)
        return Seen(names, counts, centers, seen, without, looked_at, trained_on, tuple(notes))

    def _look(
        self,
        opened: Opened,
        encoder: nn.Module,
        centers: Centers | None,
        train_set: ImageDataset,
        test_set: ImageDataset,
        config: DataConfig,
        notes: list[str],
    ) -> Look:
        views = _views(opened, notes)
        view, mean, std = _preprocessing(opened)
        if centers is not None and opened.release is not None:
            names = opened.release.class_names
            if names != tuple(test_set.class_names):
                centers = None
                notes.append(
                    f"Its centers are of {len(names)} other classes than the {test_set.num_classes} of the "
                    "data: they do not classify these images."
                )
        arch, arguments = _architecture(opened)
        # the same for every subject of one architecture, input and data: once is enough
        place = f"{arch} {arguments} {view} {test_set.describe()['sha256']}"
        wanted = {} if place in self._with_landmarks else landmarks_of(arch, arguments, seed=self.seed)
        found = look(
            encoder.eval().requires_grad_(False),
            train_set,
            test_set,
            view=view,
            mean=mean,
            std=std,
            views=views,
            image_size=config.image_size,
            centers=centers,
            center_loss="no centers" if centers is None else center_loss(opened.recipe, centers.class_counts),
            sample=self.sample,
            seed=self.seed,
            device=self.device,
            workers=self.workers if self.workers is not None else (views.workers if views else 0),
            max_bad_images=config.max_bad_images,
            cache=views.cache if views else False,
            landmarks=wanted,
        )
        self._with_landmarks.add(place)  # not before: the next one has them where this look fails
        return found

    def _data_of(self, opened: Opened) -> tuple[DataConfig, Root]:
        if self._spec is not None:
            return self._spec[:2]
        given = own_data(opened.recipe, opened.name, self.data)
        if not given.is_own:  # others beside it have their data there
            given = own_data(opened.recipe, opened.name, None)
        return given.config, given.root

    def _training_set(self, opened: Opened) -> ImageDataset | None:
        """Return what an unfinished run learns from, candidates and all; a release needs none."""
        config = opened.training_data
        if config is None:
            return None
        return self._open(config, "train", None if self._spec is not None else folder_for(config, self.data))

    def _open(
        self, config: DataConfig, split: Any, root: Root, release: Release | None = None
    ) -> ImageDataset:
        """Open a split; with `release` the images that it lists."""
        listed = (release.config["zoo"].get("images_sha256"), release.class_names) if release else None
        key = f"{split} {root} {config.model_dump_json()} {listed}"
        if key not in self._opened:
            try:
                self._opened[key] = (
                    open_own(release, config, split, root) if release else open_dataset(config, split, root)
                )
            except ZooError as error:
                self._opened[key] = error
        found = self._opened[key]
        if isinstance(found, ZooError):
            raise found
        return found


def not_looked_at(opened: Opened) -> Seen:
    """Return what a release or run says of itself, without its encoder and images.

    Raises:
        ReleaseError: if the centers of a release are damaged.
    """
    centers = None if opened.release is None else opened.release.centers
    names, counts = _classes(opened, centers, None)
    return Seen(names, counts, centers, None, "nothing was looked at", "no image", None, opened.notes)


def _sentence(error: ZooError) -> str:
    return str(error).rstrip(".")


def _classes(
    opened: Opened, centers: Centers | None, train_set: ImageDataset | None
) -> tuple[tuple[str, ...], Tensor]:
    """Return names and training images of the classes that a training had."""
    if opened.release is not None:
        names = tuple(opened.release.class_names)
    else:
        names = () if train_set is None else tuple(train_set.class_names)
    unknown = torch.full((len(names),), -1, dtype=torch.int64)
    if centers is not None:
        return names, centers.class_counts
    if train_set is not None and tuple(train_set.class_names) == names:
        return names, torch.as_tensor(train_set.class_counts)
    return names, unknown


def _preprocessing(opened: Opened) -> tuple[EvalView, tuple[float, ...], tuple[float, ...]]:
    if opened.release is not None:
        found = opened.release.preprocess
        view: dict[str, Any] = {
            "size": found.input_size,
            "crop_pct": found.crop_pct,
            "interpolation": found.interpolation,
        }
        return parse(EvalView, view, f"{opened.name}: config.json"), found.mean, found.std
    assert opened.run_recipe is not None
    recipe = opened.run_recipe
    return recipe.views.eval, tuple(recipe.data.mean), tuple(recipe.data.std)


def _views(opened: Opened, notes: list[str]) -> ViewsConfig | None:
    """Return the recipe's views; None for a converted release, or a recipe of another version."""
    section = opened.recipe.get("views")
    if section is None:
        return None
    try:
        return parse(ViewsConfig, section, f"{opened.name}: recipe.yaml: views")
    except ZooError as error:
        notes.append(f"No training views: {error}")
        return None


def _architecture(opened: Opened) -> tuple[str, Mapping[str, Any]]:
    if opened.release is not None:
        return str(opened.release.config["architecture"]), opened.release.config["model_args"]
    backbone = opened.recipe["backbone"]
    return str(backbone["arch"]), backbone["args"]
