"""One finished training as a record: its recipe, seed, hashes and figures, read from wherever it lies."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from zoo import catalog, hub
from zoo.config import Config, is_number, parse
from zoo.data.config import data_words
from zoo.data.sources import as_archive
from zoo.errors import RecipeError, ReleaseError, ZooError, ZooWarning
from zoo.files import is_dir, is_file, names_in, read_text
from zoo.recipe import Recipe
from zoo.recipe.overrides import COMPUTATION
from zoo.release import Release, format
from zoo.release.provenance import START, TEACHERS, began_with
from zoo.release.schema import split_words

RESULTS = "results.json"
KEPT = "results"
"""A folder of this name keeps the records of runs whose weights lie elsewhere."""

_LARGEST = 1 << 26  # bytes of a file of records
_DECIDE = {f"training.{key}" for key in ("precision", "release_dtype")}
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
    the hash, unless they are shipped."""
    method: str
    """What was trained, as papers call it."""
    architecture: str
    data: str
    train_sha256: _Sha256
    """Of the training images' names and labels."""
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

    @property
    def group(self) -> str:
        """The same for runs of one experiment: they differ in the seed alone."""
        decides = {key: value for key, value in self.recipe.items() if not f"{key}.".startswith(_SAME)}
        return json.dumps([self.name, self.train_sha256, decides], sort_keys=True)

    @property
    def changed(self) -> dict[str, tuple[Any, Any]] | None:
        """In what the recipe differs from the shipped one of its name, as (shipped, here), seed aside.

        None where no recipe of that name is shipped.
        """
        if self.name not in catalog.list_recipes():
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


def find(names: Sequence[str | Path | Release]) -> list[RunRecord]:
    """Read releases by name, files `results.json`, and all that lies in folders at any depth.

    In a folder called `results` every .json file is one of records. What lies in a folder and has no record,
    such as a converted release, is left out with a warning. Of copies of a run, the one on which most was
    measured is returned.

    Raises:
        ZooError: for a name that is none of these, a folder without any run, or a damaged file.
    """
    runs: dict[tuple[str, str, str], RunRecord] = {}
    for name in map(hub.named, names):
        folder = Path(name).absolute()
        if is_file(name):
            found = read_results(Path(name))
        elif not is_dir(name) or format.holds_release(folder):
            found = [from_release(hub.open(folder if is_dir(name) else name))]
        elif not (found := list(_below(Path(name)))):
            there = ", ".join(names_in(folder)[:4]) or "nothing"
            raise ZooError(
                f'"{name}": found {there}, expected releases in it, at any depth, or a folder "{KEPT}" with '
                "files of results"
            )
        for run in found:
            same = (run.weights_sha256, run.recipe_sha256, run.date)
            known = runs.setdefault(same, run)
            if len(run.evaluations) > len(known.evaluations):
                runs[same] = run
    return list(runs.values())


def _below(folder: Path) -> Iterator[RunRecord]:
    for path in (folder / name for name in names_in(folder) if not name.startswith(".")):
        if folder.name == KEPT and path.suffix == ".json":
            yield from read_results(path)
        elif format.holds_release(path):
            try:
                yield from_release(Release.at(path))
            except ReleaseError as error:
                warnings.warn(f"not counted: {error}", ZooWarning, stacklevel=2)
        elif is_dir(path) and not path.is_symlink():
            yield from _below(path)


def read_results(file: Path) -> list[RunRecord]:
    """Read a file of results.

    Raises:
        ZooError: naming what is wrong with it.
    """
    try:
        data = json.loads(read_text(file, _LARGEST))
    except (OSError, ValueError, RecursionError) as error:
        raise ZooError(f'"{file}" cannot be read as results: {error}') from None
    if not isinstance(data, dict) or data.get("format") != 2 or not isinstance(data.get("runs"), list):
        raise ZooError(f'"{file}": expected a {RESULTS} of format 2, as "zoo table" writes it')
    return [parse(RunRecord, run, f'"{file}"', ZooError) for run in data["runs"]]


def as_json(records: Sequence[RunRecord]) -> str:
    """Return what `results.json` holds."""
    return json.dumps({"format": 2, "runs": [each.model_dump() for each in records]}, indent=1) + "\n"


def from_release(release: Release) -> RunRecord:
    """Return the record of a release.

    Args:
        release: of a training of this project.

    Raises:
        ReleaseError: for one whose training is not recorded, e.g. a converted one.
    """
    training, config, plain = release.metrics["training"], release.config["zoo"], release.recipe
    absent = [key for key in _NEEDED if training.get(key) is None]
    if absent:
        raise ReleaseError(
            f"{release.path}: {format.METRICS} has no training.{absent[0]}, expected the record of a training"
        )
    data = config["dataset"]
    words, tail, labelled = data_words(data), data.get("long_tail") or {}, data.get("num_classes") != 0
    own = [e for e in release.metrics["evaluations"] if (e["data"], e["split"]) == (words, "test")]
    noted = []
    if began := began_with(plain):
        noted.append(f"its training {began}, whose epochs and time are not counted here")
    if changes := training.get("changed_on_resume"):
        noted.append(f"changed while it ran: {changes}")
    if bad := training.get("unreadable_images"):
        noted.append(f"{bad} unreadable images")
    noted += dict.fromkeys(f"{e['protocol']}: {split_words(e)}" for e in own if split_words(e) != e["split"])
    entry = {
        "name": release.name,
        "seed": training["seed"],
        "recipe": _leaves_of(plain, training),
        "method": method_title(release.name, plain),
        "architecture": release.config["architecture"],
        "data": words,
        "train_sha256": data.get("sha256"),
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
                "metrics": {name: value for name, value in each["metrics"].items() if is_number(value)},
            }
            for each in own
        ],
        **{key: training[key] for key in _NEEDED if key != "seed"},
        "noted": noted,
        "recipe_sha256": config["recipe_sha256"],
        "weights_sha256": config["weights_sha256"],
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
    "cross_entropy": "cross-entropy",
    "crt": "cRT",
    "gpaco": "GPaCo",
    "ldam": "LDAM",
    "ldam_drw": "LDAM-DRW",
    "lws": "LWS",
    "moco": "MoCo",
    "moco_v3": "MoCo v3",
    "paco": "PaCo",
    "pico": "PiCO",
    "simclr": "SimCLR",
    "sup_con": "SupCon",
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
