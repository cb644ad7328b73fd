"""The releases that a recipe's student learns from beside the labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zoo import backbones, hub
from zoo.data import ImageDataset
from zoo.errors import TrainingError, ZooError, few
from zoo.modules import Centers, Normalization, Teacher
from zoo.objectives import Classify
from zoo.recipe import Recipe
from zoo.release import Release
from zoo.release.provenance import TEACHERS, teacher_sha256


def teachers_of(recipe: Recipe) -> list[str]:
    """Return the names of the releases, none where labels alone teach."""
    section = recipe.objective
    return section.distill.teachers if isinstance(section, Classify.Config) and section.distill else []


def open_teachers(recipe: Recipe, dataset: ImageDataset) -> tuple[Teacher, ...]:
    """Build the recipe's teachers, each a classifier of the data's classes in their order.

    Raises:
        TrainingError: naming the teacher that cannot be opened, has no class centers, or some that say no
            probabilities, does not know a class of the data, cannot take images of the views' size, or is
            there twice.
    """
    given = Normalization(tuple(recipe.data.mean), tuple(recipe.data.std))
    teachers, found = list[Teacher](), dict[str, str]()
    for name in teachers_of(recipe):
        try:
            opened = hub.open(name)
            centers = _of_classes(opened, dataset.class_names)
            encoder = opened.load()
            for size in {recipe.views.eval.size, *recipe.views.train_sizes}:
                backbones.check_input(encoder, size)
        except ZooError as error:
            raise TrainingError(f'{TEACHERS}: "{name}": {error}') from None
        own = Normalization(tuple(opened.preprocess.mean), tuple(opened.preprocess.std))
        sha256 = teacher_sha256(opened.config)
        if sha256 in found:
            raise TrainingError(f'{TEACHERS}: "{name}" is the same as "{found[sha256]}", expected each once')
        found[sha256] = name
        teachers.append(Teacher(encoder, centers, own=own, given=given, sha256=sha256))
    return tuple(teachers)


def _of_classes(opened: Release, class_names: Sequence[str]) -> Centers:
    centers = opened.require_centers()
    if unscaled := _without_scale(opened.recipe):
        raise TrainingError(
            f"has {unscaled}, which tell classes apart but not how probable they are, expected "
            "centers that a softmax of linear logits has trained"
        )
    place = {name: row for row, name in enumerate(centers.class_names)}
    unknown = [name for name in class_names if name not in place]
    if unknown:
        raise TrainingError(
            f"does not know {len(unknown)} of the data's {len(class_names)} classes ({few(unknown)}), "
            f"expected all of them; it knows {few(centers.class_names)}"
        )
    rows = [place[name] for name in class_names]
    return Centers(centers.weight[rows], centers.bias[rows], centers.class_counts[rows])


def _without_scale(recipe: Mapping[str, Any]) -> str:
    """Say which centers are right in their order alone; '' for others.

    A cosine head takes out the norm of the features, and the centers that are made of it do not; see
    `Classify.centers`.
    """
    objective, method = (recipe.get(key) or {} for key in ("objective", "method"))
    if objective.get("head") == "cosine" or method.get("name") == "ldam_drw":
        return "centers made of a cosine classifier"
    if method.get("name") == "nearest_center" and method.get("similarity") != "logit":
        return "centers that no loss has trained"
    return ""
