"""`zoo.reproduce`: train a release again by its own recipe, and compare everything that was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import stats

from zoo import catalog, hub
from zoo.config import Config, is_number
from zoo.data import DataConfig, ImageDataset
from zoo.data.any_data import Data, own_root
from zoo.data.memory import Root
from zoo.errors import DataError, Interrupted, RanksLost, ReleaseError, ZooError
from zoo.evaluation.evaluate import evaluate, open_own, parse_protocol
from zoo.experiments.records import RunRecord, find, from_release
from zoo.files import RUNS, is_file
from zoo.functional import frequency_groups
from zoo.launch import rank
from zoo.pretraining import pretrain
from zoo.recipe import Recipe
from zoo.recipe.protocols import TRAINED
from zoo.release import Release, format
from zoo.release.provenance import origins, sha256_of
from zoo.report.subject import open_subjects

RISK = 0.01
"""How often an equally good training may fail in any of its figures."""

FEWEST_SEEDS = 5
"""Of which a spread is known well enough to judge by."""

FACTS = ("steps", "epochs", "images", "seed")
"""Counts of a training that have to be equal, unless it may stop early."""

SCALARS = ("loss", "accuracy", "positive_score", "negative_score", "uniformity", "alignment", "p_sup")
"""What a training recorded of itself that is judged where its spread over seeds is known."""

_STABLE = ("classifier", "knn")  # protocols that fit nothing: the same weights give the same answers


def row(
    of: str, metric: str, was: float, now: float, error: float = 0.0, seeds: int = 0, least: float = 0.0
) -> dict[str, Any]:
    """Return a figure for `judged`.

    Args:
        of: the evaluation, or `training`.
        metric: its name.
        was: as recorded.
        now: as reproduced; NaN where there is no such number.
        error: standard error of the difference of two equally good trainings; NaN for what is not judged.
        seeds: of how many trainings its spread is known; 0 where the error is that of test images alone.
        least: difference that is allowed in any case.
    """
    figure = {"evaluation": of, "metric": metric, "recorded": was, "reproduced": now}
    return {**figure, "error": error, "seeds": seeds, "least": least}


def judged(found: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """Judge all figures together: an equally good training fails in any with a probability of `RISK` at most.

    That is Bonferroni's bound over the figures. The quantile is normal where the error is that of test images
    alone, Student's with k - 1 degrees of freedom where a spread over k seeds is part of it.

    Returns:
        The rows with `difference`, `tolerance` and `verdict`: `same` to the last bit, `within` the tolerance,
        `differs`, `missing` where nothing was made again, or `not judged`.
    """
    table = pd.DataFrame(found)
    chance = 1 - RISK / (2 * max(1, int((table["error"] > 0).sum())))
    student = stats.t.ppf(chance, np.maximum(table["seeds"] - 1, 1))
    quantile = np.where(table["seeds"] > 0, student, stats.norm.ppf(chance))
    table["difference"] = table["reproduced"] - table["recorded"]
    table["tolerance"] = np.where(table["error"] > 0, quantile, 0.0) * table["error"]
    table["tolerance"] = table["tolerance"].clip(lower=table["least"])
    rounding = 1 + 1e-9  # of the subtraction; nothing at tolerance 0
    table["verdict"] = np.select(
        [
            table["tolerance"].isna(),  # equal by chance, such a figure says nothing of the reproduction
            table["reproduced"] == table["recorded"],
            table["difference"].isna(),
            table["difference"].abs() <= table["tolerance"] * rounding,
        ],
        ["not judged", "same", "missing", "within"],
        "differs",
    )
    return table.drop(columns=["error", "seeds", "least"])


def evaluation_rows(
    of: str,
    recorded: Mapping[str, Any],
    again: Mapping[str, Any],
    images: tuple[NDArray[np.int64], NDArray[np.int64]],
    *,
    seeds: Sequence[Mapping[str, float]] = (),
    points: float | None = None,
    same: bool = False,
) -> Iterator[dict[str, Any]]:
    """Yield the percentages of two trainings, each measured on the same n test images; counts are equal.

    The difference of two shares p of n images has the variance 2 p (1 - p) / n; a spread s over seeds, which
    also shows what rounding does, adds 2 s^2. The calibration error, a difference of accuracy and
    confidence, has the accuracy's p. An interval over a few draws is known to a third, so two of them may
    differ by the wider one. Accuracies of single classes are not judged by themselves: groups of them are.

    Args:
        of: the evaluation.
        recorded: its metrics.
        again: the same, made again; what it has besides was not measured then and is left out.
        images: how many of each class were measured on, and trained on, both `[C]`.
        seeds: metrics of the same evaluation of trainings with other seeds.
        points: by which percentages may differ, instead of all this.
        same: of the same weights, and nothing is fitted: an image on the border may fall to the other side.
    """
    new, (test, train) = dict(_flat(again)), images
    groups = frequency_groups(torch.tensor(train))
    for name, was in _flat(recorded):
        now, behind = new.get(name, math.nan), test[test > 0]
        if name in groups:
            behind = test[groups[name].numpy() & (test > 0)]
        image = 100 / (len(behind) * int(behind.min()))  # of the smallest class, in a mean over classes
        known, spread = _spread(seeds, name)
        share = recorded.get("accuracy", 50.0) if "calibration" in name else (was + now) / 2
        share = min(max(share, 0.0), 100.0)
        variance = 2 * share * (100 - share) / int(behind.sum()) + 2 * spread**2
        if math.isnan(now) or (isinstance(was, int) and isinstance(now, int)):
            yield row(of, name, was, now)
        elif points is not None or "interval" in name:
            yield row(of, name, was, now, least=max(was, now) if points is None else points)
        elif name.rpartition(".")[2].isdigit():
            yield row(of, name, was, now, math.nan)
        elif same:
            yield row(of, name, was, now, least=image)
        else:
            yield row(of, name, was, now, math.sqrt(variance), known, image)


def scalar_rows(
    recorded: Mapping[str, float], again: Mapping[str, float], seeds: Sequence[Mapping[str, float]]
) -> Iterator[dict[str, Any]]:
    """Yield what two trainings recorded of themselves (`RunRecord.figures`), by the spread over `seeds`."""
    for name in (f"recorded/{name}" for name in SCALARS):
        known, spread = _spread(seeds, name)
        if name in recorded and known:
            now = again.get(name, math.nan)
            yield row("training", name, recorded[name], now, math.sqrt(2) * spread, known)


def _flat(metrics: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in metrics.items():
        listed = [(f"{name}.{i}", each) for i, each in enumerate(value)] if isinstance(value, list) else ()
        yield from (pair for pair in listed or [(name, value)] if is_number(pair[1]))


def _spread(seeds: Sequence[Mapping[str, float]], name: str) -> tuple[int, float]:
    """Return of how many seeds a figure's standard deviation is known, and that; 0 where of too few."""
    values = [each[name] for each in seeds if name in each]
    return (len(values), statistics.stdev(values)) if len(values) >= FEWEST_SEEDS else (0, 0.0)


@dataclass(frozen=True)
class Reproduction:
    """What came of training a release again.

    Attributes:
        recorded: the release that was to be reproduced.
        made: the new one.
        figures: every number that was recorded, of the training and of each evaluation, see `judged`.
        not_repeated: evaluations that could not be made again, and why.
        seeds: how many trainings with other seeds the spread of training is known from; 0 without one.
        same_weights: whether weights, and centers where there are any, are the same bits, by their SHA-256.
    """

    recorded: Release
    made: Release
    figures: pd.DataFrame
    not_repeated: dict[str, str]
    seeds: int
    same_weights: bool

    @property
    def agrees(self) -> bool:
        """Whether all figures agree."""
        return not self.figures["verdict"].isin(["differs", "missing"]).any()


def reproduce(
    name: str | Path | Release,
    *,
    data: Data = None,
    out: str | Path | None = None,
    tolerance: float | None = None,
    spread: str | Path | None = None,
    resume: bool = False,
) -> Reproduction | None:
    """Train a release again by its own recipe and seed, repeat what was measured on it, and compare.

    The recipe is the release's `recipe.yaml`, whatever this version ships under its name. The images are
    those that it lists, out of any copy of the data set; where it lists none, their names and labels are
    compared with the recorded SHA-256 before anything is trained.

    Two trainings on different processors end in other weights, as with another seed. So figures are judged by
    the choice of test images and by the spread over seeds, all of them together; see `judged`.

    Args:
        name: which release, see `zoo.open`.
        data: those that it was trained on, where they need to be given.
        out: the release folder to make, by default `runs/reproduced/NAME`.
        tolerance: points by which percentages may differ; 0 demands equal numbers. By default as the spread
            over seeds and the number of test images have it.
        spread: trainings of the same recipe with five or more other seeds: a folder or file of results, as
            `table` takes it. By default what is shipped for this release, where there is something.
        resume: go on from the last checkpoint in `out`, or begin if there is none.

    Returns:
        The comparison; None in torchrun's processes but the first.

    Raises:
        Interrupted: on a signal, after saving the state.
        ZooError: for a release that was converted, is a snapshot, or has nothing recorded; for other data
            than it was trained on, or an initial release that cannot be opened.
    """
    if tolerance is not None and not (is_number(tolerance) and 0 <= tolerance <= 100):
        raise ZooError(f"tolerance: found {tolerance!r}, expected points from 0 to 100")
    recorded = hub.open(name)
    recorded.verify()
    file, training = recorded.path / format.RECIPE, recorded.metrics["training"]
    # who repeats a training need not have the trackers of who made it
    recipe = Recipe.from_yaml(format.read_text(file), str(file), ["training.trackers=[]"])
    data = own_root(data, recipe.data)
    out = RUNS / "reproduced" / recorded.name if out is None else Path(out)
    if out.resolve() == recorded.path.resolve():
        raise ReleaseError(f'out: "{out}" is the release that is to be reproduced; choose another folder')
    if (reached := format.snapshot_of(training)) is not None:
        raise ReleaseError(
            f"{recorded.name} is a snapshot of a training that had not ended, after {reached}, so no recipe "
            "ends there; expected the release of a whole training"
        )
    if not recorded.metrics["evaluations"]:
        raise ReleaseError(f"{recorded.name}: {format.METRICS} records no evaluation to compare with")
    seeds = _seeds(recorded, spread)
    if rank() == 0:
        _check_origins(recorded)
        train_set, test_set = open_same(recorded, recipe.data, data)
    made = pretrain(recipe, out=out, data=data, resume=resume, images=recorded.images)
    if rank() > 0:
        return None
    old, new = (release.metrics["training"] for release in (recorded, made))
    facts = () if recipe.training.early_stopping else FACTS
    figures = [row("training", fact, old[fact], new[fact]) for fact in facts if fact in old]
    if seeds and tolerance is None:
        before, after = open_subjects([recorded.path, made.path])
        figures += scalar_rows(before.numbers, after.numbers, [each.figures for each in seeds])
    images = np.asarray(test_set.class_counts), np.asarray(train_set.class_counts)
    hashes = ("weights_sha256", "centers_sha256")
    same = all(recorded.config["zoo"][key] == made.config["zoo"][key] for key in hashes)
    not_repeated = dict[str, str]()
    for number, entry in enumerate(recorded.metrics["evaluations"], 1):
        label = entry["protocol"]
        if label in {figure["evaluation"] for figure in figures}:
            label += f" #{number}"
        try:
            again = _repeat(entry, made, data)
        except (Interrupted, RanksLost):
            raise
        except ZooError as error:
            not_repeated[label] = str(error)
        else:
            figures += evaluation_rows(
                label,
                entry["metrics"],
                again["metrics"],
                images,
                seeds=metrics_of(seeds, entry),
                points=tolerance,
                same=same and entry["protocol"] in _STABLE,
            )
    if len(not_repeated) == len(recorded.metrics["evaluations"]):
        why = next(iter(not_repeated.values()))
        raise ZooError(f"{recorded.name}: none of its evaluations could be repeated: {why}")
    return Reproduction(recorded, made, judged(figures), not_repeated, len(seeds), same)


def metrics_of(seeds: Sequence[RunRecord], entry: Mapping[str, Any]) -> list[Mapping[str, float]]:
    """Return the metrics of the evaluation `entry` in records of other seeds."""
    told = (entry["protocol"], entry.get("settings") or {}, _sha256(entry, "test_set"))
    return [
        each.metrics
        for record in seeds
        for each in record.evaluations
        if (each.protocol, each.settings, each.test_sha256) == told
    ]


def _check_origins(release: Release) -> None:
    """Make sure that the releases that training began with are there, and are what they were."""
    for key, name, expected in origins(release.recipe, release.metrics["training"]):
        try:
            found = sha256_of(key, hub.open(name).config)
        except ZooError as error:
            raise ReleaseError(f'{release.name}: {key} "{name}" cannot be opened: {error}') from None
        if expected not in (None, found):
            raise ReleaseError(
                f'{release.name}: {key} "{name}": found weights of sha256 {found}, expected {expected}'
            )


def _seeds(release: Release, spread: str | Path | None) -> list[RunRecord]:
    """Return records of trainings like that of a release with other seeds; none where too few are known."""
    own, place = from_release(release), spread or catalog.spread_path(release.name)
    if spread is None and not is_file(place):
        return []
    same = (own.name, own.train_sha256)
    alike = [each for each in find([place]) if (each.name, each.train_sha256) == same]
    alike = [each for each in alike if each.seed != own.seed]
    if len({each.seed for each in alike}) < FEWEST_SEEDS and spread is not None:
        raise ZooError(
            f'spread: found {len(alike)} trainings like {own.name} with other seeds in "{spread}", expected '
            f"{FEWEST_SEEDS} or more"
        )
    return alike


def open_same(release: Release, config: DataConfig, root: Root) -> tuple[ImageDataset, ImageDataset]:
    """Return training and test images of a release with their true labels, as its probes saw them.

    Raises:
        DataError: for other images or labels than those, as far as the release records or lists them.
    """
    plain = config.model_copy(update={"partial_labels": None})
    train_set, test_set = (open_own(release, plain, split, root) for split in ("train", "test"))
    trained = train_set if config == plain else open_own(release, config, "train", root)
    images, own = release.config["zoo"]["dataset"].get("sha256"), train_set.describe()["sha256"]
    entries = [each for each in release.metrics["evaluations"] if _sha256(each, "train_set") == own]
    tested = next((_sha256(each, "test_set") for each in entries), None)
    for did, dataset, expected in (("trained", trained, images), ("tested", test_set, tested)):
        facts = dataset.describe()
        if expected not in (None, facts["sha256"]):
            raise DataError(
                f"{release.name} was {did} on images with names and labels of sha256 {expected}, found "
                f"{facts['num_images']:,} with {facts['sha256']}: other data, or in another order"
            )
    return train_set, test_set


def _repeat(entry: Mapping[str, Any], made: Release, data: Root) -> Mapping[str, Any]:
    """Return the entry of `made` that repeats a recorded one, measured now if it is not there yet.

    Raises:
        ZooError: saying why it cannot be repeated.
    """
    measured: list[Mapping[str, Any]] = made.metrics["evaluations"]
    for each in measured:
        if _told(each) == _told(entry):
            return each
    settings = _protocol(entry).model_dump(mode="json", exclude={"protocol"})
    again = evaluate(made, entry["protocol"], data, resume=entry["protocol"] in TRAINED, **settings)
    if _told(again) != _told(entry):
        raise DataError(
            f'measured on "{entry["data"]}", other images than those of the training; '
            f'"zoo evaluate {entry["protocol"]} {made.path} --data SPEC" measures the new release there'
        )
    return again


def _protocol(entry: Mapping[str, Any]) -> Config:
    seed = {} if entry.get("seed") is None else {"seed": entry["seed"]}
    found: Config = parse_protocol(entry["protocol"], {**(entry.get("settings") or {}), **seed})
    return found


def _told(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what two evaluations that can be compared have in common: protocol and images."""
    return _protocol(entry), _sha256(entry, "train_set"), _sha256(entry, "test_set")


def _sha256(entry: Mapping[str, Any], images: str) -> str | None:
    return (entry.get(images) or {}).get("sha256")
