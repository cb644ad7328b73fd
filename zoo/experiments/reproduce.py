"""`zoo.reproduce`: train a release again by its own recipe, and compare everything that was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os.path import isfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from scipy import stats

from zoo import catalog, hub
from zoo.config import is_number
from zoo.data.any_data import Data, own_root
from zoo.errors import ReleaseError, ZooError, rank_and_size
from zoo.evaluation.evaluate import evaluate, open_own
from zoo.evaluation.light import parse_protocol
from zoo.experiments.pretraining import pretrain
from zoo.experiments.records import RunRecord, find, from_release
from zoo.files import RUNS
from zoo.functional import frequency_groups
from zoo.recipe import Recipe
from zoo.recipe.protocols import TRAINED
from zoo.release import Release, format
from zoo.release.provenance import origins, sha256_of

RISK = 0.01  # probability that an equally good training fails in any figure
FEWEST_SEEDS = 5  # needed to estimate the spread over seeds
_NAMES = ("loss", "accuracy", "positive_score", "negative_score", "uniformity", "alignment", "p_sup")
SCALARS = tuple(f"recorded/{name}" for name in _NAMES)
"""Recorded training figures that are judged if their spread over seeds is known."""


def judge(
    recorded: RunRecord,
    again: RunRecord,
    test_counts: NDArray[np.int64],
    train_counts: NDArray[np.int64],
    seeds: Sequence[RunRecord] = (),
    points: float | None = None,
) -> pd.DataFrame:
    """Judge all figures together: an equally good training fails in any with a probability of `RISK` at most.

    This is Bonferroni's bound over `SCALARS` and all evaluations, except intervals. The difference of two
    shares p, each over the same n test images, has the variance 2 p (1 - p) / n; a spread s over seeds adds
    2 s^2. The calibration error, a difference of accuracy and confidence, uses the accuracy's p. Numbers of
    images and queries must be equal. The quantile is normal if the only error is that of the test images, and
    Student's with k - 1 degrees of freedom if a spread over k `seeds` is included. `points` replaces the
    tolerance of all figures that have an error. The counts of images are by class, `[C]`.

    Returns:
        The figures with `difference`, `tolerance` and `verdict`: `same`, `within` the tolerance, `differs`,
        or `missing` if a figure was not measured again.
    """
    rows = list[tuple[str, str, float, float, float]]()
    for name in SCALARS:
        if name in recorded.figures and (spread := _spread([each.figures for each in seeds], name)):
            now = again.figures.get(name, math.nan)
            rows.append(("training", name, recorded.figures[name], now, math.sqrt(2) * spread))
    groups = frequency_groups(torch.tensor(train_counts))
    for number, entry in enumerate(recorded.evaluations, 1):
        new = again.evaluated(entry.kind)
        others = [each.metrics for run in seeds if (each := run.evaluated(entry.kind))]
        for name, was in entry.metrics.items():
            if "interval" in name:
                continue
            now, error = new.metrics.get(name, math.nan) if new else math.nan, 0.0
            if not name.endswith(("images", "queries")):
                images = test_counts[groups[name].numpy() if name in groups else ...].sum()
                share = entry.metrics["accuracy"] if "calibration" in name else (was + now) / 2
                error = math.sqrt(2 * share * (100 - share) / images + 2 * _spread(others, name) ** 2)
            rows.append((f"{number} {entry.protocol}", name, was, now, error))
    table = pd.DataFrame(rows, columns=["evaluation", "metric", "recorded", "reproduced", "error"])
    error = table.pop("error")
    chance = 1 - RISK / (2 * max(1, (error > 0).sum()))
    quantile = stats.t.ppf(chance, len(seeds) - 1) if seeds else stats.norm.ppf(chance)
    table["difference"] = table["reproduced"] - table["recorded"]
    table["tolerance"] = quantile * error if points is None else np.where(error > 0, points, 0.0)
    same, missing = table["difference"] == 0, table["reproduced"].isna()
    within = table["difference"].abs() <= table["tolerance"]
    table["verdict"] = np.select([same, missing, within], ["same", "missing", "within"], "differs")
    return table


def _spread(seeds: Sequence[Mapping[str, float]], name: str) -> float:
    """Return a figure's standard deviation over seeds; 0 if there are too few."""
    values = [each[name] for each in seeds if name in each]
    return statistics.stdev(values) if len(values) >= FEWEST_SEEDS else 0.0


@dataclass(frozen=True)
class Reproduction:
    """The result of training a release again.

    Attributes:
        recorded: the release to reproduce.
        made: the new release.
        figures: every number that was judged, of the training and of each evaluation, see `judge`.
        seeds: number of trainings with other seeds that give the spread; 0 without a spread.
        same_weights: whether weights, and centers if any, are identical, by their SHA-256.
    """

    recorded: Release
    made: Release
    figures: pd.DataFrame
    seeds: int
    same_weights: bool

    @property
    def wrong(self) -> pd.DataFrame:
        """The figures that differ or are missing; empty if the release was reproduced."""
        return self.figures[self.figures["verdict"].isin(["differs", "missing"])]


def reproduce(
    name: str | Path | Release,
    *,
    data: Data = None,
    out: str | Path | None = None,
    tolerance: float | None = None,
    spread: str | Path | None = None,
    resume: bool = False,
) -> Reproduction | None:
    """Train a release again by its own recipe and seed, repeat its evaluations, and compare.

    The recipe is the release's `recipe.yaml`. The images are those it lists, found in any copy of the data
    set; without a list, names and labels are first compared with the recorded SHA-256. Trainings on different
    processors end with different weights, as with another seed: see `judge`.

    Args:
        name: of the release, see `zoo.open`.
        data: the data that it was trained on, if they must be given.
        out: the release folder to make, by default `runs/reproduced/NAME`.
        tolerance: points by which figures may differ; 0 requires equal ones. By default see `judge`.
        spread: trainings of the same recipe with five or more other seeds: a folder or file of results, as
            for `table`. By default those shipped for this release, if any.
        resume: continue from the last checkpoint in `out`, or start if there is none.

    Returns:
        The comparison; None in all of torchrun's processes except the first.

    Raises:
        Interrupted: on a signal, after saving the state.
        ZooError: for a release that was converted, is a snapshot, or has no recorded evaluation; if the data,
            the initial release or a teacher differ from the original ones.
    """
    if tolerance is not None and not (is_number(tolerance) and 0 <= tolerance <= 100):
        raise ZooError(f"tolerance: found {tolerance!r}, expected points from 0 to 100")
    recorded = hub.open(name)
    recorded.verify()
    own, training = from_release(recorded), recorded.metrics["training"]
    # the original's trackers may not be available here
    recipe = Recipe.load(recorded.path / format.RECIPE, ["training.trackers=[]"])
    data = own_root(data, recipe.data)
    out = RUNS / "reproduced" / recorded.name if out is None else Path(out)
    if out.resolve() == recorded.path.resolve():
        raise ReleaseError(f'out: "{out}" is the release that is to be reproduced; choose another folder')
    if format.snapshot_of(training) is not None:
        raise ReleaseError(f"{recorded.name} is a snapshot, expected the release of a whole training")
    if not own.evaluations:
        raise ReleaseError(f"{recorded.name}: {format.METRICS} records no evaluation to compare with")
    seeds = _seeds(own, spread)
    first = rank_and_size()[0] == 0
    if first:
        for key, start, expected in origins(recorded.recipe, training):
            _check(f'{key} "{start}": found weights', sha256_of(key, hub.open(start).config), expected)
        train_set, test_set = (open_own(recorded, recipe.data, split, data) for split in ("train", "test"))
        _check("data: found training images", train_set.describe()["sha256"], own.train_sha256)
        _check("data: found test images", test_set.describe()["sha256"], own.evaluations[0].test_sha256)
    made = pretrain(recipe, out=out, data=data, resume=resume, images=recorded.images)
    if not first:
        return None
    for each in own.evaluations:
        if from_release(made).evaluated(each.kind) is None:
            protocol = parse_protocol(each.protocol, each.settings)
            settings = protocol.model_dump(mode="json", exclude={"protocol"})
            evaluate(made, each.protocol, data, resume=each.protocol in TRAINED, **settings)
            made = hub.open(made.path)
    figures = judge(own, from_release(made), test_set.class_counts, train_set.class_counts, seeds, tolerance)
    hashes = ("weights_sha256", "centers_sha256")
    same = all(recorded.config["zoo"][key] == made.config["zoo"][key] for key in hashes)
    return Reproduction(recorded, made, figures, len(seeds), same)


def _check(what: str, found: str, expected: str | None) -> None:
    if expected not in (None, found):
        raise ReleaseError(f"{what} of sha256 {found}, expected {expected}")


def _seeds(own: RunRecord, spread: str | Path | None) -> list[RunRecord]:
    """Return records of trainings like `own` with other seeds; none if too few are shipped."""
    shipped = catalog.shared_folder("recipes") / "spread" / f"{own.name}.json"
    found, same = find([spread or shipped] if spread or isfile(shipped) else []), (own.name, own.train_sha256)
    alike = {run.seed: run for run in found if (run.name, run.train_sha256) == same and run.seed != own.seed}
    if spread and len(alike) < FEWEST_SEEDS:
        expected = f"trainings like {own.name} with {FEWEST_SEEDS} or more other seeds"
        raise ZooError(f'spread: found {len(alike)} in "{spread}", expected {expected}')
    return [*alike.values()] if len(alike) >= FEWEST_SEEDS else []
