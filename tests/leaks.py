"""Whether a protocol looks at the test labels: what it says must not depend on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from zoo.data import ImageDataset
from zoo.evaluation import measure as measuring


def permuted(dataset: ImageDataset) -> ImageDataset:
    """Return the same images with each other's labels."""
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(0)).numpy()
    names, settings = dataset.class_names, dataset.settings
    return ImageDataset(dataset.store, dataset.labels[order], names, rows=dataset.rows, settings=settings)


def check_no_leak(evaluate: Callable[[bool], dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure with the true test labels and with permuted ones; fail if anything but the metrics differs.

    Args:
        evaluate: returns the entry of metrics.json, by way of `measure`, with the true test labels (True) or
            permuted ones (False).
    """
    answers: list[Tensor] = []
    run_protocol = measuring.run_protocol

    def spy(*arguments: Any) -> tuple[Tensor, dict[str, Any]]:
        found = run_protocol(*arguments)
        answers.append(found[0])
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "run_protocol", spy)
        first, second = evaluate(True), evaluate(False)
    assert torch.equal(*answers), "answers depend on the test labels"
    for key in ("chosen", "settings", "seed"):
        assert first[key] == second[key], f"{key} depends on the test labels"
    return first, second
