"""`zoo.reproduce`: train a release again by its own recipe, and compare everything that was measured."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from numbers import Real
from pathlib import Path
from typing import Any

from zoo import catalog
from zoo import release as releases
from zoo.api.pretraining import pretrain
from zoo.api.reproductions.repeat import Sets, measured_on, open_same, repeat
from zoo.data.any_data import Data, own_root
from zoo.errors import Interrupted, RanksLost, ReleaseError, ZooError
from zoo.evaluation.results import agreement
from zoo.evaluation.results.agreement import Figure, Tolerance
from zoo.files import RUNS, write_text, writing
from zoo.launch import rank
from zoo.release import Release, format
from zoo.release.origins import START, origins, sha256_of
from zoo.training import Recipe
from zoo.training.protocols import settings_of

REPORT = "reproduction.json"
TRAINING = "training"  # what the figures are of that no evaluation has made
_ENVIRONMENT = ("hardware", "ranks", "precision", "versions", "date", "changed_on_resume")


@dataclass(frozen=True)
class Reproduction:
    """What came of training a release again.

    Attributes:
        recorded: the release that was to be reproduced.
        made: the new one.
        figures: every number that was recorded, of the training and of each evaluation, beside the new one.
        not_repeated: evaluations that could not be made again, and why.
        tolerance: points that percentages may differ by; None: see `rule`.
    """

    recorded: Release
    made: Release
    figures: tuple[Figure, ...]
    not_repeated: tuple[tuple[str, str], ...]
    tolerance: float | None

    @property
    def agrees(self) -> bool:
        """Whether every number that could be compared is within its tolerance, some of an evaluation too."""
        return bool(self.compared) and all(figure.agrees for figure in self.figures)

    @property
    def compared(self) -> frozenset[str]:
        """The evaluations of which some number was compared."""
        return frozenset(figure.of for figure in self.figures if figure.of != TRAINING)

    @property
    def same_weights(self) -> bool:
        """Whether the weights are the same bits, by their SHA-256; with a classifier, its too."""
        return _hash(self.recorded, "weights") == _hash(self.made, "weights")

    @property
    def same_centers(self) -> bool | None:
        """Whether the centers are; None where neither release has any."""
        hashes = [_hash(release, "centers") for release in (self.recorded, self.made)]
        return None if hashes == [None, None] else hashes[0] == hashes[1]

    @property
    def rule(self) -> str:
        """How the tolerances follow, in words."""
        if self.tolerance is not None:
            return f"{self.tolerance:g} points of every percentage; counts are equal"
        trainings = (
            "the 95 % interval of the difference of two equally good models' shares p of n images, "
            "1.96 sqrt(2 p (1 - p) / n), at least one image; counts are equal"
        )
        if not _same_bits(self.recorded, self.made):
            return trainings
        return f"one image, as both have the same weights; of evaluations that were added later, {trainings}"

    def environments(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Hardware, versions and date of the recorded training and of the new one, as far as recorded."""
        recorded, made = (
            {key: facts[key] for key in _ENVIRONMENT if key in facts}
            for facts in (release.metrics["training"] for release in (self.recorded, self.made))
        )
        return recorded, made

    def record(self) -> dict[str, Any]:
        """All of it as plain values."""
        return {
            "format": 1,
            "name": self.recorded.name,
            "agrees": self.agrees,
            "same_weights": self.same_weights,
            "same_centers": self.same_centers,
            "tolerance": self.rule,
            **{
                side: {
                    "release": str(release.path),
                    "weights_sha256": _hash(release, "weights"),
                    "centers_sha256": _hash(release, "centers"),
                    "environment": environment,
                }
                for side, release, environment in zip(
                    ("recorded", "reproduced"),
                    (self.recorded, self.made),
                    self.environments(),
                    strict=True,
                )
            },
            "figures": [
                {**figure._asdict(), "difference": figure.difference, "verdict": figure.verdict}
                for figure in self.figures
            ],
            "not_repeated": [{"evaluation": label, "reason": reason} for label, reason in self.not_repeated],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }


def reproduce(
    name: str | Path | Release,
    *,
    data: Data = None,
    out: str | Path | None = None,
    tolerance: float | None = None,
    resume: bool = False,
) -> Reproduction | None:
    """Train a release again by its own recipe and seed, repeat what was measured on it, and compare.

    The recipe is the release's `recipe.yaml`, whatever this version ships under its name. The images are
    those that it lists, out of any copy of the data set; where it lists none, their names and labels are
    compared with the recorded SHA-256 before anything is trained.

    Args:
        name: which release, see `zoo.open`.
        data: those that it was trained on, where they need to be given.
        out: the release folder to make, by default `runs/reproduced/NAME`. The comparison is written there
            as `reproduction.json`.
        tolerance: points by which percentages may differ; 0 demands equal numbers. By default as
            `zoo.evaluation.results.agreement` derives it from the number of images.
        resume: go on from the last checkpoint in `out`, or begin if there is none.

    Returns:
        The comparison; None in torchrun's processes but the first.

    Raises:
        Interrupted: on a signal, after saving the state.
        ZooError: for a release that was converted, is a snapshot, or has nothing recorded; for other data
            than it was trained on, or an initial release that cannot be opened.
    """
    given: Any = tolerance  # what callers without a type checker give
    number = isinstance(given, Real) and not isinstance(given, bool)
    if given is not None and not (number and 0 <= given <= 100):
        raise ZooError(f"tolerance: found {tolerance!r}, expected points from 0 to 100")
    recorded = name if isinstance(name, Release) else _open(name)
    recipe = _recipe_of(recorded)
    data = own_root(data, recipe.data)
    _check_finished(recorded)
    out = RUNS / "reproduced" / recorded.name if out is None else Path(out)
    if out.resolve() == recorded.path.resolve():
        raise ReleaseError(f'out: "{out}" is the release that is to be reproduced; choose another folder')
    if not recorded.metrics["evaluations"]:
        raise ReleaseError(f"{recorded.name}: {format.METRICS} records no evaluation to compare with")
    if rank() == 0:
        _check_origins(recorded)
        train_set, own = open_same(recorded, recipe.data, data)
    made = pretrain(recipe, out=out, data=data, resume=resume, images=recorded.images)
    if rank() > 0:
        return None
    figures = _compare_trainings(recorded, made, recipe, len(train_set), tolerance)
    not_repeated: list[tuple[str, str]] = []
    for label, entry in _labelled(recorded.metrics["evaluations"], own):
        try:
            again, images = repeat(entry, made, own, data)
        except (Interrupted, RanksLost):
            raise
        except ZooError as error:
            not_repeated.append((label, str(error)))
            continue
        if tolerance is not None:
            allowed = agreement.within(tolerance)
        elif _same_bits(recorded, made) and _is_of(entry, recipe, own):
            allowed = agreement.same_model(images)
        else:
            allowed = agreement.equal_models(entry["metrics"], images)
        figures += agreement.compare(label, entry["metrics"], again["metrics"], allowed)
    found = Reproduction(recorded, made, tuple(figures), tuple(not_repeated), tolerance)
    with writing(f'"{out / REPORT}"', ReleaseError):
        write_text(out / REPORT, json.dumps(found.record(), indent=2, ensure_ascii=False) + "\n")
    return found


def _open(name: str | Path) -> Release:
    try:
        return releases.open(name)
    except ReleaseError:
        if name in catalog.list_recipes():
            raise ReleaseError(
                f'"{name}" is a recipe without a release, so nothing is recorded that could be compared; '
                f'"zoo pretrain {name}" trains it'
            ) from None
        raise


def _recipe_of(release: Release) -> Recipe:
    """Read the recipe that the release was trained by, once all its files are what it says they are."""
    release.verify()
    file = release.path / format.RECIPE
    # who repeats a training need not have the trackers of who made it
    return Recipe.from_yaml(format.read_text(file), str(file), ["training.trackers=[]"])


def _check_finished(release: Release) -> None:
    """Refuse a snapshot: its recipe trains further than it did."""
    reached = format.snapshot_of(release.metrics["training"])
    if reached is not None:
        raise ReleaseError(
            f"{release.name} is a snapshot of a training that had not ended, after {reached}, "
            f"so no recipe ends there; expected the release of a whole training"
        )


def _check_origins(release: Release) -> None:
    """Make sure that the releases that training began with are there, and are what they were."""
    for key, name, expected in origins(release.recipe, release.metrics["training"], release.name):
        did = "started" if key == START else "learned"
        try:
            found = sha256_of(key, releases.open(name).config)
        except ZooError as error:
            raise ReleaseError(
                f'{release.name}: its training {did} from "{name}", which cannot be opened: {error}'
            ) from None
        if expected not in (None, found):
            raise ReleaseError(
                f'{release.name}: its training {did} from "{name}" with weights of sha256 {expected}, but '
                f"those there now have {found}"
            )


def _compare_trainings(
    recorded: Release, made: Release, recipe: Recipe, images: int, tolerance: float | None
) -> list[Figure]:
    """Compare what the objective and the loop say of both trainings; speed is no result."""
    allowed: Tolerance
    if tolerance is not None:
        allowed = agreement.within(tolerance)
    else:
        allowed = agreement.training_facts(
            images,
            exact=_same_bits(recorded, made),
            stopped_early=recipe.training.early_stopping is not None,
        )
    return agreement.compare(TRAINING, recorded.metrics["training"], made.metrics["training"], allowed)


def _labelled(entries: Sequence[Mapping[str, Any]], own: Sets) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the evaluations with a short name for each that no other has."""
    seen: Counter[str] = Counter()
    for entry in entries:
        label = entry["protocol"]
        if measured_on(entry) != own.sha256:
            label += f" on {entry['data']}"
        seen[label] += 1
        yield label + (f" #{seen[label]}" if seen[label] > 1 else ""), entry


def _is_of(entry: Mapping[str, Any], recipe: Recipe, own: Sets) -> bool:
    """Whether the training itself made this evaluation, on the machine that trained."""
    if measured_on(entry) != own.sha256:
        return False
    return any(
        entry["protocol"] == protocol.protocol
        and (entry.get("settings") or {}) == settings_of(protocol)
        and entry.get("seed") == getattr(protocol, "seed", None)
        for protocol in recipe.evaluation
    )


def _same_bits(recorded: Release, made: Release) -> bool:
    return all(_hash(recorded, what) == _hash(made, what) for what in ("weights", "centers"))


def _hash(release: Release, what: str) -> str | None:
    found = release.config["zoo"][f"{what}_sha256"]
    return None if found is None else str(found)
