"""The recipe: everything that decides what a training produces, in one strict file."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, Union

from pydantic import Field, field_validator, model_validator

from zoo import catalog
from zoo.config import Config, dump_yaml, load_yaml, named_by, parse
from zoo.data import DataConfig, ViewsConfig
from zoo.errors import RecipeError
from zoo.objectives import OBJECTIVES, Classify, Objective, ObjectiveConfig, look_up
from zoo.recipe.methods import LDAMDRW, Method, NearestCenter, balances
from zoo.recipe.overrides import Overrides, apply, as_overrides, described
from zoo.recipe.protocols import Protocol
from zoo.recipe.sections import (
    ON_GPU_ALONE,
    BackboneSection,
    InitSection,
    OptimizerSection,
    ScheduleSection,
    TrainingSection,
)
from zoo.release.schema import MAX_NAME


def _sections() -> Any:
    """Return the sections of all objectives that there are now."""
    return Union[tuple(objective.Config for objective in OBJECTIVES.values())]  # noqa: UP007


if TYPE_CHECKING:
    ObjectiveSection = ObjectiveConfig
else:
    ObjectiveSection = Annotated[_sections(), Field(discriminator="name"), named_by("name")]


class Recipe(Config):
    """One set of weights: data, views, backbone, objective, optimisation, measuring."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_\-]+)?$")]
    """timm's `arch.tag`; also the name of the file, the release and its repository."""
    description: str
    """A paragraph for the card, written by hand; overrides that change what is learned take its place."""
    backbone: BackboneSection
    init: InitSection | None = None
    """Start from a release, or from timm's own weights; null: from random weights."""
    data: DataConfig
    views: ViewsConfig
    objective: ObjectiveSection
    """What is learned, and its hyper-parameters."""
    optimizer: OptimizerSection
    schedule: ScheduleSection
    training: TrainingSection
    method: Method | None = None
    """For `classify`, a way to learn from a long tail; decides `objective.loss` and `training.sampling`."""
    evaluation: list[Protocol]
    """What is measured after training, on the balanced test split."""

    @field_validator("name")
    @classmethod
    def _short(cls, name: str) -> str:
        if len(name) > MAX_NAME:
            raise ValueError(
                f'found {len(name)} characters, "{name[:40]}...", expected at most {MAX_NAME}, which a '
                "release and its repository on the Hub can be named with"
            )
        return name

    # Combinations that cannot work are refused before any data is read.

    @model_validator(mode="after")
    def _objective_fits(self) -> Recipe:
        objective = OBJECTIVES[self.objective.name]
        views = len(self.views.train)
        if views != objective.num_views:
            raise ValueError(
                f'views.train: found {views} view(s), objective "{self.objective.name}" expects '
                f"{objective.num_views}"
            )
        if self.name.partition(".")[0] != self.backbone.arch:
            raise ValueError(f'name: found "{self.name}", expected "{self.backbone.arch}.TAG"')
        if objective.from_candidates != (self.data.partial_labels is not None):
            given = self.data.partial_labels
            who = ", ".join(name for name, each in OBJECTIVES.items() if each.from_candidates)
            expected = "candidate sets" if given is None else f"null: only {who} learns from candidate sets"
            raise ValueError(
                f"data.partial_labels: found {'null' if given is None else given.kind} with objective "
                f'"{self.objective.name}", expected {expected}'
            )
        if self.init is not None and self.init.head == "centers" and objective is not Classify:
            raise ValueError(
                f'init.head: "centers" needs objective "classify", found "{self.objective.name}"'
            )
        from_centers = self.init is not None and self.init.head == "centers"
        if from_centers and getattr(self.objective, "head", None) == "cosine":
            raise ValueError(
                'init.head: "centers" have a bias, objective.head "cosine" has none; use "fresh"'
            )
        if objective.from_candidates and self.training.early_stopping is not None:
            raise ValueError(
                "training.early_stopping: judges by the true classes, which objective "
                f'"{self.objective.name}" does not know; expected null'
            )
        if objective.from_candidates and self.training.sampling != "instance":
            raise ValueError(
                f'training.sampling: found "{self.training.sampling}", expected "instance": objective '
                f'"{self.objective.name}" does not know the true classes'
            )
        return self

    @model_validator(mode="after")
    def _method_fits(self) -> Recipe:
        method = self.method
        if method is None:
            return self
        objective = self.objective
        if not isinstance(objective, Classify.Config):
            raise ValueError(f'method: needs objective "classify", found "{objective.name}"')
        decided = {
            "objective.loss": (objective.loss_name, "cross_entropy"),
            "objective.head": (objective.head, "linear"),
            "training.sampling": (self.training.sampling, "instance"),
        }
        for key, (found, expected) in decided.items():
            if found != expected:
                raise ValueError(
                    f'{key}: found "{found}", expected "{expected}": method "{method.name}" decides it'
                )
        if isinstance(method, LDAMDRW):
            _check_ldam(objective)
        if isinstance(method, NearestCenter) and objective.distill is not None:
            raise ValueError(f'objective.distill: method "{method.name}" trains nothing; expected null')
        if isinstance(method, NearestCenter) and method.centers == "means" and method.similarity == "logit":
            raise ValueError(
                'method.similarity: "logit" is of learned centers; "means" need "cosine" or "euclidean"'
            )
        return self

    @model_validator(mode="after")
    def _training_fits(self) -> Recipe:
        if self.training.precision in ON_GPU_ALONE and self.training.device == "cpu":
            raise ValueError(
                f'training.precision: "{self.training.precision}" needs a GPU; expected "fp32" or "bf16" on '
                "the CPU"
            )
        self._numerics_fit(self.training)
        at_once = self.training.batch_size // self.training.accumulate
        groups = getattr(self.objective, "key_groups", 1)
        if groups > 1 and 2 * groups > at_once:
            raise ValueError(
                f"objective.key_groups: found {groups}, expected at most {at_once // 2}: "
                f"a group needs 2 of the {at_once} keys that are encoded together"
            )
        self._epochs_fit(self.training.epochs)
        if self.schedule.warmup_prefix and self.schedule.name != "cosine":
            raise ValueError(
                f'schedule.warmup_prefix: found true with schedule "{self.schedule.name}", expected it with '
                '"cosine" alone'
            )
        if (self.schedule.name == "multistep") != bool(self.schedule.milestones):
            raise ValueError(
                f"schedule.milestones: found {self.schedule.milestones} with schedule "
                f'"{self.schedule.name}", expected some for "multistep" and none for others'
            )
        return self

    def _epochs_fit(self, epochs: int) -> None:
        """Name all that fewer epochs have no room for at once, and what has."""
        schedule, limit = self.schedule, f"training.epochs ({epochs})"
        problems, mended = list[str](), list[str]()
        if schedule.warmup_epochs >= epochs:
            found = schedule.warmup_epochs
            problems.append(f"schedule.warmup_epochs: found {found}, expected fewer than {limit}")
            mended.append("schedule.warmup_epochs=0")
        late = [m for m in schedule.milestones if m >= epochs]
        if late:
            problems.append(f"schedule.milestones: {late} never reached in {limit}")
            left = [m for m in schedule.milestones if m < epochs]
            mended += [] if left else ["schedule.name=constant"]
            mended.append(f"schedule.milestones=[{','.join(map(str, left))}]")
        ft = getattr(self.objective, "feature_transform", None)
        starts = {
            "objective.feature_transform.start_epoch": ft.start_epoch if ft else 0,
            "objective.prototype_start": getattr(self.objective, "prototype_start", 0),
        }
        for key, start in starts.items():
            if start >= epochs:
                problems.append(f"{key}: {start} never reached in {limit}")
                mended.append(f"{key}=0")
        if problems:
            raise ValueError(f"{'; '.join(problems)}; add {' '.join(f'--set {each}' for each in mended)}")

    @staticmethod
    def _numerics_fit(training: TrainingSection) -> None:
        if training.batch_size % training.accumulate:
            raise ValueError(
                f"training.accumulate: found {training.accumulate}, expected a divisor of "
                f"training.batch_size ({training.batch_size})"
            )
        if training.checkpoint_activations and training.compile is not None:
            raise ValueError(
                f'training.checkpoint_activations: true with training.compile: "{training.compile}", which '
                "decides itself what it keeps; expected one of them to be off"
            )

    @model_validator(mode="after")
    def _neighbors_fit(self) -> Recipe:
        objective = OBJECTIVES[self.objective.name]
        if self.training.knn_every is not None and not objective.learns_without_labels(self.objective):
            instead = ""
            if objective.centers is not Objective.centers and not objective.from_candidates:
                instead = "; training.early_stopping looks at images that are put aside"
            raise ValueError(
                "training.knn_every: asks for the labels of training images, which objective "
                f'"{self.objective.name}" learns from, so that the answer would say little; expected null'
                f"{instead}"
            )
        return self

    @model_validator(mode="after")
    def _evaluation_fits(self) -> Recipe:
        has_centers = OBJECTIVES[self.objective.name].centers is not Objective.centers
        if self.training.early_stopping is not None and not has_centers:
            raise ValueError(
                "training.early_stopping: looks at what a classifier makes of the validation part, and "
                f'objective "{self.objective.name}" learns none; expected null'
            )
        stopping = self.training.early_stopping
        if stopping is not None and stopping.metric == "loss":
            self._loss_is_trained()
        for i, protocol in enumerate(self.evaluation):
            if protocol.protocol == "classifier" and not has_centers:
                raise ValueError(
                    f'evaluation.{i}: protocol "classifier" needs class centers, which objective '
                    f'"{self.objective.name}" does not learn'
                )
        return self

    def _loss_is_trained(self) -> None:
        """Check that training lowers what early stopping calls the loss, or the wrong state would be kept."""
        expected = 'expected "balanced_accuracy" or "accuracy"'
        if isinstance(self.method, LDAMDRW) or getattr(self.objective, "head", None) == "cosine":
            raise ValueError(
                'training.early_stopping.metric: "loss" of a linear classifier is not what ldam trains, '
                f"which takes out the norm of the features; {expected}"
            )
        weighs = self.objective.adds_prior or self.training.sampling != "instance"
        if weighs or balances(self.method):
            raise ValueError(
                'training.early_stopping.metric: "loss" counts images as they come, and this recipe trains '
                f"a classifier for classes alike; {expected}"
            )

    def to_yaml(self) -> str:
        """Write every value, defaults included; `from_yaml` reads the same recipe back."""
        return dump_yaml(self.model_dump(mode="json"))

    @classmethod
    def from_yaml(cls, text: str, where: str, overrides: Overrides = ()) -> Recipe:
        """Read a recipe, with overrides (`a.b=c`, or a mapping) applied to it first.

        Where they change what is learned, the description says so.

        Raises:
            RecipeError: naming `where` and the key's path.
        """
        data = load_yaml(text, where)
        if not isinstance(data, dict):
            found = "nothing" if data is None else type(data).__name__
            raise RecipeError(f"{where}: found {found}, expected a mapping of recipe sections")
        if "converted" in data:
            raise RecipeError(
                f"{where}: the record of a converted release, which cannot be trained; to start from its"
                ' weights: "zoo finetune RECIPE --init FOLDER"'
            )
        overrides = as_overrides(overrides)
        if not overrides:
            return parse(cls, data, where)
        with suppress(RecipeError):  # one that is whole only with its overrides is taken as it stands
            data = parse(cls, data, where).model_dump(mode="json")
        before = copy.deepcopy(data)
        for override in overrides:
            apply(data, override, where)
        recipe = parse(cls, data, where)
        told = described(before, recipe.model_dump(mode="json"), overrides)
        return recipe.model_copy(update={"description": told})

    @classmethod
    def load(cls, name_or_file: str | Path, overrides: Overrides = ()) -> Recipe:
        """Read a shipped recipe by name, or any file."""
        path = catalog.recipe_path(name_or_file)
        return cls.from_yaml(catalog.recipe_text(path), path.name, overrides)

    @classmethod
    def model_validate(cls, obj: Any, **options: Any) -> Self:
        """Read plain values as pydantic does, with the objectives that are registered by now."""
        section = obj.get("objective") if isinstance(obj, Mapping) else None
        look_up(section.get("name") if isinstance(section, Mapping) else section)
        field, sections = cls.model_fields["objective"], _sections()
        if field.annotation != sections:
            field.annotation = sections
            cls.model_rebuild(force=True)
        return super().model_validate(obj, **options)

    @property
    def sha256(self) -> str:
        """Hash of the complete recipe."""
        return hashlib.sha256(self.to_yaml().encode()).hexdigest()


def _check_ldam(objective: Any) -> None:
    if objective.label_smoothing > 0 or objective.mix is not None:
        key = "mix" if objective.mix is not None else "label_smoothing"
        raise ValueError(
            f'objective.{key}: method "ldam_drw" has margins for one class of an image; expected none'
        )
    if objective.distill is not None:
        raise ValueError(
            'objective.distill: method "ldam_drw" has cosines that no teacher has; expected null'
        )
