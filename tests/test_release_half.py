"""Releases in float16: half the size; figures and loads agree on what is in the files."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import zoo
from zoo.errors import ReleaseError
from zoo.release.tensors import round_to_half

RECIPE = "cifar_resnet20.balanced_softmax_digits_lt50"
SHORT = {"training.epochs": 1, "schedule.warmup_epochs": 0, "training.threads": 1, "training.device": "cpu"}


def test_figures_are_of_the_rounded_weights_that_are_in_the_files(tmp_path: Path) -> None:
    """One training, released in both precisions."""
    whole, half = (
        zoo.pretrain(RECIPE, out=tmp_path / dtype, overrides={**SHORT, "training.release_dtype": dtype})
        for dtype in ("float32", "float16")
    )
    figures = [
        next(each for each in release.metrics["evaluations"] if each["protocol"] == "classifier")["metrics"]
        for release in (whole, half)
    ]
    assert figures[0]["calibration_error"] != figures[1]["calibration_error"]  # what tells them apart
    assert zoo.evaluate(half, "classifier", save=False)["metrics"] == figures[1]
    for file in ("model.safetensors", "centers.safetensors"):
        ours, theirs = load_file(half.path / file), load_file(whole.path / file)
        for name, tensor in theirs.items():
            expected = tensor.half() if tensor.is_floating_point() else tensor
            assert ours[name].dtype == expected.dtype and torch.equal(ours[name], expected), name
    # what is loaded computes in float32
    for model in (half.load(head="centers"), half.load(num_classes=3), half.load(in_chans=1)):
        assert {t.dtype for t in model.state_dict().values() if t.is_floating_point()} == {torch.float32}
    centers = half.require_centers()
    assert (centers.weight.dtype, centers.class_counts.dtype) == (torch.float32, torch.int64)


def test_what_float16_does_not_hold_is_not_rounded() -> None:
    with pytest.raises(ReleaseError, match=r"mean.*65504"):
        round_to_half({"weight": torch.ones(2), "mean": torch.tensor([7e4]), "prototypes": None})
