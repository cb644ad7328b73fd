"""`zoo.reproduce`: train a release again by its own recipe, and compare everything that was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zoo import catalog, hub
from zoo.api.own_images import open_own
from zoo.api.pretraining import pretrain
from zoo.config import Config, is_number, parse
from zoo.data import DataConfig, ImageDataset, open_dataset, parse_data_spec
from zoo.data.any_data import Data, own_root
from zoo.data.memory import Root
from zoo.errors import DataError, Interrupted, RanksLost, ReleaseError, ZooError
from zoo.evaluation.evaluate import evaluate
from zoo.experiments import judge
from zoo.experiments.judge import Figure, Images, Rule
from zoo.experiments.reading import find
from zoo.experiments.record import RunRecord, from_release
from zoo.files import RUNS, is_file
from zoo.launch import rank
from zoo.recipe import Recipe
from zoo.recipe.protocols import PROTOCOLS, TRAINED, settings_of
from zoo.release import Release, format
from zoo.release.provenance import START, origins, sha256_of
from zoo.report.subject import open_subjects

TRAINING = "training"
"""What the figures are of that no evaluation has made."""

_NAMED_BY_KIND = ("digits", "cifar10", "cifar100")
"""Sources whose kind says which images they are; for others the record has no columns, lists or folders."""


@dataclass(frozen=True)
class Reproduction:
    """What came of training a release again.

    Attributes:
        recorded: the release that was to be reproduced.
        made: the new one.
        figures: every number that was recorded, of the training and of each evaluation, beside the new one.
        not_repeated: evaluations that could not be made again, and why.
        seeds: how many trainings with other seeds the spread of training is known from; 0 without one.
    """

    recorded: Release
    made: Release
    figures: tuple[Figure, ...]
    not_repeated: tuple[tuple[str, str], ...]
    seeds: int

    @property
    def agrees(self) -> bool:
        """Whether all figures agree, and some of an evaluation were compared."""
        return bool(self.compared) and all(figure.agrees for figure in self.figures)

    @property
    def compared(self) -> frozenset[str]:
        """The evaluations of which some number was compared."""
        return frozenset(figure.of for figure in self.figures if figure.of != TRAINING)

    @property
    def same_weights(self) -> bool:
        """Whether the weights, and centers where there are any, are the same bits, by their SHA-256."""
        parts = ("weights_sha256", "centers_sha256")
        return all(self.recorded.config["zoo"][key] == self.made.config["zoo"][key] for key in parts)


class Sets:
    """A data set's two splits as probes see them: with true labels alone."""

    def __init__(self, train: ImageDataset, test: ImageDataset) -> None:
        self.train, self.test = train, test
        self.images = Images(np.asarray(test.class_counts), np.asarray(train.class_counts))
        self.sha256 = (train.describe()["sha256"], test.describe()["sha256"])

    @classmethod
    def open(cls, config: DataConfig, root: Root) -> Sets:
        """Open both; errors are those of `open_dataset`."""
        plain = config.model_copy(update={"partial_labels": None})
        return cls(*(open_dataset(plain, split, root) for split in ("train", "test")))


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
    the choice of test images and by the spread over seeds, all of them together; see
    `zoo.experiments.statistics.tolerance`.

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
    recorded = name if isinstance(name, Release) else _open(name)
    recipe = _recipe_of(recorded)
    data = own_root(data, recipe.data)
    out = RUNS / "reproduced" / recorded.name if out is None else Path(out)
    if out.resolve() == recorded.path.resolve():
        raise ReleaseError(f'out: "{out}" is the release that is to be reproduced; choose another folder')
    _check_finished(recorded)
    seeds = _seeds(recorded, spread)
    if rank() == 0:
        _check_origins(recorded)
        train_set, own = open_same(recorded, recipe.data, data)
    made = pretrain(recipe, out=out, data=data, resume=resume, images=recorded.images)
    if rank() > 0:
        return None
    given = None if tolerance is None else judge.points(tolerance)
    same = Reproduction(recorded, made, (), (), 0).same_weights
    facts = judge.training_facts(len(train_set), stopped_early=recipe.training.early_stopping is not None)
    old, new = (release.metrics["training"] for release in (recorded, made))
    pairs = list(judge.pairs(TRAINING, old, new, given or facts))
    if seeds and given is None:
        before, after = (judge.scalars(each.numbers) for each in open_subjects([recorded.path, made.path]))
        rule = judge.recorded_scalars([record.figures for record in seeds])
        pairs += judge.pairs(TRAINING, before, after, rule)
    not_repeated: list[tuple[str, str]] = []
    for label, entry in _labelled(recorded.metrics["evaluations"], own):
        try:
            again, images = _repeat(entry, made, own, data)
        except (Interrupted, RanksLost):
            raise
        except ZooError as error:
            not_repeated.append((label, str(error)))
            continue
        rule = given or _rule(entry, images, seeds, same=same and _is_of(entry, recipe, own))
        pairs += judge.pairs(label, entry["metrics"], again["metrics"], rule)
    return Reproduction(recorded, made, tuple(judge.judged(pairs)), tuple(not_repeated), len(seeds))


def _rule(entry: Mapping[str, Any], images: Images, seeds: Sequence[RunRecord], *, same: bool) -> Rule:
    if same:
        return judge.same_weights(images)
    return judge.equal_trainings(entry["metrics"], images, judge.metrics_of(seeds, entry))


def _open(name: str | Path) -> Release:
    try:
        return hub.open(name)
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
    """Refuse a snapshot, whose recipe trains further than it did, and what records no evaluation."""
    reached = format.snapshot_of(release.metrics["training"])
    if reached is not None:
        raise ReleaseError(
            f"{release.name} is a snapshot of a training that had not ended, after {reached}, "
            f"so no recipe ends there; expected the release of a whole training"
        )
    if not release.metrics["evaluations"]:
        raise ReleaseError(f"{release.name}: {format.METRICS} records no evaluation to compare with")


def _check_origins(release: Release) -> None:
    """Make sure that the releases that training began with are there, and are what they were."""
    for key, name, expected in origins(release.recipe, release.metrics["training"], release.name):
        did = "started" if key == START else "learned"
        try:
            found = sha256_of(key, hub.open(name).config)
        except ZooError as error:
            raise ReleaseError(
                f'{release.name}: its training {did} from "{name}", which cannot be opened: {error}'
            ) from None
        if expected not in (None, found):
            raise ReleaseError(
                f'{release.name}: its training {did} from "{name}" with weights of sha256 {expected}, but '
                f"those there now have {found}"
            )


def _seeds(release: Release, spread: str | Path | None) -> list[RunRecord]:
    """Return records of trainings like that of a release with other seeds; none where too few are known."""
    own = from_release(release)
    shipped = catalog.spread_path(release.name)
    if spread is None and not is_file(shipped):
        return []
    records = find([shipped if spread is None else spread]).records
    found = [r for r in records if (r.name, r.train_sha256) == (own.name, own.train_sha256)]
    found = [record for record in found if record.seed != own.seed]
    if len({record.seed for record in found}) < judge.FEWEST_SEEDS and spread is not None:
        raise ZooError(
            f'spread: found {len(found)} trainings like {own.name} with other seeds in "{spread}", expected '
            f"{judge.FEWEST_SEEDS} or more"
        )
    return found


def open_same(release: Release, config: DataConfig, root: Root) -> tuple[ImageDataset, Sets]:
    """Return what a release was trained on, and both splits as its probes saw them.

    Raises:
        DataError: for other images or labels than those, as far as the release records or lists them.
    """
    train_set = open_own(release, config, "train", root)
    if release.images:  # without partial labels, and looking for them once is enough
        own = Sets(train_set, open_own(release, config, "test", root))
    else:
        own = Sets.open(config, root)
    dataset = release.config["zoo"]["dataset"]
    entries = [measured_on(entry) for entry in release.metrics["evaluations"]]
    tested_on = [test for train, test in entries if train == own.sha256[0]]
    for split, facts, known in (
        ("trained", train_set.describe(), [dataset.get("sha256")]),
        ("tested", own.test.describe(), tested_on),
    ):
        expected = [sha256 for sha256 in known if sha256 is not None]
        if expected and facts["sha256"] not in expected:
            raise DataError(
                f"{release.name} was {split} on images with names and labels of sha256 {expected[0]}, found "
                f"{facts['num_images']:,} with {facts['sha256']}: other data, or in another order"
            )
    return train_set, own


def measured_on(entry: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the hashes of the training and test images of an entry, as far as it records them."""
    train, test = ((entry.get(name) or {}).get("sha256") for name in ("train_set", "test_set"))
    return train, test


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
    made = (entry["protocol"], entry.get("settings") or {}, entry.get("seed"))
    return measured_on(entry) == own.sha256 and any(
        made == (each.protocol, settings_of(each), getattr(each, "seed", None)) for each in recipe.evaluation
    )


def _repeat(
    entry: Mapping[str, Any], made: Release, own: Sets, data: Root
) -> tuple[Mapping[str, Any], Images]:
    """Return the entry of `made` that repeats a recorded one, measured now if it is not there yet.

    It has the same protocol, settings, seed and images: those of the release's own source, or another that
    the record names.

    Raises:
        ZooError: saying why it cannot be repeated.
    """
    protocol, spec, sets = _protocol(entry), data, own
    if entry["split"] != "test":
        raise DataError(f'measured on the split "{entry["split"]}"; evaluations are made on "test"')
    if measured_on(entry) != own.sha256:
        spec = _spec(entry, data)
        sets = Sets.open(*parse_data_spec(spec))
        if measured_on(entry) != sets.sha256:
            raise DataError(
                f"measured on other images than {spec} has: sha256 {measured_on(entry)} of training and test "
                f"images, found {sets.sha256}"
            )
    for other in made.metrics["evaluations"]:
        same = other["protocol"] == entry["protocol"] and measured_on(other) == measured_on(entry)
        if same and _protocol(other) == protocol:
            return other, sets.images
    settings = protocol.model_dump(mode="json", exclude={"protocol"})
    again = evaluate(made, entry["protocol"], spec, resume=entry["protocol"] in TRAINED, **settings)
    return again, sets.images


def _protocol(entry: Mapping[str, Any]) -> Config:
    """Read the protocol with all its settings."""
    name = entry["protocol"]
    if name not in PROTOCOLS:
        raise ZooError(f'this version of zoo has no protocol "{name}", only {", ".join(PROTOCOLS)}')
    seed = {} if entry.get("seed") is None else {"seed": entry["seed"]}
    settings = {"protocol": name, **(entry.get("settings") or {}), **seed}
    return parse(PROTOCOLS[name], settings, f"protocol {name}")


def _spec(entry: Mapping[str, Any], data: Root) -> str:
    """Return the spec of an entry's data, as far as the entry tells it."""
    facts = entry.get("train_set") or entry.get("test_set") or {}
    kind = facts.get("source")
    if kind not in _NAMED_BY_KIND or facts.get("subset") is not None:
        raise DataError(
            f'measured on "{entry["data"]}" (source {kind}), of which it records no place: give '
            f'"zoo evaluate {entry["protocol"]}" the release made here and --data SPEC'
        )
    tail = facts.get("long_tail") or {}
    query = "&".join(f"{key}={value}" for key, value in tail.items() if value is not None)
    folder = f":{data}" if data is not None and kind != "digits" else ""
    return f"{kind}{folder}" + (f"?{query}" if query else "")
