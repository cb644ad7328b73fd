"""The benchmarks' own instruments, and their gates against peers."""

from __future__ import annotations

import importlib
import time

import numpy as np
import pytest
import torch

from tests.benchmarks import authors, epoch, losses
from tests.benchmarks.__main__ import NAMES, main
from tests.benchmarks.harness import GateError, Row, gate, medians, peak_memory

CPU = torch.device("cpu")


def test_every_benchmark_is_found_and_can_be_imported() -> None:
    assert {*NAMES} == {"views", "losses", "step", "epoch", "load", "input"}
    for name in NAMES:
        assert callable(importlib.import_module(f"tests.benchmarks.{name}").rows)


def test_a_gate_lets_equal_results_through_and_no_others() -> None:
    assert "within 1e-07 (limit 1e-06)" in gate("loss", 1e-7, 1e-6)
    for difference in (2e-6, float("nan"), float("inf")):
        with pytest.raises(GateError, match="loss: found a difference"):
            gate("loss", difference, 1e-6)


def test_targets_are_lower_bounds_of_speed_and_upper_bounds_of_memory() -> None:
    row = Row("n", "p", 5.0, 4.0, "a", "b", "g")
    assert row.reached
    assert "5x (target >= 4, reached)" in str(row)
    assert not row._replace(ratio=3.9).reached
    assert row._replace(ratio=0.02, target=0.03, at_most=True).reached
    assert "MISSED" in str(row._replace(at_most=True))


def test_medians_are_of_what_was_called_in_turn() -> None:
    calls = []
    quick, slow = medians(
        [lambda: calls.append("a"), lambda: (calls.append("b"), time.sleep(0.02))], rounds=3, warmup=1
    )
    assert calls == ["a", "b"] * 4
    assert quick < 0.01 < slow


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


def test_the_bound_of_info_nce_on_a_gpu_is_said_beside_what_was_aimed_at() -> None:
    said = losses.bound(4096)
    assert "137 GFLOP, at least 2.05 ms" in said
    assert "3.7 ms at 4.3 TB/s: at most about 2.8" in said
    assert losses.bound(256).endswith("at most about 2.8")


def test_a_benchmark_that_cannot_run_leaves_the_others_rows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(device: torch.device) -> None:
        raise ModuleNotFoundError("No module named 'lightly'")

    monkeypatch.setattr("tests.benchmarks.step.rows", broken)
    monkeypatch.setattr("tests.benchmarks.load.rows", lambda device: [Row("n", "p", 5.0, 4.0, "a", "b", "g")])
    monkeypatch.setattr("sys.argv", ["benchmarks", "step", "load", "--device", "cpu"])
    assert main() == 2
    said = capsys.readouterr().out
    assert "No module named 'lightly'" in said
    assert "1 of 1 targets reached" in said


def test_the_authors_loss_makes_nothing_on_another_device_than_its_inputs() -> None:
    """`meta` stands in for a GPU: it refuses to mix as well."""
    with torch.device("meta"):
        linear, views = torch.nn.Linear(4, 4), torch.randn(6, 4)
        peer = authors.PaCo(
            [torch.nn.Linear(4, 4) for _ in range(4)],
            linear,
            torch.zeros(8, 4),
            torch.full((8,), -1),
            torch.zeros(4),
            alpha=0.05,
            tau=0.2,
            momentum=0.9,
        )
        labels = torch.zeros(6, dtype=torch.int64)
    assert peer.loss((views, views), labels).device.type == "meta"
