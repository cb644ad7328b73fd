"""The recipe: everything that decides what a training produces, in one strict file."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, Union

from pydantic import Field, model_validator

from zoo import catalog
from zoo.config import Config, dump_yaml, load_yaml, named_by, parse, plain_kind
from zoo.data import DataConfig, ViewsConfig
from zoo.errors import RecipeError
from zoo.objectives import OBJECTIVES, Classify, Objective, ObjectiveConfig, look_up
from zoo.recipe import sections
from zoo.recipe.overrides import Overrides, apply, as_overrides, changed_keys, value_of
from zoo.recipe.protocols import Protocol
from zoo.release.schema import MAX_NAME


def _sections() -> Any:
    """Return the sections of all objectives that are registered."""
    return Union[tuple(objective.Config for objective in OBJECTIVES.values())]  # noqa: UP007


if TYPE_CHECKING:
    ObjectiveSection = ObjectiveConfig
else:
    ObjectiveSection = Annotated[_sections(), Field(discriminator="name"), named_by("name")]


class Recipe(Config):
    """One set of weights: data, views, backbone, objective, optimisation, measuring."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_\-]+)?$", max_length=MAX_NAME)]
    """timm's `arch.tag`; also the name of the file, the release and its repository."""
    description: str
    """A paragraph for the card, written by hand; keys of overrides that change what is learned are added."""
    backbone: sections.BackboneSection
    init: sections.InitSection | None = None
    """Start from a release, or from timm's own weights; null: from random weights."""
    data: DataConfig
    views: ViewsConfig
    objective: ObjectiveSection
    """What is learned, and its hyper-parameters."""
    optimizer: sections.OptimizerSection
    schedule: sections.ScheduleSection
    training: sections.TrainingSection
    method: sections.Method | None = None
    """For `classify`, a way to learn from a long tail; decides `objective.loss` and `training.sampling`."""
    evaluation: list[Protocol]
    """What is measured after training, on the balanced test split."""

    @model_validator(mode="after")
    def _fits(self) -> Recipe:
        if found := _misfits(self):
            raise ValueError("; ".join(found))
        return self

    def to_yaml(self) -> str:
        """Write every value, defaults included; `from_yaml` reads the same recipe back."""
        return dump_yaml(self.model_dump(mode="json"))

    @classmethod
    def from_yaml(cls, text: str, where: str, overrides: Overrides = ()) -> Recipe:
        """Read a recipe, with overrides (`a.b=c`, or a mapping) applied to it first.

        Where they change what is learned, the description ends with their keys.

        Raises:
            RecipeError: naming `where` and the key's path.
        """
        data, changes = load_yaml(text, where), as_overrides(overrides)
        if not changes:
            return parse(cls, data, where)
        with suppress(RecipeError):  # it may be complete only with its overrides
            data = parse(cls, data, where).model_dump(mode="json")
        before = copy.deepcopy(data)
        for change in changes:
            apply(data, change, where)
        recipe = parse(cls, data, where)
        changed = changed_keys(before, recipe.model_dump(mode="json"), changes)
        if not changed or value_of(changes, "description") is not None:
            return recipe
        words = f"{recipe.description} Changed: {', '.join(changed)}."
        return recipe.model_copy(update={"description": words})

    @classmethod
    def load(cls, recipe: Recipe | str | Path, overrides: Overrides = ()) -> Recipe:
        """Read a shipped recipe by name, or any file, and apply overrides; also to one that was read before.

        Raises:
            RecipeError: as `from_yaml`, and for what names no recipe, with the nearest name.
        """
        if isinstance(recipe, Recipe):
            return cls.from_yaml(recipe.to_yaml(), recipe.name, overrides) if overrides else recipe
        if not isinstance(recipe, str | Path):
            raise RecipeError(f"recipe: found {plain_kind(recipe)}, expected a name, a file or a Recipe")
        path = catalog.recipe_path(recipe)
        return cls.from_yaml(catalog.recipe_text(path), path.name, overrides)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Validate plain values with the objectives that are registered by now."""
        section = obj.get("objective") if isinstance(obj, Mapping) else None
        look_up(section.get("name") if isinstance(section, Mapping) else section)
        field, known = cls.model_fields["objective"], _sections()
        if field.annotation != known:
            field.annotation = known
            cls.model_rebuild(force=True)
        return super().model_validate(obj, **options)

    @property
    def sha256(self) -> str:
        """Hash of the complete recipe."""
        return hashlib.sha256(self.to_yaml().encode()).hexdigest()


def _misfits(recipe: Recipe) -> list[str]:
    """Return values that cannot work together, each as `key: found, expected`; no data is read for it."""
    learned, method, training, schedule = recipe.objective, recipe.method, recipe.training, recipe.schedule
    kind, name, arch = OBJECTIVES[learned.name], f'objective "{learned.name}"', recipe.backbone.arch
    candidates, partial = kind.from_candidates, recipe.data.partial_labels and recipe.data.partial_labels.kind
    head, loss = getattr(learned, "head", None), getattr(learned, "loss", None)
    centers, classless = recipe.init and recipe.init.head == "centers", kind.centers is Objective.centers
    views, epochs, sampling = len(recipe.views.train), training.epochs, training.sampling
    groups, most = getattr(learned, "key_groups", 1), max(1, training.batch_size // 2)
    transform, falls = getattr(learned, "feature_transform", None), schedule.milestones
    own = (learned.name, loss, head, sampling) != ("classify", "cross_entropy", "linear", "instance")
    stop, multistep = training.early_stopping, schedule.name == "multistep"
    plain = 'objective "classify" with cross_entropy and a linear head, and training.sampling "instance"'
    starts = {
        "schedule.warmup_epochs": schedule.warmup_epochs,
        "schedule.milestones": max(falls, default=0),
        "objective.feature_transform.start_epoch": transform.start_epoch if transform else 0,
        "objective.prototype_start": getattr(learned, "prototype_start", 0),
    }
    rules: list[tuple[object, str, Any, str]] = [  # what is wrong, the key, its value, what is expected
        (recipe.name.partition(".")[0] != arch, "name", recipe.name, f'"{arch}.TAG"'),
        (views != kind.num_views, "views.train", views, f"{kind.num_views} view(s) for {name}"),
        (partial and not candidates, "data.partial_labels", partial, f"null for {name}"),
        (candidates and not partial, "data.partial_labels", None, f"candidate sets for {name}"),
        (candidates and sampling != "instance", "training.sampling", sampling, f'"instance" for {name}'),
        (stop and (candidates or classless), "training.early_stopping", "a section", f"null for {name}"),
        (
            centers and (kind is not Classify or head == "cosine"),
            "init.head",
            "centers",
            '"fresh" with this head',
        ),
        (groups > most, "objective.key_groups", groups, f"at most {most}, of two keys each"),
        (multistep != bool(falls), "schedule.milestones", falls, 'some for "multistep", none for others'),
        (method and own, "method", method and method.name, f"null, or {plain}"),
        *((n >= epochs, key, n, f"fewer than training.epochs ({epochs})") for key, n in starts.items()),
    ]
    for n, probe in enumerate(each.protocol for each in recipe.evaluation):
        bad = classless and probe == "classifier"
        rules.append((bad, f"evaluation.{n}", probe, f"another protocol for {name}"))
    return [f"{key}: found {json.dumps(found)}, expected {text}" for bad, key, found, text in rules if bad]
