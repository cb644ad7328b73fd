"""How far apart trainings are on the same test images, and what the choice of these images makes of it.

    python -m tests.programs.paired knn RELEASE RELEASE ... --data DIR [--set k=5]
    python -m tests.programs.paired classifier RELEASE,tau=1 recipes/results/NAME.json --data DIR

Prints every pair's difference of accuracies in points and 1.96 standard errors of its mean over the images:
of all, and of those whose class has more than 100, 20 to 100, and fewer than 20 training images. Seeds are no
part of it: another one gives other weights.

A run whose weights are not shipped is given by its results, a .json file: `--into FILE` has written there
which test images it classifies correctly.

    python -m tests.programs.paired classifier FOLDER --data DIR --into recipes/results/NAME.json
"""

from __future__ import annotations

import argparse
import base64
import json
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
import yaml
from torch import Tensor

import zoo
from zoo.data import ImageDataset
from zoo.evaluation.measure import ProbeData, run_protocol
from zoo.files import write_text

KEY = "right"


class Answers(NamedTuple):
    """Which test images are right, and how many training images the class of each has, where it is known."""

    right: Tensor
    many: Tensor | None
    test_sha256: str


def answers(release: str, protocol: str, data: str | None, settings: list[str]) -> Answers:
    """Return which test images `release` classifies correctly; "NAME,tau=1" adds a setting."""
    if release.endswith(".json"):
        return _kept(Path(release), protocol)
    name, *own = release.split(",")
    found: list[Answers] = []

    def keep(
        chosen: Any, data: ProbeData, test_set: ImageDataset, centers: Any, run: Any, **_: Any
    ) -> dict[str, Any]:
        answer, _ = run_protocol(chosen, data, centers, run)
        predictions = (answer if answer.ndim == 1 else answer.argmax(dim=1)).cpu()
        labels = torch.from_numpy(test_set.labels.copy())
        many = torch.as_tensor(data.train_set.class_counts)[labels]
        found.append(Answers(predictions == labels, many, test_set.describe()["sha256"]))
        return {}

    given = {key: yaml.safe_load(value) for key, _, value in (text.partition("=") for text in settings + own)}
    with patch("zoo.evaluation.evaluate.measure", keep):
        zoo.evaluate(name, protocol, data, save=False, **given)
    return found[0]


def keep_in(file: Path, protocol: str, one: Answers) -> None:
    """Write the answers of a run into the file of its results."""
    results = json.loads(file.read_text())
    packed = base64.b64encode(np.packbits(one.right.numpy()).tobytes()).decode()
    entry = {"test_sha256": one.test_sha256, "images": len(one.right), "packed": packed}
    results[KEY] = {**results.get(KEY, {}), protocol: entry}
    write_text(file, json.dumps(results, indent=2) + "\n")


def _kept(file: Path, protocol: str) -> Answers:
    entry = json.loads(file.read_text()).get(KEY, {}).get(protocol)
    if entry is None:
        raise SystemExit(f'"{file}" does not say which images are right by {protocol}')
    packed = np.frombuffer(base64.b64decode(entry["packed"]), dtype=np.uint8)
    right = torch.from_numpy(np.unpackbits(packed, count=entry["images"]).astype(bool))
    return Answers(right, None, entry["test_sha256"])


def difference(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Return mean and 95 % half-width of `a - b` in points: 1.96 standard errors over the images."""
    each = 100 * (a.double() - b.double())
    return each.mean().item(), 1.96 * each.std().item() / len(each) ** 0.5


def differences(one: Answers, other: Answers) -> dict[str, tuple[float, float]]:
    """Return the differences over all images, and over those of classes with many, medium and few."""
    if one.test_sha256 != other.test_sha256:
        raise SystemExit("these were measured on different test images")
    parts = {"all": torch.ones_like(one.right)}
    counts = one.many if one.many is not None else other.many
    if counts is not None:
        parts |= {"many": counts > 100, "medium": (counts >= 20) & (counts <= 100), "few": counts < 20}
    return {
        name: difference(one.right[part], other.right[part]) for name, part in parts.items() if part.any()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("protocol")
    parser.add_argument("releases", nargs="+")
    parser.add_argument("--data")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--into", type=Path)
    asked = parser.parse_args()
    found = {each: answers(each, asked.protocol, asked.data, asked.set) for each in asked.releases}
    for name, one in found.items():
        print(f"{100 * one.right.double().mean().item():6.2f}  {name}")
        if asked.into is not None:
            keep_in(asked.into, asked.protocol, one)
    for first, second in combinations(found, 2):
        print(f"{first} - {second}:")
        for part, (mean, half) in differences(found[first], found[second]).items():
            print(f"{mean:+6.2f} +- {half:.2f}  {part}")


if __name__ == "__main__":
    main()
