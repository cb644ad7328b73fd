"""Whether a protocol looks at the test labels: what it says must not depend on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from zoo.data import ImageDataset
from zoo.evaluation import measure as measuring
from zoo.evaluation.measure import Answer
from zoo.evaluation.probe_data import Encoded


def permuted(dataset: ImageDataset, seed: int = 0) -> ImageDataset:
    """Return the same images with each other's labels."""
    order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed)).numpy()
    return ImageDataset(
        dataset._store,
        dataset.labels[order],
        dataset.class_names,
        rows=dataset._rows,
        settings=dataset.settings,
    )


def check_no_leak(
    evaluate: Callable[[Encoded], dict[str, Any]], encoded: Callable[[bool], Encoded]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Measure with the true test labels and with permuted ones; fail if anything but the metrics differs.

    Args:
        evaluate: returns the entry of metrics.json for an encoder and its data, by way of `measure`.
        encoded: returns these, anew, with the true test labels (True) or permuted ones (False).

    Returns:
        Both entries.
    """
    answers: list[Answer] = []
    run_protocol = measuring.run_protocol

    def spy(*arguments: Any) -> Answer:
        answers.append(run_protocol(*arguments))
        return answers[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "run_protocol", spy)
        entries = [evaluate(encoded(true)) for true in (True, False)]
    first, second = answers
    assert torch.equal(first.predictions, second.predictions), "predictions depend on the test labels"
    for key in ("chosen", "settings", "seed"):
        assert entries[0][key] == entries[1][key], f"{key} depends on the test labels"
    return entries[0], entries[1]
