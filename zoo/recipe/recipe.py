"""The recipe: everything that determines the result of a training, in one strictly checked file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from zoo import catalog
from zoo.config import Config, dump_yaml, load_yaml, named_by, parse, type_name
from zoo.data import DataConfig, ViewsConfig
from zoo.errors import RecipeError
from zoo.files import read_text
from zoo.objectives import ObjectiveConfig, registry
from zoo.recipe import sections
from zoo.recipe.overrides import Overrides, apply, as_overrides, keys_learned
from zoo.recipe.protocols import Protocol
from zoo.release.schema import LONGEST_NAME, MAX_NAME


class Recipe(Config):
    """One set of weights: data, views, backbone, objective, optimisation, evaluation."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_\-]+)?$", max_length=MAX_NAME)]
    """timm's `arch.tag`; also the name of the file, the release and its repository."""
    description: Annotated[str, Field(max_length=LONGEST_NAME - MAX_NAME)]
    """A paragraph for the card, written by hand; overridden keys that change what is learned are appended."""
    backbone: sections.BackboneSection
    init: sections.InitSection | None = None
    """Initial weights: a release or timm's own; null: random weights."""
    train_only: list[str] | None = None
    """Shell patterns of the encoder's parameters to train, e.g. `*.bias`; null: all, or with `adapt` none.
    Heads are always trained. A completely frozen BatchNorm keeps its statistics, too."""
    fixed_batchnorm: bool = Field(False, description="Keep BatchNorm's weights and statistics.")
    adapt: Annotated[sections.LoRASection | None, named_by("kind")] = None
    """Train low-rank adapters (LoRA) instead of the encoder's own weights."""
    data: DataConfig
    views: ViewsConfig
    objective: Annotated[ObjectiveConfig, named_by("name")]
    """The training objective and its hyper-parameters."""
    optimizer: sections.OptimizerSection
    schedule: sections.ScheduleSection
    training: sections.TrainingSection
    method: sections.Method | None = None
    """For `classify`: a method for long-tailed data, which sets `objective.loss` and `training.sampling`."""
    evaluation: list[Protocol]
    """Protocols to run after training, on the balanced test split."""

    @model_validator(mode="after")
    def _fits(self) -> Recipe:
        if found := [*_misfits(self)]:
            raise ValueError("; ".join(found))
        return self

    def to_yaml(self) -> str:
        """Return YAML with every value, defaults included; `from_yaml` reads the same recipe back."""
        return dump_yaml(self.model_dump(mode="json"))

    @classmethod
    def from_yaml(cls, text: str, where: str, overrides: Overrides = ()) -> Recipe:
        """Read a recipe, with overrides (`a.b=c`, or a mapping) applied to it first.

        Overridden keys that can change what is learned are appended to the description.

        Raises:
            RecipeError: naming `where` and the key's path.
        """
        data, changes = load_yaml(text, where), as_overrides(overrides)
        if not changes:
            return parse(cls, data, where)
        with suppress(RecipeError):  # it may only be complete with overrides
            data = parse(cls, data, where).model_dump(mode="json")
        for key, value in changes:
            apply(data, key, value, where)
        recipe = parse(cls, data, where)
        changed = f" Changed: {', '.join(keys)}." if (keys := keys_learned(dict(changes))) else ""
        return recipe.model_copy(update={"description": recipe.description + changed})

    @classmethod
    def load(cls, recipe: Recipe | str | Path, overrides: Overrides = ()) -> Recipe:
        """Read a shipped recipe by name, or any file, and apply overrides; also accepts a `Recipe`.

        Raises:
            RecipeError: as `from_yaml`, and for an unknown recipe, with the nearest name.
        """
        if isinstance(recipe, Recipe):
            return cls.from_yaml(recipe.to_yaml(), recipe.name, overrides) if overrides else recipe
        if not isinstance(recipe, str | Path):
            raise RecipeError(f"recipe: found {type_name(recipe)}, expected a name, a file or a Recipe")
        path = catalog.recipe_path(recipe)
        return cls.from_yaml(read_text(path, RecipeError), path.name, overrides)

    @classmethod
    def know_objectives(cls) -> None:
        """Update the type of the section `objective` to all objectives registered so far."""
        own = [each.Config for each in registry.REGISTERED.values()]
        known: Any = reduce(or_, [*registry.SHIPPED.values(), *own])
        field = cls.model_fields["objective"]
        if field.annotation != known:
            field.annotation, field.discriminator = known, "name"
            if cls.__pydantic_complete__:  # otherwise it is built on first use
                cls.model_rebuild(force=True)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Validate plain values with the objectives registered so far."""
        section = obj.get("objective") if isinstance(obj, Mapping) else None
        registry.look_up(section.get("name") if isinstance(section, Mapping) else section)
        cls.know_objectives()
        return super().model_validate(obj, **options)


Recipe.know_objectives()


def _misfits(recipe: Recipe) -> Iterator[str]:
    """Yield conflicting values as `key: found, expected`; no data are read."""
    learned, training, schedule = recipe.objective, recipe.training, recipe.schedule
    name, arch = f'objective "{learned.name}"', recipe.backbone.arch
    candidates, classless = learned.from_candidates, not learned.learns_centers
    head, sampling, epochs = getattr(learned, "head", ""), training.sampling, training.epochs
    if recipe.name.partition(".")[0] != arch:
        yield f'name: found "{recipe.name}", expected "{arch}.TAG"'
    if (views := len(recipe.views.train)) != learned.num_views:
        yield f"views.train: found {views}, expected {learned.num_views} view(s) for {name}"
    if len(sizes := {*recipe.views.train_sizes}) > 1:
        yield f"views.train: found the sizes {sorted(sizes)}, expected one for all"
    if (partial := recipe.data.partial_labels is not None) != candidates:
        found, expected = ("a section", "null") if partial else ("null", "candidate sets")
        yield f"data.partial_labels: found {found}, expected {expected} for {name}"
    if candidates and sampling != "instance":
        yield f'training.sampling: found "{sampling}", expected "instance" for {name}'
    if training.early_stopping and (candidates or classless or training.knn_every):
        yield f"training.early_stopping: found a section, expected null for {name} and beside knn_every"
    if recipe.init and recipe.init.head != "fresh" and learned.name != "classify":
        yield f'init.head: found "{recipe.init.head}", expected "fresh" for {name}'
    if (groups := getattr(learned, "key_groups", 1)) > max(1, training.batch_size // 2):
        yield f"objective.key_groups: found {groups}, expected at least two keys of a batch in each"
    if (schedule.name == "multistep") != bool(schedule.milestones):
        yield f'schedule.milestones: found {schedule.milestones}, expected some for "multistep" alone'
    own = getattr(learned, "loss", ""), head, sampling
    if recipe.method and own != ("cross_entropy", "linear", "instance"):
        expected = 'null, or "classify" with cross_entropy, a linear head and training.sampling "instance"'
        yield f'method: found "{recipe.method.name}", expected {expected}'
    if isinstance(recipe.method, sections.FromCenters | sections.NearestCenter) and recipe.init is None:
        yield f'init: found null, expected {{release: NAME}} for method "{recipe.method.name}"'
    transform = getattr(learned, "feature_transform", None)
    starts = {
        "schedule.warmup_epochs": schedule.warmup_epochs,
        "schedule.milestones": max(schedule.milestones, default=0),
        "objective.feature_transform.start_epoch": getattr(transform, "start_epoch", 0),
        "objective.prototype_start": getattr(learned, "prototype_start", 0),
    }
    late = {key: epoch for key, epoch in starts.items() if epoch >= epochs}
    yield from (f"{key}: found {n}, expected less than training.epochs, {epochs}" for key, n in late.items())
    places = [n for n, probe in enumerate(recipe.evaluation) if probe.protocol == "classifier" and classless]
    yield from (f'evaluation.{n}: found "classifier", expected another protocol for {name}' for n in places)
    if recipe.init and getattr(learned, "sincos_positions", False):
        yield "objective.sincos_positions: found true, expected false: they would replace those of init"
