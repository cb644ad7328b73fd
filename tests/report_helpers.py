"""Subjects of a report, with records written by hand in the names that trainings use."""

import math
from typing import Any

import numpy as np
import torch

from zoo.report.sample import Sample
from zoo.report.subject import Subject

PACO = "cifar_resnet20.paco_digits_lt50"
MOCO = "cifar_resnet20.moco_v2_ft_digits_lt50"
COUNTS = np.array([125, 80, 52, 33, 21, 14, 9, 5, 3, 2])


def subject(label: str = "paco", **changes: Any) -> Subject:
    """A training on ten classes that has recorded nothing."""
    given: dict[str, Any] = dict(label=label, name=label, group=label, objective="paco", no_sample="none")
    given |= dict(data="digits", class_names=tuple("abcdefghij"), class_counts=torch.from_numpy(COUNTS))
    given["recipe"] = {"objective": {"name": "paco", "alpha": 0.05, "queue_size": 8192, "tau": 0.2}}
    return Subject(**given | changes)


def some_sample(count: int = 60, classes: int = 10) -> Sample:
    """Features that say their class, but not always."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % classes
    return Sample(
        features=torch.randn(count, 16, generator=draw) + 3 * torch.eye(16)[labels % 16],
        labels=labels,
        class_names=tuple("abcdefghijklmnopqrstuvwxyz"[:classes]),
        class_counts=torch.from_numpy(np.resize(COUNTS, classes)),
        positive_scores=torch.rand(count, generator=draw),
    )


def rows(count: int = 66) -> list[dict[str, Any]]:
    """A record with scores of pairs, and P_sup with its optimum."""
    found = []
    for i in range(count):
        step = 10 * (i + 1)
        row = {"step": step, "epoch": step / 110, "loss": 3 * math.exp(-2 * i / count), "lr": 0.1}
        row |= {"positive_score": 0.5 + 0.4 * i / count, "positive_variance": 0.02}
        row |= {"negative_score": 0.3 - 0.2 * i / count, "negative_variance": 0.1}
        found.append(row | {"p_sup": 0.3, "p_sup_optimum": 0.5})
    return found


def class_rows(power: float = 1.0, count: int = 6) -> list[dict[str, Any]]:
    """Rows of classes.jsonl: a class contributes in proportion to its images to the power `power`."""
    each = COUNTS ** (power - 1.0)
    gradients = {"feature_gradient": each, "class_gradient": each * COUNTS / COUNTS.sum()}
    return [
        {"step": 110 * (i + 1), "looks": 11, "images": (COUNTS * (i + 1)).tolist(), "center_gradient": None}
        | {key: values.tolist() for key, values in gradients.items()}
        for i in range(count)
    ]
