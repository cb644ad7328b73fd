"""Records of finished trainings: recipe, seed, hashes and figures, read from releases and files."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from os.path import isdir, isfile
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from zoo import catalog, hub
from zoo.config import Config, flatten, is_number, parse
from zoo.data.dataset import data_words
from zoo.data.sources import as_archive
from zoo.errors import RecipeError, ReleaseError, ZooError, ZooWarning
from zoo.objectives import SHIPPED
from zoo.recipe import Recipe
from zoo.recipe.overrides import keys_learned
from zoo.release import Release, format
from zoo.release.provenance import START, TEACHERS, describe_origins
from zoo.release.schema import is_own, split_words
from zoo.report.subject import open_subjects

_RECORDED = ("epochs", "seconds", "hardware", "precision", "seed", "date", "versions")
_Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Evaluated(Config):
    """One evaluation of a run, without the accuracy of each class; accuracies are in percent."""

    protocol: str
    settings: dict[str, Any]
    test_sha256: _Sha256 | None
    metrics: dict[str, float]

    @property
    def kind(self) -> str:
        """The key that must be equal for figures of several runs to be combined."""
        return json.dumps([self.protocol, self.settings, self.test_sha256], sort_keys=True)


class RunRecord(Config):
    """A finished training and everything measured on it."""

    name: str
    seed: Annotated[int, Field(ge=0)]
    recipe: dict[str, Any]
    """By dotted key, with numbers for lists of sections. Initial weights and teachers are given by their
    hashes, unless they are shipped."""
    method: str
    data: str
    train_sha256: _Sha256 = Field(description="SHA-256 of the training images' names and labels.")
    classes: int
    largest: int = Field(description="Training images of the most frequent class.")
    smallest: int
    epochs: int | float
    evaluations: list[Evaluated] = Field(description="Evaluations on the training's own data.")
    figures: dict[str, float] = {}
    """Numbers of `zoo.diagnose`, e.g. `recorded/loss`; `features/` ones only if a sweep watches any."""
    seconds: Annotated[float, Field(ge=0)]
    hardware: str
    precision: str
    versions: dict[str, str]
    date: str
    noted: list[str]
    recipe_sha256: _Sha256
    weights_sha256: _Sha256

    @property
    def decisive(self) -> dict[str, Any]:
        """The recipe's keys that affect results, without the seed; equal for runs of one experiment."""
        keys = {*keys_learned(self.recipe), "training.precision", "training.release_dtype"}
        return {key: value for key, value in self.recipe.items() if key in keys}

    @property
    def changed(self) -> dict[str, Any] | None:
        """The values that differ from the shipped recipe of the same name; None if there is none."""
        if (shipped := shipped_leaves(self.name)) is None:
            return None
        shipped = {**shipped, START: self.recipe.get(START)}
        # what `auto` chose is not a change
        own = self.decisive.items()
        return {key: value for key, value in own if shipped.get(key, ...) not in (value, "auto")}

    def evaluated(self, kind: str) -> Evaluated | None:
        """Return the newest evaluation of a kind, see `Evaluated.kind`."""
        return next((each for each in reversed(self.evaluations) if each.kind == kind), None)


class ResultsFile(Config, extra="ignore"):
    """The content of `results.json`; other keys are for readers."""

    format: Literal[2]
    runs: list[RunRecord]


def find(names: Sequence[str | Path | Release]) -> list[RunRecord]:
    """Read records from releases by name, files `results.json`, and folders at any depth.

    In a folder called `results` every .json file has records. A folder's releases without a training, such as
    converted ones, are skipped with a warning. Of copies of a run, the one with the most evaluations is
    returned. ZooError for anything else, an empty folder, or a damaged file.
    """
    records = list[RunRecord]()
    for name in map(hub.named, names):
        if isfile(name):
            found = read_results(Path(name))
        elif isdir(name) and not format.holds_release(Path(name)):
            found = _below(Path(name))
        else:
            found = [from_release(hub.open(name))]
        if not found:
            raise ZooError(f'"{name}": found no release in it, expected one at any depth')
        records += found
    records.sort(key=lambda run: len(run.evaluations))
    return list({(run.weights_sha256, run.recipe_sha256, run.date): run for run in records}.values())


def _below(folder: Path) -> list[RunRecord]:
    found = list[RunRecord]()
    for path in sorted(folder.rglob("*.json")):
        if path.parent.name == "results":
            found += read_results(path)
        elif path.name == format.CONFIG:
            try:
                found.append(from_release(Release.at(path.parent)))
            except ReleaseError as error:
                warnings.warn(f"not counted: {error}", ZooWarning, stacklevel=3)
    return found


def read_results(file: Path) -> list[RunRecord]:
    """Read a file of results; ZooError says what is wrong with it."""
    return parse(ResultsFile, format.read_json(file), f'"{file}"', ZooError).runs


def from_release(release: Release) -> RunRecord:
    """Return the record of a release; ReleaseError if it has no training, such as a converted one."""
    training, config, plain = release.metrics["training"], release.config["zoo"], release.recipe
    if training.get("epochs") is None:
        raise ReleaseError(f"{release.path}: {format.METRICS} has no training.epochs, expected a training")
    data = config["dataset"]
    words, counts = data_words(data), data["class_counts"] if data.get("num_classes") else {}
    own = [entry for entry in release.metrics["evaluations"] if is_own(entry, words)]
    began, stopping = describe_origins(plain), training.get("early_stopping")
    noted = [f"its training {began}, whose epochs and time are not counted here"] if began else []
    noted += [f"early stopping chose the epoch by {stopping['metric']}"] if stopping else []
    noted += dict.fromkeys(f"{e['protocol']}: {split_words(e)}" for e in own if split_words(e) != e["split"])
    leaves = recipe_leaves(plain)
    for key, record in ((START, "init_weights_sha256"), (TEACHERS, "teacher_sha256")):
        if training.get(record) is not None and "shipped:" not in str(leaves.get(key)):
            leaves[key] = training[record]  # the name may now refer to others
    if training.get("ranks", 1) > 1:  # BatchNorm saw smaller batches: not comparable to one rank
        leaves["ranks"] = training["ranks"]
    entry = {
        "name": release.name,
        "recipe": leaves,
        "method": method_title(release.name, plain),
        "data": words,
        "train_sha256": data.get("sha256"),
        "classes": data.get("num_classes"),
        "largest": counts.get("largest", 0),
        "smallest": counts.get("smallest", 0),
        "evaluations": [
            {
                "protocol": e["protocol"],
                "settings": (e.get("settings") or {}) | ({"seed": e["seed"]} if e.get("seed") else {}),
                "test_sha256": (e.get("test_set") or {}).get("sha256"),
                "metrics": {name: value for name, value in e["metrics"].items() if is_number(value)},
            }
            for e in own
        ],
        "figures": open_subjects([release])[0].numbers,
        "noted": noted,
        **{key: config[key] for key in ("recipe_sha256", "weights_sha256")},
        **{key: training.get(key) for key in _RECORDED},
    }
    return parse(RunRecord, entry, str(release.path), ReleaseError)


def recipe_leaves(plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of a recipe with defaults; CIFAR's parquet files count as CIFAR (equal hashes)."""
    try:
        recipe = parse(Recipe, dict(plain), "recipe")
    except RecipeError:  # written by another version
        return flatten(plain)
    whole = recipe.model_dump(mode="json")
    whole["data"]["source"] = as_archive(recipe.data.source).model_dump(mode="json")
    return flatten(whole)


@cache
def shipped_leaves(name: str) -> dict[str, Any] | None:
    """Return the leaves of a shipped recipe; None if there is none of this name."""
    shipped = name in catalog.list_recipes()
    return recipe_leaves(Recipe.load(name).model_dump(mode="json")) if shipped else None


_TITLES = {"balanced_softmax": "Balanced Softmax", "cross_entropy": "cross-entropy", "crt": "cRT"}
_TITLES |= {"ldam_drw": "LDAM-DRW", "lws": "LWS"}


def method_title(name: str, recipe: Mapping[str, Any]) -> str:
    """Return the method of a plain recipe as papers call it; the recipe's name gives MoCo's version."""
    objective, method, loss = recipe["objective"], recipe.get("method"), recipe["objective"].get("loss")
    kind = str(objective["name"])
    title = SHIPPED[kind].__name__.removesuffix("Config") if kind in SHIPPED else kind
    if kind == "classify":  # named after the loss or method
        kind = method["name"] if method else loss["name"] if isinstance(loss, Mapping) else str(loss)
        title = _TITLES.get(kind, kind.replace("_", " "))
    # tables have this baseline twice: with crops and flips, and in the compared method's setting
    if kind == "cross_entropy" and any(op.get("op") == "auto_augment" for op in recipe["views"]["train"][0]):
        title += " + AutoAugment"
    if version := re.search(r"\.moco_(v[12])", name):
        title += f" {version[1]}"
    title += " + teachers" if objective.get("distill") else ""
    return title + (" + FT" if objective.get("feature_transform") else "")
