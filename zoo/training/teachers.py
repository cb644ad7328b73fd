"""The releases that a recipe's student learns from beside the labels."""

from __future__ import annotations

from collections.abc import Sequence

from zoo import backbones, release
from zoo.data import ImageDataset
from zoo.errors import TrainingError, ZooError, few
from zoo.modules import Centers, Normalization, Teacher
from zoo.objectives import Classify
from zoo.release import Release
from zoo.training.recipe import Recipe

KEY = "objective.distill.teachers"


def teachers_of(recipe: Recipe) -> list[str]:
    """Return the names of the releases, none where labels alone teach."""
    section = recipe.objective
    return section.distill.teachers if isinstance(section, Classify.Config) and section.distill else []


def open_teachers(recipe: Recipe, dataset: ImageDataset) -> tuple[Teacher, ...]:
    """Build the recipe's teachers, each a classifier of the data's classes in their order.

    Raises:
        TrainingError: naming the teacher that cannot be opened, has no class centers, does not know a class
            of the data, or cannot take images of the views' size.
    """
    given = Normalization(tuple(recipe.data.mean), tuple(recipe.data.std))
    teachers = []
    for name in teachers_of(recipe):
        try:
            opened = release.open(name)
            centers = _of_classes(opened, dataset.class_names)
            encoder = opened.load()
            for size in {recipe.views.eval.size, *recipe.views.train_sizes}:
                backbones.check_input(encoder, size)
        except ZooError as error:
            raise TrainingError(f'{KEY}: "{name}": {error}') from None
        own = Normalization(tuple(opened.preprocess.mean), tuple(opened.preprocess.std))
        teachers.append(Teacher(encoder, centers, own=own, given=given))
    return tuple(teachers)


def _of_classes(opened: Release, class_names: Sequence[str]) -> Centers:
    centers = opened.require_centers()
    place = {name: row for row, name in enumerate(centers.class_names)}
    unknown = [name for name in class_names if name not in place]
    if unknown:
        raise TrainingError(
            f"does not know {len(unknown)} of the data's {len(class_names)} classes ({few(unknown)}), "
            f"expected all of them; it knows {few(centers.class_names)}"
        )
    rows = [place[name] for name in class_names]
    return Centers(centers.weight[rows], centers.bias[rows], centers.class_counts[rows])
