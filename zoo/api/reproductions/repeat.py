"""An evaluation that a release records, made again on another release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from zoo.api.evaluation import evaluate
from zoo.api.own_images import open_own
from zoo.config import Config, parse
from zoo.data import DataConfig, ImageDataset, open_dataset, parse_data_spec
from zoo.data.embedded import without_partial_labels
from zoo.data.memory import Root
from zoo.errors import DataError, ZooError
from zoo.evaluation.results.agreement import Images
from zoo.release import Release
from zoo.training.protocols import PROTOCOLS, TRAINED

_NAMED_BY_KIND = ("digits", "cifar10", "cifar100", "fashion_mnist")
"""Sources whose kind says which images they are; for others the record has no columns, lists or folders."""


class Sets(NamedTuple):
    """A data set's two splits as probes see them: with true labels alone."""

    train: ImageDataset
    test: ImageDataset

    @classmethod
    def open(cls, config: DataConfig, root: Root) -> Sets:
        """Open both; errors are those of `open_dataset`."""
        plain, place = without_partial_labels(config, root)
        return cls(*(open_dataset(plain, split, place) for split in ("train", "test")))

    @property
    def images(self) -> Images:
        """How many there are of each class."""
        return Images(np.asarray(self.test.class_counts), np.asarray(self.train.class_counts))

    @property
    def sha256(self) -> tuple[str, str]:
        """Hashes of names and labels of both, as `describe` has them."""
        return self.train.describe()["sha256"], self.test.describe()["sha256"]


def measured_on(entry: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the hashes of the training and test images of an entry, as far as it records them."""
    train, test = ((entry.get(name) or {}).get("sha256") for name in ("train_set", "test_set"))
    return train, test


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
    tested_on = [test for train, test in entries if train == own.sha256[0] and test is not None]
    for split, facts, known in (
        ("trained", train_set.describe(), [dataset.get("sha256")]),
        ("tested", own.test.describe(), tested_on),
    ):
        expected = [sha256 for sha256 in known if sha256 is not None]
        if expected and facts["sha256"] not in expected:
            size = f"{dataset['num_images']:,} images" if split == "trained" else "images"
            raise DataError(
                f"{release.name} was {split} on {size} with names and labels of sha256 {expected[0]}, found "
                f"{facts['num_images']:,} with {facts['sha256']}: other data, or in another order"
            )
    return train_set, own


def repeat(
    entry: Mapping[str, Any], made: Release, own: Sets, data: Root
) -> tuple[Mapping[str, Any], Images]:
    """Return the entry of `made` that repeats the recorded `entry`, measured now if it is not there yet.

    The same protocol, settings, seed and images: those of the release's own source, or another that the
    record names.

    Args:
        entry: of the recorded release.
        made: the new one, in which a new entry is recorded.
        own: the data that both were trained on.
        data: their folder.

    Raises:
        ZooError: saying why it cannot be repeated.
    """
    protocol = _protocol(entry)
    if entry["split"] != "test":
        raise DataError(f'measured on the split "{entry["split"]}"; evaluations are made on "test"')
    if measured_on(entry) == own.sha256:
        spec, sets = data, own
    else:
        spec, sets = _named_again(entry, data)
        if measured_on(entry) != sets.sha256:
            splits = zip(("trained", "tested"), measured_on(entry), sets.sha256, strict=True)
            which, recorded, found = next(each for each in splits if each[1] != each[2])
            raise DataError(
                f"measured on other images than {spec} has: sha256 {recorded} of those {which} on, "
                f"found {found}"
            )
    for other in made.metrics["evaluations"]:
        if (
            other["protocol"] == entry["protocol"]
            and measured_on(other) == measured_on(entry)
            and _protocol(other) == protocol
        ):
            return other, sets.images
    settings = protocol.model_dump(mode="json", exclude={"protocol"})
    trains = entry["protocol"] in TRAINED
    again = evaluate(made, entry["protocol"], spec, resume=trains, **settings)
    if measured_on(again) != measured_on(entry):
        raise DataError(
            f"measured on {entry['data']}, and measured again on other images, which tells nothing"
        )
    return again, sets.images


def _protocol(entry: Mapping[str, Any]) -> Config:
    """Read the protocol with all its settings."""
    name = entry["protocol"]
    if name not in PROTOCOLS:
        raise ZooError(f'this version of zoo has no protocol "{name}", only {", ".join(PROTOCOLS)}')
    seed = {} if entry.get("seed") is None else {"seed": entry["seed"]}
    return parse(
        PROTOCOLS[name], {"protocol": name, **(entry.get("settings") or {}), **seed}, f"protocol {name}"
    )


def _named_again(entry: Mapping[str, Any], data: Root) -> tuple[str, Sets]:
    """Return the spec of an entry's data, as far as the entry tells it, and the data."""
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
    spec = f"{kind}{folder}" + (f"?{query}" if query else "")
    return spec, Sets.open(*parse_data_spec(spec))
