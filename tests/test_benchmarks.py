"""The benchmarks' own instruments, and their gates against peers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.benchmarks import epoch
from tests.benchmarks.harness import GateError, gate, peak_memory

CPU = torch.device("cpu")


def test_a_gate_lets_equal_results_through_and_no_others() -> None:
    assert "within 1e-07 (limit 1e-06)" in gate("loss", 1e-7, 1e-6)
    for difference in (2e-6, float("nan"), float("inf")):
        with pytest.raises(GateError, match="loss: found a difference"):
            gate("loss", difference, 1e-6)


def test_peak_memory_is_what_the_measured_part_adds() -> None:
    """Also when the process had used, and given back, more before; and whatever this process has used."""
    ballast = torch.ones(2**26)  # 256 MiB here, which a child must not count
    measured = peak_memory("x = torch.ones(2**20)\n# measure\ny = torch.ones(2**24)\n")
    assert ballast.sum() > 0
    assert measured == pytest.approx(2**26, rel=0.1)
    assert peak_memory("pass\n# measure\npass\n") < 2**22


def test_the_authors_update_is_ours() -> None:
    """The re-stated script and the recipe take one step from the same weights on the same views."""
    labels = np.arange(200) % epoch.CLASSES
    dataset = epoch.ImageDataset(
        epoch.Photos(200), labels, [str(c) for c in range(epoch.CLASSES)], settings={"name": "photos"}
    )
    loader = epoch.open_loader(dataset, epoch.Recipe.load(epoch.RECIPE, ["training.device=cpu"]), CPU)
    found = epoch._gate(dataset, CPU, next(iter(loader.stream(0, 1))))
    assert "update of the encoder" in found
