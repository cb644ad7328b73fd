"""How far apart trainings are on the same test images, and what the choice of these images makes of it.

    python -m tests.programs.paired knn RELEASE RELEASE ... --data DIR [--set k=5]
    python -m tests.programs.paired classifier RELEASE,tau=1 recipes/results/NAME.json --data DIR

Prints every pair's difference of accuracies in points and 1.96 standard errors of its mean over the images:
of all, and of those whose class has many (> 100), medium and few (< 20) training images. Another seed gives
other weights, which is no part of it. A run whose weights are not shipped is given by its results: `--into
recipes/results/NAME.json` has written there which test images it classifies correctly.
"""

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
from zoo.evaluation.measure import run_protocol
from zoo.files import write_text


class Answers(NamedTuple):
    right: Tensor  # which test images were classified correctly [N], bool
    counts: Tensor | None  # training images of each one's class [N]
    test_sha256: str


def answers(release: str, protocol: str, data: str | None, settings: list[str]) -> Answers:
    """Return which test images `release` classifies correctly; "NAME,tau=1" adds a setting."""
    if release.endswith(".json"):
        entry = json.loads(Path(release).read_text())["right"][protocol]
        packed = np.frombuffer(base64.b64decode(entry["packed"]), dtype=np.uint8)
        right = torch.from_numpy(np.unpackbits(packed, count=entry["images"]).astype(bool))
        return Answers(right, None, entry["test_sha256"])
    name, *own = release.split(",")
    found: list[Answers] = []

    def keep(chosen: Any, data: Any, test_set: Any, centers: Any, run: Any, **_: Any) -> dict[str, Any]:
        answer, _ = run_protocol(chosen, data, centers, run)
        predictions = (answer if answer.ndim == 1 else answer.argmax(dim=1)).cpu()
        labels = torch.from_numpy(test_set.labels.copy())
        counts = torch.as_tensor(data.train_set.class_counts)[labels]
        found.append(Answers(predictions == labels, counts, test_set.describe()["sha256"]))
        return {}

    given = {key: yaml.safe_load(value) for key, _, value in (text.partition("=") for text in settings + own)}
    with patch("zoo.evaluation.evaluate.measure", keep):
        zoo.evaluate(name, protocol, data, save=False, **given)
    return found[0]


def main() -> None:
    parser = argparse.ArgumentParser()
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
            results = json.loads(asked.into.read_text())
            packed = base64.b64encode(np.packbits(one.right.numpy()).tobytes()).decode()
            entry = {"test_sha256": one.test_sha256, "images": len(one.right), "packed": packed}
            results.setdefault("right", {})[asked.protocol] = entry
            write_text(asked.into, json.dumps(results, indent=2) + "\n")
    for (first, a), (second, b) in combinations(found.items(), 2):
        assert a.test_sha256 == b.test_sha256, "these were measured on different test images"
        print(f"{first} - {second}:")
        difference = 100 * (a.right.double() - b.right.double())
        parts = {"all": torch.ones_like(a.right)}
        if (counts := b.counts if a.counts is None else a.counts) is not None:
            parts |= {"many": counts > 100, "medium": (counts >= 20) & (counts <= 100), "few": counts < 20}
        for part, rows in parts.items():
            each = difference[rows]
            if len(each):
                print(f"{each.mean():+6.2f} +- {1.96 * each.std() / len(each) ** 0.5:.2f}  {part}")


if __name__ == "__main__":
    main()
