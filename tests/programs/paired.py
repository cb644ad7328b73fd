"""How far apart releases are on the same test images, with what the choice of these images alone makes of it.

    python -m tests.programs.paired knn RELEASE RELEASE ... --data DIR [--set k=5]
    python -m tests.programs.paired classifier RELEASE RELEASE,tau=1 --data DIR

Prints every pair's difference of accuracies in points and 1.96 standard errors of its mean over the images.
Seeds are no part of it: another one gives other weights.
"""

from __future__ import annotations

import argparse
from itertools import combinations
from typing import Any
from unittest.mock import patch

import torch
import yaml
from torch import Tensor

import zoo
from zoo.evaluation.measure import Encoded, respond


def right(release: str, protocol: str, data: str | None, settings: list[str]) -> Tensor:
    """Return which test images `release` classifies correctly `[N]`, bool; "NAME,tau=1" adds a setting."""
    name, *own = release.split(",")
    found: list[Tensor] = []

    def keep(chosen: Any, encoded: Encoded, centers: Any, run: Any, **_: Any) -> dict[str, Any]:
        predictions = respond(chosen, encoded.probe, centers, run).predictions.cpu()
        found.append(predictions == torch.from_numpy(encoded.test_set.labels.copy()))
        return {}

    given = {key: yaml.safe_load(value) for key, _, value in (text.partition("=") for text in settings + own)}
    with patch("zoo.api.evaluation.measure", keep):
        zoo.evaluate(name, protocol, data, save=False, **given)
    return found[0]


def difference(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Return mean and 95 % half-width of `a - b` in points."""
    each = 100 * (a.double() - b.double())
    return each.mean().item(), 1.96 * each.std().item() / len(each) ** 0.5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("protocol")
    parser.add_argument("releases", nargs="+")
    parser.add_argument("--data")
    parser.add_argument("--set", action="append", default=[])
    asked = parser.parse_args()
    answers = {each: right(each, asked.protocol, asked.data, asked.set) for each in asked.releases}
    for name, answer in answers.items():
        print(f"{100 * answer.double().mean().item():6.2f}  {name}")
    for one, other in combinations(answers, 2):
        mean, half = difference(answers[one], answers[other])
        print(f"{mean:+6.2f} +- {half:.2f}  {one} - {other}")


if __name__ == "__main__":
    main()
