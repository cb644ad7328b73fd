"""One finished training as a record: its recipe, seed, hashes and figures, read from wherever it lies."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Annotated, Any

from pydantic import Field

from zoo import catalog
from zoo.config import Config, parse
from zoo.data.config import data_words
from zoo.data.sources import as_archive
from zoo.errors import RecipeError, ReleaseError
from zoo.recipe import Recipe
from zoo.recipe.overrides import COMPUTATION
from zoo.release import Release, format
from zoo.release.evaluations import split_words
from zoo.release.provenance import START, TEACHERS

_DECIDE = {f"training.{key}" for key in ("precision", "accumulate", "release_dtype")}
_SAME = tuple(f"{key}." for key in ((COMPUTATION - _DECIDE) | {"training.seed", "data.source.download"}))
"""Keys in which runs of one experiment may differ: the seed, and how it is computed where no figure moves."""

_NEEDED = ("epochs", "seconds", "hardware", "precision", "seed", "date", "versions")

_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Evaluated(Config):
    """One evaluation of a run, without the accuracy of each class; accuracies are in percent."""

    protocol: str
    settings: dict[str, Any]
    test_sha256: _Sha256 | None
    metrics: dict[str, float]

    @property
    def measure(self) -> str:
        """The protocol, and what makes its figures others than those of the same protocol elsewhere."""
        weighted = self.protocol == "linear" and self.settings.get("balanced") is True
        return f"{self.protocol}, balanced" if weighted else self.protocol

    @property
    def kind(self) -> str:
        """What has to be the same where figures of several runs are put together."""
        return json.dumps([self.protocol, self.settings, self.test_sha256], sort_keys=True)


class RunRecord(Config):
    """A finished training and all that was measured on it."""

    name: str
    """Of the weights, which is the recipe's."""
    seed: Annotated[int, Field(ge=0)]
    recipe: dict[str, Any]
    """By dotted key; lists of sections are keys with a number. Of weights that training began with there is
    the hash, unless they are shipped. Records of format 1 with a recipe that is not shipped have its hash."""
    method: str
    """What was trained, as papers call it."""
    architecture: str
    data: str
    train_sha256: _Sha256
    """Of the training images' names and labels."""
    train_images: int
    classes: int
    largest: int
    """Training images of the most frequent class."""
    smallest: int
    profile: str | None = None
    """Of the long tail that was selected."""
    imbalance: float | None = None
    """Of that long tail."""
    epochs: int | float
    counted: str
    """Which epoch's weights these are."""
    evaluations: list[Evaluated]
    """Those on the training's own data."""
    figures: dict[str, float] = {}
    """Other numbers by name, as `zoo.diagnose` has them, e.g. `recorded/loss`; a sweep fills them in."""
    seconds: Annotated[float, Field(ge=0)]
    """Of the training alone."""
    hardware: str
    precision: str
    versions: dict[str, str]
    date: str
    noted: list[str]
    """What was out of the ordinary."""
    recipe_sha256: _Sha256
    weights_sha256: _Sha256
    place: str
    """Where the release lay when it was read."""

    @property
    def group(self) -> str:
        """The same for runs of one experiment: they differ in the seed alone."""
        decides = {key: value for key, value in self.recipe.items() if not f"{key}.".startswith(_SAME)}
        return json.dumps([self.name, self.train_sha256, decides], sort_keys=True)

    @property
    def identity(self) -> tuple[str, str, str]:
        """The same for copies of one run, and for no others."""
        return self.weights_sha256, self.recipe_sha256, self.date

    @property
    def changed(self) -> dict[str, tuple[Any, Any]] | None:
        """In what the recipe differs from the shipped one of its name, as (shipped, here), seed aside.

        None where no recipe of that name is shipped.
        """
        if self.name not in catalog.list_recipes() or "group" in self.recipe:
            return None
        shipped = shipped_leaves(self.name)
        return {
            key: (shipped.get(key), value)
            for key, value in self.recipe.items()
            if shipped.get(key, ...) != value and not f"{key}.".startswith(_SAME) and key != START
        }

    def evaluated(self, kind: str) -> Evaluated | None:
        """Return the newest evaluation of a kind, see `Evaluated.kind`."""
        return next((each for each in reversed(self.evaluations) if each.kind == kind), None)


def from_release(release: Release, place: str = "") -> RunRecord:
    """Return the record of a release.

    Args:
        release: of a training of this project.
        place: what its folder is called.

    Raises:
        ReleaseError: for one whose training is not recorded, e.g. a converted one, or whose recipe is not the
            recorded one.
    """
    training, config, plain = release.metrics["training"], release.config["zoo"], release.recipe
    absent = [key for key in _NEEDED if training.get(key) is None]
    if "converted" in plain or absent:
        what = "it was converted, not trained here" if "converted" in plain else f"it has no {absent[0]}"
        raise ReleaseError(f"{release.path}: {what}; a table of results needs the record of a training")
    if format.sha256(release.path / format.RECIPE) != config["recipe_sha256"]:
        raise ReleaseError(f"{release.path}: {format.RECIPE} is not the one that config.json records")
    data, began = config["dataset"], format.began_with(plain)
    tail, labelled = data.get("long_tail") or {}, data.get("num_classes") != 0
    own = [
        entry
        for entry in release.metrics["evaluations"]
        if entry["data"] == data_words(data) and entry["split"] == "test"
    ]
    entry = {
        "name": release.name,
        "seed": training["seed"],
        "recipe": _leaves_of(plain, training),
        "method": method_title(release.name, plain),
        "architecture": release.config["architecture"],
        "data": data_words(data),
        "train_sha256": data.get("sha256"),
        "train_images": data.get("num_images"),
        "classes": data.get("num_classes"),
        **{key: data["class_counts"][key] if labelled else 0 for key in ("largest", "smallest")},
        "profile": tail.get("profile"),
        "imbalance": tail.get("imbalance"),
        "counted": _counted(training),
        "evaluations": [
            {
                "protocol": each["protocol"],
                "settings": each.get("settings") or {},
                "test_sha256": (each.get("test_set") or {}).get("sha256"),
                "metrics": {
                    name: value
                    for name, value in each["metrics"].items()
                    if isinstance(value, int | float) and not isinstance(value, bool)
                },
            }
            for each in own
        ],
        **{key: training[key] for key in _NEEDED if key != "seed"},
        "noted": [
            *([f"its training {began}, whose epochs and time are not counted here"] if began else []),
            *_unusual(training),
            *dict.fromkeys(f"{e['protocol']}: {split_words(e)}" for e in own if split_words(e) != e["split"]),
        ],
        "recipe_sha256": config["recipe_sha256"],
        "weights_sha256": config["weights_sha256"],
        "place": place or str(release.path),
    }
    return parse(RunRecord, entry, str(release.path), ReleaseError)


def _leaves_of(plain: Mapping[str, Any], training: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's leaves, with the hashes of weights in the place of folders, which may hold others."""
    found = flat(_whole(plain))
    sha256, teachers = training.get("init_weights_sha256"), training.get("teacher_sha256")
    if sha256 is not None and not str(found.get(START)).startswith("shipped:"):
        found[START] = sha256
    if teachers is not None and not all(str(each).startswith("shipped:") for each in found[TEACHERS]):
        found[TEACHERS] = teachers
    snapshot = format.snapshot_of(training)
    return found if snapshot is None else {**found, "snapshot": snapshot}


def flat(plain: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested sections by dotted key; so are lists of sections."""
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(plain, Mapping):
        items = plain.items()
    elif isinstance(plain, list) and any(isinstance(each, Mapping | list) for each in plain):
        items = enumerate(plain)
    below = {k: v for key, value in items for k, v in flat(value, f"{path}.{key}" if path else key).items()}
    return below or {path: plain}


@cache
def shipped_leaves(name: str) -> dict[str, Any]:
    """Return the leaves of a shipped recipe."""
    return flat(_whole(Recipe.load(name).model_dump(mode="json")))


def _whole(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe with every key; CIFAR's parquet files are CIFAR, its images are told by their hash."""
    try:
        recipe = parse(Recipe, dict(plain), "recipe")
    except RecipeError:  # of another version
        return dict(plain)
    whole = recipe.model_dump(mode="json")
    whole["data"]["source"] = as_archive(recipe.data.source).model_dump(mode="json")
    return whole


_TITLES = {
    "bcl": "BCL",
    "balanced_softmax": "Balanced Softmax",
    "class_balanced_sampling": "class-balanced sampling",
    "cross_entropy": "cross-entropy",
    "crt": "cRT",
    "from_centers": "from the centers",
    "gpaco": "GPaCo",
    "ldam": "LDAM",
    "ldam_drw": "LDAM-DRW",
    "lws": "LWS",
    "margin": "margin loss",
    "moco": "MoCo",
    "moco_v3": "MoCo v3",
    "paco": "PaCo",
    "pico": "PiCO",
    "post_hoc_logit_adjustment": "post-hoc logit adjustment",
    "simclr": "SimCLR",
    "sup_con": "SupCon",
    "tau_normalized": "tau-normalised",
}


def method_title(name: str, recipe: Mapping[str, Any]) -> str:
    """Name what a plain recipe trains, as papers do; MoCo's version is told by the recipe's name."""
    objective, method = recipe["objective"], recipe.get("method")
    kind, loss = str(objective["name"]), objective.get("loss")
    loss = loss["name"] if isinstance(loss, Mapping) else loss
    if kind == "classify":  # named by its loss, or by what decides the loss
        kind = str(method["name"]) if method else str(loss)
    title = _TITLES.get(kind, kind.replace("_", " "))
    # tables have this baseline twice: with crops and flips, and in the setting of what it is compared with
    if kind == "cross_entropy" and any(op.get("op") == "auto_augment" for op in recipe["views"]["train"][0]):
        title += " + AutoAugment"
    if kind == "moco":
        version = name.partition(".moco_")[2].split("_")[0]
        title += f" {version}" if version in ("v1", "v2") else ""
        title += "" if loss in (None, "info_nce") else f", {str(loss).replace('_', ' ')} loss"
    title += " + teachers" if objective.get("distill") else ""
    return title + (" + FT" if objective.get("feature_transform") else "")


def _counted(training: Mapping[str, Any]) -> str:
    stopping, reached = training.get("early_stopping"), format.snapshot_of(training)
    if reached is not None:
        return f"a snapshot after {reached}"
    if not isinstance(stopping, Mapping):
        return "last epoch"
    metric, images = str(stopping.get("metric")).replace("_", " "), stopping.get("validation_images")
    return f"early stopping chose the epoch by the {metric} of {images} images held out of the training set"


def _unusual(training: Mapping[str, Any]) -> list[str]:
    words = {
        "changed_on_resume": "changed while it ran: {}",
        "unreadable_images": "{} unreadable images",
    }
    return [text.format(training[key]) for key, text in words.items() if training.get(key)]
